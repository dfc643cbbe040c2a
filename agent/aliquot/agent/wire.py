"""Converts between the agent's values and protobuf messages. Only `stream`, `reporting` and `local` know both as well.

An optional field is set only where its value is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from aliquot.agent.core.accounting import SliceUsage
from aliquot.agent.core.caring import MAX_CARDS, CareOrder, CareResult
from aliquot.agent.core.deltas import DeviceReport, SliceUseReport
from aliquot.agent.core.desired import Batch, Order
from aliquot.agent.core.figures import ServedReport
from aliquot.agent.core.model import DEFAULT_GRACE_MS, SliceSpec
from aliquot.agent.core.partitioning import Card, CutOrder, CutResult, Part
from aliquot.agent.core.reports import LeaseHit, SliceReport
from aliquot.agent.core.samples import ActivitySource, DeviceInfo
from aliquot.agent.state import DeviceState
from aliquot.common.errors import InvalidFieldError
from aliquot.common.names import validate_slice_id
from aliquot.common.signs import Remedy
from aliquot.common.stopping import DEFAULT_STOP_SIGNAL, STOP_SIGNALS
from aliquot.common.tiers import Tier
from aliquot.v1 import agent_pb2, types_pb2

HOST_NAMES = {types_pb2.SERVE_REMOTE: "remote", types_pb2.SERVE_CUDA: "cuda"}
"""Entry points by what leases want to be served as."""
UNKNOWN_HOST = "unknown"
"""Of a way to serve that is newer than this agent: nothing installed has this name, so it fails with a reason."""
_NOT_SERVED = (types_pb2.SERVE_UNSPECIFIED, types_pb2.SERVE_LOCAL)
LEASE_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")


def device_report(device: DeviceState) -> DeviceReport:
    """What is known of a device now."""
    usage, memory = device.usage, device.memory
    alone = usage is not None and len(usage.slices) == 1 and not (usage.foreign or usage.strays)
    known = usage is not None and memory is not None
    return DeviceReport(
        uuid=device.info.uuid,
        healthy=device.health.healthy,
        health_reason=device.health.reason,
        signal=device.health.signal,
        foreign_bytes=usage.foreign_bytes if usage is not None else None,
        memory_used_bytes=memory.used_bytes if memory is not None else None,
        unattributed_bytes=usage.unattributed_bytes if usage is not None and known else None,
        gpu_percent=device.load.gpu_percent,
        memory_percent=device.load.memory_percent,
        temperature_c=device.load.temperature_c,
        power_mw=device.load.power_mw if device.load.mean_power_mw is None else device.load.mean_power_mw,
        activity_percent=device.load.activity_percent,
        activity_source=device.load.activity_source,
        power_limit_mw=device.load.power_limit_mw,
        sampled_ms=device.sampled_ms,
        slices=tuple(
            SliceUseReport(
                piece.reservation.slice_id,
                piece.observed_bytes,
                len(piece.uses),
                slice_percent(device, piece),
                *slice_activity(device, piece, alone=alone),
            )
            for piece in (usage.slices if usage is not None and known else ())
        ),
    )


def slice_percent(device: DeviceState, piece: SliceUsage) -> int | None:
    """How much of the device's time a slice's processes used of late; None where the driver does not tell."""
    percent = device.process_percent
    if percent is None:
        return None
    return min(100, sum(percent.get(use.pid, 0) for use in piece.uses))


def slice_activity(device: DeviceState, piece: SliceUsage, *, alone: bool) -> tuple[int | None, ActivitySource]:
    """The busiest engine that a slice's processes used since the last look, in percent of the device, and by what
    source. Unknown where its processes are not all listed: one that nobody sees may work.

    Where the lease is `alone` on a device with counters, those count: they miss nothing.
    """
    if not piece.complete:
        return None, ActivitySource.UNKNOWN
    load = device.load
    if alone and piece.uses and load.activity_source is ActivitySource.COUNTERS:
        return load.activity_percent, load.activity_source
    if device.process_peaks is not None:
        # Peaks add up, so programs of one lease that take turns do not look idle.
        peaks = device.process_peaks
        return min(100, sum(peaks.get(use.pid, 0) for use in piece.uses)), ActivitySource.PROCESSES
    if not piece.uses:
        return 0, ActivitySource.PROCESSES
    if alone and load.activity_percent is not None:
        return load.activity_percent, load.activity_source
    return None, ActivitySource.UNKNOWN


def telemetry_to_wire(report: DeviceReport) -> types_pb2.DeviceTelemetry:
    """The telemetry of a report."""
    return types_pb2.DeviceTelemetry(
        gpu_utilisation_percent=report.gpu_percent,
        memory_utilisation_percent=report.memory_percent,
        memory_used_bytes=report.memory_used_bytes,
        temperature_c=report.temperature_c,
        power_mw=report.power_mw,
        unattributed_bytes=report.unattributed_bytes,
        sampled_ms=report.sampled_ms,
        activity_percent=report.activity_percent,
        activity_source=source_to_wire(report.activity_source),
        power_limit_mw=report.power_limit_mw,
    )


def source_to_wire(source: ActivitySource) -> types_pb2.ActivitySource.ValueType | None:
    """A source of activity; None where nothing is known."""
    return types_pb2.ActivitySource.ValueType(source) if source else None


def delta_to_wire(seq: int, reports: Iterable[DeviceReport]) -> agent_pb2.Delta:
    """A delta."""
    return agent_pb2.Delta(
        seq=seq,
        devices=[
            agent_pb2.DeviceReport(
                uuid=report.uuid,
                telemetry=telemetry_to_wire(report),
                foreign_bytes=report.foreign_bytes,
                healthy=report.healthy,
                health_reason=report.health_reason,
                sign=sign_to_wire(report),
                slices=uses_to_wire(report),
            )
            for report in reports
        ],
    )


def sign_to_wire(report: DeviceReport) -> types_pb2.Sign | None:
    """Why a device is not well, as far as the table says."""
    signal = report.signal
    if report.healthy or signal is None:
        return None
    return types_pb2.Sign(
        cause=signal.cause,
        severity=types_pb2.SignSeverity.ValueType(signal.severity),
        scope=types_pb2.SignScope.ValueType(signal.scope),
        remedy=types_pb2.Remedy.ValueType(signal.remedy),
    )


def hit_to_wire(hit: LeaseHit) -> agent_pb2.LeaseHit:
    """A fault of a lease's own program."""
    return agent_pb2.LeaseHit(
        device_uuid=hit.device_uuid, lease_id=hit.lease_id, text=hit.text, suspicious=hit.suspicious
    )


