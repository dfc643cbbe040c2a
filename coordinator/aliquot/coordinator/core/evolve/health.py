"""How incidents change the State: the incidents themselves, the devices that they cover, and what agents are to do."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from aliquot.common.signs import Remedy
from aliquot.coordinator.core.books.health.cover import classes_of, devices_on
from aliquot.coordinator.core.books.health.records import (
    HITS_KEPT,
    HOUR_MS,
    INTERVAL_BOUNDS_S,
    LINKS,
    ORDERED,
    OUT,
    PAST_KEPT,
    PAST_MS,
    REPAIR_BOUNDS_S,
    Buckets,
    CareOrder,
    CauseTotals,
    CopiesMeasured,
    CopyRate,
    Hit,
    Incident,
    IncidentClosed,
    IncidentMoved,
    IncidentOpened,
    LeaseTold,
    Past,
    RepairStart,
    Standing,
    Step,
    within,
)
from aliquot.coordinator.core.books.nodes import Device
from aliquot.coordinator.core.evolve import holds, saving
from aliquot.coordinator.core.evolve.counting import put_lease
from aliquot.coordinator.core.evolve.saving import Subject
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.fact import by_kind
from aliquot.coordinator.core.values.timers import Due
from aliquot.coordinator.core.values.types import UNKNOWN, Admits, NodeSpec

WARNINGS_KEPT = 8
LOOK_AGAIN_MS = 60_000
"""At a device whose signs are bad and that no incident covers."""


def _opened(state: State, fact: IncidentOpened) -> None:
    health = state.health
    joined = _absorb(state, fact.absorbs, fact.number, fact.at_ms)
    going_on = [incident.opened_ms for incident in joined if not incident.back_ms]
    incident = Incident(
        number=fact.number,
        cause=fact.cause,
        severity=fact.severity,
        remedy=fact.remedy,
        node_id=fact.node_id,
        units=fact.units,
        reason=fact.reason,
        opened_ms=min([fact.at_ms, *going_on]),
        state=Standing.QUARANTINED,
        since_ms=fact.at_ms,
        pool=fact.pool,
        model=fact.model,
        scope=fact.scope,
        by=fact.by,
        steps=(Step(fact.at_ms, Standing.QUARANTINED, fact.reason),),
        suspects=_suspects(fact, joined),
    )
    health.next_number = fact.number + 1
    if not going_on and not incident.planned:
        for unit in fact.units:
            last_ms = max((past.at_ms for past in health.past.get(unit, ()) if not past.action), default=0)
            if last_ms:
                health.intervals = health.intervals.add(fact.at_ms - last_ms, INTERVAL_BOUNDS_S)
            _remember(state, unit, Past(fact.at_ms, fact.cause))
    _put(state, None, incident)
    state.timers.add(fact.at_ms, Due.HEALTH, str(fact.number))


def _suspects(fact: IncidentOpened, joined: Iterable[Incident]) -> tuple[str, ...]:
    """Of which units it is known, or was when the incidents began that go on as this one, that something is wrong."""
    if not fact.suspect:
        return ()
    known = [unit for incident in joined for unit in (incident.suspects or incident.units)]
    return tuple(dict.fromkeys((fact.suspect, *known)))


def _moved(state: State, fact: IncidentMoved) -> None:
    _absorb(state, fact.absorbs, fact.number, fact.at_ms)
    old = state.health.incidents[fact.number]
    new = replace(
        old,
        state=fact.state,
        since_ms=fact.at_ms if fact.state is not old.state else old.since_ms,
        due_ms=fact.due_ms,
        order=fact.order or old.order,
        action=fact.action if fact.order else Remedy.NONE,
        remedy=fact.remedy,
        well_ms=(old.well_ms or fact.at_ms) if fact.well else 0,
        units=fact.units or old.units,
        steps=within(old.steps, Step(fact.at_ms, fact.state, fact.text)),
        suspects=old.suspects or (old.units if fact.units else ()),
        failed=fact.state is Standing.DRAINED if old.state is Standing.VERIFYING else old.failed,
    )
    if fact.state is Standing.REPAIRING:
        new = replace(new, tried=(*old.tried, fact.action)[-PAST_KEPT:], failed=False)
        _note_repair(state, new, fact)
    if fact.state is Standing.PROBATION and not old.back_ms:
        new = _back(state, new, fact.at_ms)
    _put(state, old, new)
    state.timers.add(max(fact.due_ms, fact.at_ms), Due.HEALTH, str(fact.number))


def _closed(state: State, fact: IncidentClosed) -> None:
    incident = state.health.incidents[fact.number]
    if fact.by:
        for unit in incident.units:
            state.health.past.pop(unit, None)  # whoever returns it answers for it: what was before counts no more
    if not incident.back_ms:
        incident = _back(state, incident, fact.at_ms)
    _finish(state, incident, fact.outcome, fact.at_ms)
    node = state.nodes.get(incident.node_id)
    for device in devices_on(node.spec, incident.units) if node is not None and fact.overrules else ():
        known = state.devices[device.uuid]
        put_device(state, device.uuid, replace(known, overruled=known.cause))


def _measured(state: State, fact: CopiesMeasured) -> None:
    for unit, mb_s in fact.copies:
        state.health.copies[unit] = CopyRate(fact.node_id, fact.model, mb_s)


def _told(state: State, fact: LeaseTold) -> None:
    lease = state.leases[fact.lease_id]
    if fact.text not in lease.warnings:
        warnings = (*lease.warnings, fact.text)[-WARNINGS_KEPT:]
        put_lease(state, replace(lease, warnings=warnings, seq=state.seq))
    if fact.hit:
        tenant = lease.request.tenant
        others = tuple(hit for hit in state.health.hits.get(fact.hit, ()) if hit.tenant != tenant)
        state.health.hits[fact.hit] = (*others, Hit(fact.at_ms, tenant))[-HITS_KEPT:]


def _absorb(state: State, numbers: Iterable[int], into: int, at_ms: int) -> list[Incident]:
    """Other incidents go on as part of this one; they count no time of their own any more."""
    joined = [state.health.incidents[number] for number in numbers]
    for incident in joined:
        _finish(state, incident, f"goes on as incident {into}", at_ms)
    return joined


def _back(state: State, incident: Incident, at_ms: int) -> Incident:
    """Its cards are in service again: how long that took is counted."""
    health = state.health
    out_ms = at_ms - incident.opened_ms
    known = health.totals.get(incident.cause, CauseTotals())
    health.totals[incident.cause] = CauseTotals(known.incidents + 1, known.out_ms + out_ms * len(incident.units))
    if not incident.planned:
        health.repairs = health.repairs.add(out_ms, REPAIR_BOUNDS_S)
    return replace(incident, back_ms=at_ms)


def _finish(state: State, incident: Incident, outcome: str, at_ms: int) -> None:
    step = Step(at_ms, Standing.HEALTHY, outcome)
    over = replace(
        incident,
        state=Standing.HEALTHY,
        since_ms=at_ms,
        closed_ms=at_ms,
        outcome=outcome,
        due_ms=0,
        action=Remedy.NONE,
        steps=within(incident.steps, step),
    )
    _put(state, state.health.incidents[incident.number], None)
    state.health.closed.append(over)


def _note_repair(state: State, incident: Incident, fact: IncidentMoved) -> None:
    starts = state.health.starts
    while starts and starts[0].at_ms <= fact.at_ms - HOUR_MS:
        starts.popleft()
    starts.append(RepairStart(fact.at_ms, incident.pool, incident.model, len(incident.units)))
    for unit in incident.units:
        _remember(state, unit, Past(fact.at_ms, incident.cause, fact.action))


def _remember(state: State, unit: str, past: Past) -> None:
    kept = (old for old in state.health.past.get(unit, ()) if old.at_ms > past.at_ms - PAST_MS)
    state.health.past[unit] = (*kept, past)[-PAST_KEPT:]


def _put(state: State, old: Incident | None, new: Incident | None) -> None:
    """Replace an incident that is open, and bring what follows from it up to date."""
    health = state.health
    if old is not None:
        _count(state, old, -1)
        del health.incidents[old.number]
        for unit in old.units:
            health.of_unit.pop(unit, None)
        if old.number in (numbers := health.bad_links.get(old.node_id, ())):
            left = tuple(number for number in numbers if number != old.number)
            if left:
                health.bad_links[old.node_id] = left
            else:
                del health.bad_links[old.node_id]
    if new is not None:
        health.incidents[new.number] = new
        enlist(state, new)
    known = new or old
    assert known is not None
    units = dict.fromkeys((*(old.units if old is not None else ()), *(new.units if new is not None else ())))
    node = state.nodes.get(known.node_id)
    if node is None:
        return
    care = tuple(order for order in node.care if order.incident != known.number)
    if new is not None and (order := order_of(new)) is not None:
        care = (*care, order)
    if care != node.care:
        state.nodes[known.node_id] = replace(node, care=care, seq=state.seq)
        state.touched.nodes[known.node_id] = None
    for device in devices_on(node.spec, units):
        stand(state, device.uuid)
    if known.cause in LINKS:
        restrict(state, node.spec)


def order_of(incident: Incident) -> CareOrder | None:
    """What the node's agent is to do for an incident now."""
    if incident.state not in ORDERED or not incident.action:
        return None
    why = f"incident {incident.number}: {incident.reason}"
    return CareOrder(incident.order, incident.number, incident.action, incident.units, why)


