"""Converts between the agent's values and protobuf messages. Only `stream`, `reporting` and `local` know both as well.

An optional field is set only where its value is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from aliquot.agent.core.accounting import SliceUsage
from aliquot.agent.core.caring import MAX_CARDS, CareOrder, CareResult
from aliquot.agent.core.deltas import DeviceReport, SliceUseReport
from aliquot.agent.core.desired import Batch, Order
from aliquot.agent.core.figures import ServedReport
from aliquot.agent.core.model import NOTHING_YET, Actual, SliceSpec
from aliquot.agent.core.overtime import Seen
from aliquot.agent.core.partitioning import Card, CutOrder, Part, Profile
from aliquot.agent.core.reports import LeaseHit, SliceReport
from aliquot.agent.core.samples import ActivitySource, DeviceInfo
from aliquot.agent.core.signals import Signal
from aliquot.agent.state import DeviceState
from aliquot.common.errors import InvalidFieldError
from aliquot.common.fields import Reader, Writer
from aliquot.common.names import validate_slice_id
from aliquot.common.signs import Remedy
from aliquot.common.spans import SPANS_MAX, joined
from aliquot.common.stopping import DEFAULT_STOP_SIGNAL, STOP_SIGNALS
from aliquot.common.tiers import Tier
from aliquot.v1 import agent_pb2, types_pb2

HOST_NAMES = {types_pb2.SERVE_REMOTE: "remote", types_pb2.SERVE_CUDA: "cuda"}
"""Entry points by what leases want to be served as."""
UNKNOWN_HOST = "unknown"
"""Of a way to serve that is newer than this agent: nothing installed has this name, so it fails with a reason."""
_NOT_SERVED = (types_pb2.SERVE_UNSPECIFIED, types_pb2.SERVE_LOCAL)
LEASE_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")


def device_report(device: DeviceState, actual: Mapping[str, Actual] = MappingProxyType({})) -> DeviceReport:
    """What is known of a device now, and of slices on it as far as `actual` has them."""
    usage, memory = device.usage, device.memory
    alone = usage is not None and len(usage.slices) == 1 and not (usage.foreign or usage.strays)
    known = usage is not None and memory is not None
    return DeviceReport(
        uuid=device.info.uuid,
        healthy=device.health.healthy and not device.info.shut,
        health_reason=device.health.reason or device.info.shut,
        signal=device.health.signal,
        foreign_bytes=usage.foreign_bytes if usage is not None else None,
        memory_used_bytes=memory.used_bytes if memory is not None else None,
        unattributed_bytes=usage.unattributed_bytes if usage is not None and known else None,
        gpu_percent=device.load.gpu_percent,
        memory_percent=device.load.memory_percent,
        temperature_c=device.load.temperature_c,
        power_mw=device.load.power_mw if device.mean_power_mw is None else device.mean_power_mw,
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
                energy_mj=actual.get(piece.reservation.slice_id, NOTHING_YET).energy_mj,
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


class Beside(NamedTuple):
    """What is told of a device beside what it is."""

    report: DeviceReport
    tiers: Iterable[Tier]


def _source(report: DeviceReport | SliceUseReport, _: object) -> ActivitySource | None:
    return report.activity_source or None


def _sign(report: DeviceReport, _: object) -> Signal | None:
    """Why a device is not well, as far as the table of signs says."""
    return None if report.healthy else report.signal


SIGN = Writer(types_pb2.Sign, Signal)
TELEMETRY = Writer(
    types_pb2.DeviceTelemetry,
    DeviceReport,
    {
        "gpu_utilisation_percent": "gpu_percent",
        "memory_utilisation_percent": "memory_percent",
        "activity_source": _source,
    },
)
USE = Writer(agent_pb2.SliceUse, SliceUseReport, {"gpu_utilisation_percent": "gpu_percent", "activity_source": _source})
REPORT = Writer(
    agent_pb2.DeviceReport,
    DeviceReport,
    {"telemetry": (lambda report, _: report, TELEMETRY), "sign": (_sign, SIGN), "slices": USE},
)
DEVICE = Writer(
    types_pb2.Device,
    DeviceInfo,
    {
        "foreign_bytes": lambda _, beside: beside.report.foreign_bytes,
        "healthy": lambda _, beside: beside.report.healthy,
        "health_reason": lambda _, beside: beside.report.health_reason,
        "telemetry": (lambda _, beside: beside.report, TELEMETRY),
        "sign": (lambda _, beside: _sign(beside.report, None), SIGN),
        "tiers": lambda _, beside: beside.tiers,
        "whole_only": lambda info, _: bool(info.whole_only),
    },
    left_out=dict.fromkeys(
        ("leased_share_milli", "leased_memory_bytes", "node_id", "lease_ids", "standing", "incident"),
        "the coordinator's",
    ),
)
PROFILE = Writer(types_pb2.MigProfile, Profile)
CARD = Writer(
    types_pb2.MigCard,
    Card,
    {
        "profiles": PROFILE,
        "parts": lambda card, _: [
            types_pb2.MigPart(profile=part.profile, start=part.start, uuid=uuid) for part, uuid in card.parts
        ],
        "cut": lambda _, result: result.number if result is not None else 0,
        "problem": lambda _, result: result.problem if result is not None else "",
    },
    left_out={"cut_for": "the coordinator's"},
)
"""Beside it: what became of the last order to cut it."""
CONFIRMATION = Writer(agent_pb2.SliceReport, SliceReport)
HIT = Writer(agent_pb2.LeaseHit, LeaseHit)
CARE_RESULT = Writer(
    types_pb2.CareResult,
    CareResult,
    {
        "number": lambda _, number: number,
        "copies": lambda result, _: [
            types_pb2.CopyRate(uuid=uuid, mb_per_s=rate) for uuid, rate in result.copy_mb_s.items()
        ],
    },
)
"""Beside it: the order's number."""
SPEC = Reader(
    agent_pb2.DesiredSlice,
    SliceSpec,
    {
        "min_tier": lambda entry, _: _tier(entry.min_tier),
        "serve": lambda entry, _: "" if entry.serve in _NOT_SERVED else HOST_NAMES.get(entry.serve, UNKNOWN_HOST),
        # One that is newer than this agent is the plain one: its programs are told in any case.
        "stop_signal": lambda entry, _: entry.stop_signal if entry.stop_signal in STOP_SIGNALS else DEFAULT_STOP_SIGNAL,
    },
    left_out={
        "state": "the order's",
        "reason": "the order's",
        "stop_signal": "its rule reads it: a word of a newer coordinator is the plain signal",
    },
)