def care_from_wire(message: agent_pb2.Care) -> CareOrder | None:
    """An order about sick cards; None for one that this agent does not know."""
    if int(message.action) not in (Remedy.RESET, Remedy.REBOOT, Remedy.VERIFY):
        return None
    return CareOrder(message.number, Remedy(message.action), tuple(message.uuids[:MAX_CARDS]), message.reason)


def care_result_to_wire(number: int, result: CareResult) -> types_pb2.CareResult:
    """What became of an order about sick cards."""
    rates = [types_pb2.CopyRate(uuid=uuid, mb_per_s=rate) for uuid, rate in result.copy_mb_s.items()]
    return types_pb2.CareResult(number=number, problem=result.problem, story=result.story, copies=rates)


def uses_to_wire(report: DeviceReport) -> list[agent_pb2.SliceUse]:
    """What the slices of one device really use."""
    return [
        agent_pb2.SliceUse(
            slice_id=use.slice_id,
            observed_bytes=use.observed_bytes,
            processes=use.processes,
            gpu_utilisation_percent=use.gpu_percent,
            activity_percent=use.activity_percent,
            activity_source=source_to_wire(use.activity_source),
        )
        for use in report.slices
    ]


def served_to_wire(report: ServedReport) -> types_pb2.ServedUse:
    """What is done for programs that use a member from elsewhere."""
    figures, rates = report.figures, report.rates
    return types_pb2.ServedUse(
        slice_id=report.slice_id,
        sessions=min(figures.get("sessions", 0), 0xFFFFFFFF),
        ops=figures.get("ops_total", 0),
        waits=figures.get("waits_total", 0),
        up_bytes=figures.get("up_bytes_total", 0),
        down_bytes=figures.get("down_bytes_total", 0),
        run_ahead_frames=figures.get("run_ahead_frames", 0),
        memory_bytes=figures.get("memory_bytes", 0),
        ops_per_s=rates.get("ops_total", 0),
        up_bytes_per_s=rates.get("up_bytes_total", 0),
        down_bytes_per_s=rates.get("down_bytes_total", 0),
    )


def device_to_wire(info: DeviceInfo, report: DeviceReport, tiers: Iterable[Tier]) -> types_pb2.Device:
    """A device as a snapshot names it."""
    return types_pb2.Device(
        uuid=info.uuid,
        index=info.index,
        model=info.model,
        vendor=info.vendor,
        product_name=info.product_name,
        memory_total_bytes=info.memory_total_bytes,
        memory_reserved_bytes=info.memory_reserved_bytes,
        foreign_bytes=report.foreign_bytes or 0,
        mig_profile=info.mig_profile,
        parent_uuid=info.parent_uuid,
        fabric_island=info.fabric_island,
        numa_node=info.numa_node,
        healthy=report.healthy,
        health_reason=report.health_reason,
        sign=sign_to_wire(report),
        telemetry=telemetry_to_wire(report),
        pci_bus_id=info.pci_bus_id,
        tiers=[types_pb2.Tier.ValueType(tier) for tier in tiers],
        compute_milli=info.compute_milli,
        mig_start=info.mig_start,
        whole_only=bool(info.whole_only),
    )


