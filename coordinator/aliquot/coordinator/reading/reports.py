"""Reading agents' confirmations, and what counts as a change of what a device can give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from aliquot.common.tiers import Tier
from aliquot.coordinator.core.commands import ReportStatus, SliceReport
from aliquot.coordinator.core.types import DeviceSpec
from aliquot.coordinator.reading.totals import DeviceUse
from aliquot.v1 import agent_pb2

FOREIGN_DEADBAND_BYTES = 16 << 20
_TEXT_MAX = 256
_TIERS = frozenset(map(int, Tier))
_STATUSES = {status.value: status for status in ReportStatus}


def read_reports(reports: Iterable[agent_pb2.SliceReport]) -> tuple[SliceReport, ...]:
    """As the core takes them. One with a status that nobody knows says nothing and is left out."""
    return tuple(
        SliceReport(
            slice_id=report.slice_id,
            lease_epoch=report.lease_epoch,
            status=_STATUSES[report.status],
            tier=report.tier if report.tier in _TIERS else 0,
            reason=report.reason[:64],
            detail=report.detail[:_TEXT_MAX],
            endpoint=report.endpoint[:_TEXT_MAX],
        )
        for report in reports
        if report.status in _STATUSES
    )


def as_held(devices: Iterable[DeviceSpec], uses: Mapping[str, DeviceUse]) -> tuple[DeviceSpec, ...]:
    """Devices as a node has them on the books that says so: none is smaller there than what leases hold of it."""
    return tuple(
        replace(device, compute_milli=max(device.compute_milli, use.share_milli))
        if device.mig_profile and (use := uses.get(device.uuid)) is not None
        else device
        for device in devices
    )


def foreign_changed(known_bytes: int, now_bytes: int) -> bool:
    """Whether foreign memory has changed enough to be journalled: by the deadband, or from or to nothing."""
    if known_bytes == now_bytes:
        return False
    return known_bytes == 0 or now_bytes == 0 or abs(known_bytes - now_bytes) >= FOREIGN_DEADBAND_BYTES