def enlist(state: State, incident: Incident) -> None:
    """Note an open incident in the indexes."""
    _count(state, incident, 1)
    if incident.cause in LINKS and incident.state in OUT:
        known = state.health.bad_links.get(incident.node_id, ())
        state.health.bad_links[incident.node_id] = tuple(sorted({*known, incident.number}))
    for unit in incident.units:
        state.health.of_unit[unit] = incident.number


def _count(state: State, incident: Incident, sign: int) -> None:
    health, key, units = state.health, (incident.pool, incident.model), sign * len(incident.units)
    for counter, states in ((health.out, OUT), (health.under_repair, ORDERED)):
        if incident.state in states:
            counter[key] += units
            if not counter[key]:
                del counter[key]


def standing_of(state: State, uuid: str) -> tuple[Standing, int]:
    """What incidents make of a device, and the one that does."""
    health = state.health
    spec = state.inventory.device_record(uuid).spec
    found = (Standing.HEALTHY, 0)
    for unit in (uuid, spec.parent_uuid):
        number = health.of_unit.get(unit, 0)
        if number and (not found[1] or found[0] not in OUT):
            found = (health.incidents[number].state, number)
    return found


def stand(state: State, uuid: str) -> None:
    """Bring a device's record in line with the incidents that cover it."""
    device = state.devices.get(uuid)
    if device is None:
        return
    standing, number = standing_of(state, uuid)
    if (device.standing, device.incident) != (standing, number):
        put_device(state, uuid, replace(device, standing=standing, incident=number))


