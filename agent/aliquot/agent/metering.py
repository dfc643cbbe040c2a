"""Reads a card's counter of energy for the slices on it, after each look at how busy it is."""

from __future__ import annotations

from msgspec.structs import replace

from aliquot.agent.core.accounting import SliceUsage
from aliquot.agent.core.energy import Meter, Part
from aliquot.agent.state import DeviceState, NodeState
from aliquot.agent.wire import slice_percent


def read_energy(state: NodeState, device: DeviceState, now_ms: int) -> None:
    """A device's load was read: add to what the slices on its card have drawn."""
    card = device.info.physical_uuid
    if device.load.energy_mj is None and card not in state.meters:
        return
    meter = state.meters.setdefault(card, Meter())
    parts: dict[str, Part] = {}
    others_milli: int | None = 0
    for each in state.devices.values():
        if each.info.physical_uuid != card or each.usage is None:
            continue
        for piece in each.usage.slices:
            record = state.book.get(piece.reservation.slice_id)
            if record is not None and record.holds:
                parts[record.slice_id] = Part(record.spec.share_milli, _busy_milli(each, piece))
        if each.usage.foreign or each.usage.strays:
            told = each.process_percent or {}
            mine = sum(told.get(use.pid, 0) for piece in each.usage.slices for use in piece.uses)
            known = others_milli is not None and each.process_percent is not None
            others_milli = (others_milli or 0) + 10 * (sum(told.values()) - mine) if known else None
    for slice_id, drawn_mj in meter.take(device.load.energy_mj, now_ms, parts, others_milli).items():
        actual = state.actual_of(slice_id)
        state.actual[slice_id] = replace(actual, energy_mj=(actual.energy_mj or 0) + drawn_mj)
    device.mean_power_mw = meter.mean_power_mw if not device.info.parent_uuid else None


def _busy_milli(device: DeviceState, piece: SliceUsage) -> int | None:
    """How much of its card's time a slice's programs used of late, in thousandths."""
    if (percent := slice_percent(device, piece)) is not None:
        return percent * device.info.compute_milli // 100
    if piece.complete and not piece.uses:
        return 0
    sm = device.load.engines.sm if device.load.engines is not None else None
    alone = device.usage is not None and len(device.usage.slices) == 1
    return sm * device.info.compute_milli // 100 if sm is not None and alone else None
