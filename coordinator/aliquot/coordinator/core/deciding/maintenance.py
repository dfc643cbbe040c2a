"""Maintenance windows: declared, withdrawn, and carried through when their time comes.

What is due is looked at in steps of one lease, so that a turn stays short however much runs on the nodes of a window.
"""

from __future__ import annotations

from datetime import timedelta

from msgspec.structs import replace

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import lease_id_of
from aliquot.coordinator.core.books.maintenance import (
    MaintenanceDeclared,
    MaintenanceEnded,
    MaintenanceMoved,
    Occurrence,
    Phase,
    Window,
    WindowSpec,
    moved_on,
    next_occurrence,
    shown,
    wall_time,
    zone_of,
)
from aliquot.coordinator.core.commands.outcomes import NOTHING, Decision
from aliquot.coordinator.core.deciding import moving
from aliquot.coordinator.core.deciding.nodes import drain_lease
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.values.errors import InvalidField, MaintenanceExists, MaintenanceNotFound
from aliquot.coordinator.core.values.fact import Fact, by_kind
from aliquot.coordinator.core.values.timers import Due

WINDOWS_MAX = 1_000
NODES_NAMED_MAX = 1_000
LASTING_MAX = timedelta(days=92)
WEEK = timedelta(days=7)
LEAD_MS_MAX = 31 * 86_400_000
AHEAD_MS_MAX = 10 * 366 * 86_400_000
LOOK_AGAIN_MS = 5_000
"""While leases end on nodes under maintenance: one that was to be preempted may have been reprieved since."""


def declare(known: Known, command: c.DeclareMaintenance, now_ms: int) -> Decision[None]:
    """Declare a window. If it has begun already, the next ticks carry it out."""
    spec = command.spec
    spec = replace(spec, node_ids=tuple(sorted({known.node(name).spec.node_id for name in spec.node_ids})))
    old = known.windows.get(spec.name)
    if old is not None:
        if old.spec == spec:
            return NOTHING
        raise MaintenanceExists(
            f"there is a maintenance window {spec.name!r} already, and it is another one",
            hint="give this one another name, or remove the old one first (`aliquot maintenance rm`)",
        )
    if len(known.windows) >= WINDOWS_MAX:
        raise InvalidField("name", f"there are {WINDOWS_MAX} windows, which is the bound", hint="remove some")
    held = _checked(spec, now_ms)
    phase = held.phase(spec.lead_ms, now_ms)
    assert phase is not None
    return Decision((MaintenanceDeclared(now_ms, spec, phase, held.starts_ms, held.ends_ms),))


def _checked(spec: WindowSpec, now_ms: int) -> Occurrence:
    if not (spec.node_ids or spec.labels or spec.pool):
        raise InvalidField("node_ids", "no nodes are named", hint="name nodes, labels that they have, or a pool")
    if len(spec.node_ids) > NODES_NAMED_MAX:
        raise InvalidField("node_ids", f"{len(spec.node_ids)} nodes; at most {NODES_NAMED_MAX}", hint="use a label")
    if spec.lead_ms > LEAD_MS_MAX:
        raise InvalidField("lead_s", f"{spec.lead_ms // 1000} s; at most {LEAD_MS_MAX // 1000}")
    try:
        zone_of(spec.zone)
    except ValueError as error:
        hint = (
            "a name of the IANA database, such as Europe/Berlin, or UTC; the coordinator's machine must have its data"
        )
        raise InvalidField("zone", str(error), hint=hint) from error
    walls = []
    for field, text in (("start", spec.start), ("end", spec.end)):
        try:
            walls.append(wall_time(text))
        except ValueError as error:
            raise InvalidField(field, f"{text!r} is no time on a clock: {error}", hint="2026-11-28T22:00") from error
    start, end = walls
    if not start < end:
        raise InvalidField("end", f"{spec.end} is not after {spec.start}")
    if spec.weekly and end - start >= WEEK:
        raise InvalidField("end", "a weekly window must be over before it begins again", hint="less than seven days")
    if end - start > LASTING_MAX:
        raise InvalidField("end", f"a window lasts {LASTING_MAX.days} days at most", hint="cordon and drain the nodes")
    try:
        held = next_occurrence(spec, now_ms)
    except OverflowError as error:
        raise InvalidField("start", f"{spec.start} is too far away") from error
    if held is None:
        raise InvalidField("end", f"the window is over already, or has no length in {spec.zone}")
    if held.starts_ms > now_ms + AHEAD_MS_MAX:
        raise InvalidField("start", f"{spec.start} is more than ten years away")
    return held


def end(known: Known, command: c.EndMaintenance, now_ms: int) -> Decision[None]:
    """Withdraw a window. Leases that are already ending for it end."""
    _named(known, command.name)
    return Decision((MaintenanceEnded(now_ms, command.name, "withdrawn"),))


def _named(known: Known, name: str) -> Window:
    window = known.windows.get(name)
    if window is None:
        raise MaintenanceNotFound(
            f"there is no maintenance window {name[:64]!r}", hint="`aliquot maintenance ls` lists those there are"
        )
    return window


def look(known: Known, name: str, now_ms: int) -> list[Fact]:
    """What is due of a window: its next phase, or one lease that is told to go."""
    window = known.windows.get(name)
    if window is None:
        return []
    held = Occurrence(window.starts_ms, window.ends_ms)
    phase = held.phase(window.spec.lead_ms, now_ms)
    if phase is None:
        following = moved_on(window, now_ms)
        if following is None:
            return [MaintenanceEnded(now_ms, name, "over")]
        held, phase = following, following.phase(window.spec.lead_ms, now_ms)
        if phase is None:
            return [MaintenanceEnded(now_ms, name, "over")]
    if held != (window.starts_ms, window.ends_ms) or phase is not window.phase:
        return [MaintenanceMoved(now_ms, name, phase, held.starts_ms, held.ends_ms)]
    return _empty(known, window, now_ms) if phase is Phase.OPEN else []


def _empty(known: Known, window: Window, now_ms: int) -> list[Fact]:
    """Facts that send one lease away from a node of the window, or none where all were told to go."""
    again = False
    for node_id in known.emptying:
        node = known.nodes[node_id]
        if node.closure is None or node.closure.window != window.spec.name:
            continue
        slice_ids = known.slice_ids_by_node[node_id]
        again = True
        why = f"maintenance until {shown(window.ends_ms)} (window {window.spec.name})"
        for lease_id in dict.fromkeys(map(lease_id_of, slice_ids)):
            lease = known.leases[lease_id]
            if not any(piece.plan.node_id == node_id and not piece.ending for piece in lease.current):
                continue
            there = [piece for piece in lease.current if piece.plan.node_id == node_id]
            moved_for = f"{why} of node {node.spec.name}"
            facts = moving.move_away(known, lease, moved_for, now_ms, leaving=there) or drain_lease(
                known, lease, node_id, f"node {node.spec.name} is under {why}", window.spec.grace_ms, now_ms
            )
            if facts:
                known.memory.timers.add(now_ms, Due.MAINTENANCE, window.spec.name)
                return facts
    if again:
        known.memory.timers.add(now_ms + LOOK_AGAIN_MS, Due.MAINTENANCE, window.spec.name)
    return []


DECIDES = Decides(commands=by_kind(declare, end), due={Due.MAINTENANCE: look})