def care_from_wire(message: agent_pb2.Care) -> CareOrder | None:
    """An order about sick cards; None for one that this agent does not know."""
    if int(message.action) not in (Remedy.RESET, Remedy.REBOOT, Remedy.VERIFY):
        return None
    return CareOrder(message.number, Remedy(message.action), tuple(message.uuids[:MAX_CARDS]), message.reason)


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


def cut_from_wire(message: agent_pb2.Cut) -> CutOrder:
    """An order to cut a card."""
    parts = sorted(Part(part.start, part.profile) for part in message.parts)
    return CutOrder(message.number, message.card_uuid, tuple(parts), message.reason)


def batch_from_wire(message: agent_pb2.Desired) -> tuple[Batch, list[str]]:
    """An order, and complaints about entries that can't be read: those are left out, the others obeyed."""
    orders: list[Order] = []
    complaints: list[str] = []
    for entry in message.slices:
        problem = _problem(entry)
        if problem:
            complaints.append(problem)
            continue
        orders.append(Order(SPEC.read(entry), stop=entry.state == agent_pb2.DESIRED_STATE_STOP, reason=entry.reason))
    batch = Batch(
        leader_epoch=message.leader_epoch,
        session_epoch=message.session_epoch,
        full=message.full,
        orders=tuple(orders),
        settled=tuple(message.settled),
    )
    return batch, complaints


def overtime_from_wire(entries: Iterable[agent_pb2.TenantOvertime], now_ms: int) -> dict[str, Seen]:
    """What others saw of tenants, on this machine's monotonic clock."""
    return {
        entry.tenant: Seen(
            joined((now_ms - span.began_ago_ms, now_ms - span.ended_ago_ms) for span in entry.spans[-SPANS_MAX:]),
            now_ms - entry.killed_ago_ms if entry.HasField("killed_ago_ms") else None,
        )
        for entry in entries
    }


def overtime_to_wire(overtime: Mapping[str, Seen], now_ms: int) -> list[agent_pb2.TenantOvertime]:
    """What this agent saw of tenants: clocks of machines differ, so by how long ago it was."""
    return [
        agent_pb2.TenantOvertime(
            tenant=tenant,
            spans=[
                agent_pb2.Overspan(began_ago_ms=now_ms - begin_ms, ended_ago_ms=now_ms - end_ms)
                for begin_ms, end_ms in seen.spans[-SPANS_MAX:]
            ],
            killed_ago_ms=None if seen.killed_ms is None else now_ms - seen.killed_ms,
        )
        for tenant, seen in overtime.items()
    ]


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


def _tier(number: int) -> Tier | None:
    """A minimum tier; None for "any". One that is newer than this agent is above all that it can offer."""
    if number == 0:
        return None
    return Tier(min(number, max(Tier)))