def card_to_wire(card: Card, result: CutResult | None) -> types_pb2.MigCard:
    """A card that the coordinator may have cut, and what became of its last order."""
    return types_pb2.MigCard(
        uuid=card.uuid,
        model=card.model,
        profiles=[
            types_pb2.MigProfile(
                name=profile.name,
                compute_slices=profile.compute_slices,
                memory_bytes=profile.memory_bytes,
                length=profile.length,
                starts=profile.starts,
            )
            for profile in card.profiles
        ],
        parts=[types_pb2.MigPart(profile=part.profile, start=part.start, uuid=uuid) for part, uuid in card.parts],
        cut=result.number if result is not None else 0,
        problem=result.problem if result is not None else "",
    )


def cut_from_wire(message: agent_pb2.Cut) -> CutOrder:
    """An order to cut a card."""
    parts = sorted(Part(part.start, part.profile) for part in message.parts)
    return CutOrder(message.number, message.card_uuid, tuple(parts), message.reason)


def slice_report_to_wire(report: SliceReport) -> agent_pb2.SliceReport:
    """A confirmation."""
    return agent_pb2.SliceReport(
        slice_id=report.slice_id,
        lease_id=report.lease_id,
        lease_epoch=report.lease_epoch,
        status=agent_pb2.SliceStatus.ValueType(report.status),
        tier=types_pb2.Tier.ValueType(report.tier or 0),
        reason=report.reason,
        detail=report.detail,
        device_uuid=report.device_uuid,
        share_milli=report.share_milli,
        memory_bytes=report.memory_bytes,
        tier_notes=report.tier_notes,
        endpoint=report.endpoint,
    )


def batch_from_wire(message: agent_pb2.Desired) -> tuple[Batch, list[str]]:
    """An order, and complaints about entries that can't be read: those are left out, the others obeyed."""
    orders: list[Order] = []
    complaints: list[str] = []
    for entry in message.slices:
        problem = _problem(entry)
        if problem:
            complaints.append(problem)
            continue
        spec = SliceSpec(
            slice_id=entry.slice_id,
            lease_id=entry.lease_id,
            lease_epoch=entry.lease_epoch,
            device_uuid=entry.device_uuid,
            share_milli=entry.share_milli,
            memory_bytes=entry.memory_bytes,
            member=entry.member,
            min_tier=_tier(entry.min_tier),
            grace_ms=entry.grace_ms or DEFAULT_GRACE_MS,
            secret_sha256=entry.secret_sha256,
            tenant=entry.tenant,
            queue=entry.queue,
            serve="" if entry.serve in _NOT_SERVED else HOST_NAMES.get(entry.serve, UNKNOWN_HOST),
            serving_credential_sha256=entry.serving_credential_sha256,
            lender=entry.lender,
            lender_memory=entry.lender_memory,
            stop_signal=_stop_signal(entry.stop_signal),
            cuda_ordinals=entry.cuda_ordinals,
        )
        orders.append(Order(spec, stop=entry.state == agent_pb2.DESIRED_STATE_STOP, reason=entry.reason))
    batch = Batch(
        leader_epoch=message.leader_epoch,
        session_epoch=message.session_epoch,
        full=message.full,
        orders=tuple(orders),
        settled=tuple(message.settled),
    )
    return batch, complaints


def _problem(entry: agent_pb2.DesiredSlice) -> str:
    """What keeps an entry from being obeyed; empty: nothing. Ids become file names and cgroups, so they are bounded."""
    if entry.state == agent_pb2.DESIRED_STATE_UNSPECIFIED:
        return f"slice {entry.slice_id!r} has no state"
    if not LEASE_ID.fullmatch(entry.lease_id):
        return f"{entry.lease_id!r} is no lease id"
    try:
        validate_slice_id(entry.slice_id)
    except InvalidFieldError as error:
        return error.message
    return ""


def _stop_signal(name: str) -> str:
    """One that is newer than this agent is the plain one: its programs are told in any case."""
    return name if name in STOP_SIGNALS else DEFAULT_STOP_SIGNAL


def _tier(number: int) -> Tier | None:
    """A minimum tier; None for "any". One that is newer than this agent is above all that it can offer."""
    if number == 0:
        return None
    return Tier(min(number, max(Tier)))