def admits_of(state: State, uuid: str) -> Admits:
    """What incidents let be placed on a device that works."""
    record = state.inventory.device_record(uuid)
    for unit in (uuid, record.spec.parent_uuid):
        number = state.health.of_unit.get(unit, 0)
        if number and state.health.incidents[number].on_probation(unit):
            return Admits.PREEMPTIBLE
    numbers = state.health.bad_links.get(record.node_id, ())
    if not numbers or record.spec.nvlink_island == UNKNOWN:
        return Admits.ALL
    units = [unit for number in numbers for unit in state.health.incidents[number].units]
    bad = {device.nvlink_island for device in devices_on(state.inventory.node(record.node_id).spec, units)}
    return Admits.SINGLE if record.spec.nvlink_island in bad else Admits.ALL


def restrict(state: State, spec: NodeSpec) -> None:
    """Bring what the devices of a node admit in line with the incidents about its links."""
    for device in spec.devices:
        if state.inventory.device_record(device.uuid).admits is not admits_of(state, device.uuid):
            put_device(state, device.uuid, state.devices[device.uuid])


def refresh_device(state: State, uuid: str) -> None:
    """Have placement know of a device what the books say of it."""
    known = state.devices[uuid]
    state.inventory.set_device(
        uuid, foreign_bytes=known.foreign_bytes, healthy=known.usable, admits=admits_of(state, uuid)
    )


def put_device(state: State, uuid: str, device: Device) -> None:
    """A device has another record; perhaps more, or less, can be placed on it."""
    state.devices[uuid] = device
    refresh_device(state, uuid)
    state.touched.devices[uuid] = None
    state.capacity_version += 1
    state.node_touched(state.inventory.device_record(uuid).node_id)
    holds.look_at_device(state, uuid)
    state.free_capacity()


def watch_signs(state: State, uuid: str, device: Device) -> None:
    """Have a device looked at again whose agent names a cause and that no incident covers."""
    if device.sign is not None and not device.incident and not device.well:
        state.timers.add(state.now_ms + LOOK_AGAIN_MS, Due.HEALTH, uuid)


def describe(state: State, old: NodeSpec | None, new: NodeSpec | None) -> None:
    """A node came, was described anew, or went: count its cards."""
    cards = state.health.cards
    for key in classes_of(old) if old is not None else ():
        cards[key] -= 1
        if not cards[key]:
            del cards[key]
    for key in classes_of(new) if new is not None else ():
        cards[key] += 1


def forget_node(state: State, node_id: str, at_ms: int) -> None:
    """A node was removed: what was wrong with it is nobody's concern any more."""
    for unit in [unit for unit, known in state.health.copies.items() if known.node_id == node_id]:
        del state.health.copies[unit]
    for incident in [each for each in state.health.incidents.values() if each.node_id == node_id]:
        _finish(state, incident, "its node was removed", at_ms)


def index(state: State) -> None:
    """Derive the indexes from the books."""
    for node in state.nodes.values():
        describe(state, None, node.spec)
    for incident in state.health.incidents.values():
        enlist(state, incident)
        state.timers.add(max(incident.due_ms, state.now_ms), Due.HEALTH, str(incident.number))
    for uuid, device in state.devices.items():
        watch_signs(state, uuid, device)


def index_all(state: State) -> None:
    """Incidents, and what they make of devices."""
    index(state)
    for uuid in state.devices:
        refresh_device(state, uuid)


SUBJECT = Subject(
    name="health",
    apply=by_kind(_opened, _moved, _closed, _measured, _told),
    saves=(
        saving.records("incidents", Incident, "health.incidents", key="number"),
        saving.rows("incidents_closed", Incident, "health.closed"),
        saving.value("next_incident", int, "health.next_number", 1),
        saving.pairs("past", tuple[Past, ...], "health.past"),
        saving.rows("repair_starts", RepairStart, "health.starts"),
        saving.pairs("hits", tuple[Hit, ...], "health.hits"),
        saving.pairs("cause_totals", CauseTotals, "health.totals"),
        saving.pairs("copies", CopyRate, "health.copies"),
        saving.value("repair_times", Buckets, "health.repairs", Buckets()),
        saving.value("incident_intervals", Buckets, "health.intervals", Buckets()),
    ),
    index=index_all,
)
