"""How an incident goes on: leases are told and go, cards are repaired, tested, watched, and return by themselves.

Looked at in steps of one lease, so that a turn stays short however much runs on the cards. A look asks what is the
case, so one too many does no harm. Whatever an incident waits for, it is looked at again: nothing waits for one event.
"""

from __future__ import annotations

from aliquot.common.signs import Remedy, Scope, Severity
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.health.cover import cards_of, devices_on, leases_on
from aliquot.coordinator.core.books.health.records import (
    BY_HAND,
    CHECK,
    DAY_MS,
    ORDERED,
    PAST_MS,
    SUSPECTED,
    WORDS,
    CopiesMeasured,
    Incident,
    IncidentClosed,
    IncidentMoved,
    LeaseTold,
    Sign,
    Standing,
)
from aliquot.coordinator.core.books.leases.records import Lease, Slice
from aliquot.coordinator.core.books.nodes import Node
from aliquot.coordinator.core.commands.outcomes import NOTHING, Decision
from aliquot.coordinator.core.deciding import ending as lifecycle
from aliquot.coordinator.core.deciding import moving
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.rules.health import (
    covered,
    covering_of,
    judge,
    kind_of,
    look_soon,
    may_repair,
    open_incident,
    too_slow,
)
from aliquot.coordinator.core.values.errors import CardInUse, DeviceNotFound, StillUnwell
from aliquot.coordinator.core.values.fact import Fact, by_kind
from aliquot.coordinator.core.values.timers import Due
from aliquot.coordinator.core.values.types import DeviceSpec, NodeState

NUMBERS_A_MS = 1024
"""Numbers of orders that a millisecond has: one for each card of a node."""

SUSPECTS = 2
"""Tenants whose programs failed on one card within a day: then it may be the card."""


def look(known: Known, subject: str, now_ms: int) -> list[Fact]:
    """What is due of an incident, or of a device whose signs are bad."""
    if not subject.isdecimal():
        return _look_at_device(known, subject, now_ms)
    incident = known.health.incidents.get(int(subject))
    if incident is None:
        return []
    node = known.nodes[incident.node_id]
    match incident.state:
        case Standing.QUARANTINED:
            return _empty(known, node, incident, now_ms)
        case Standing.DRAINED:
            return _go_on(known, node, incident, now_ms)
        case Standing.REPAIRING | Standing.VERIFYING:
            return _wait_for_agent(known, node, incident, now_ms)
        case Standing.PROBATION if now_ms >= incident.due_ms:
            return [IncidentClosed(now_ms, incident.number, "well through its probation")]
        case Standing.PROBATION:
            look_soon(known, incident.number, incident.due_ms)
    return []


def _look_at_device(known: Known, uuid: str, now_ms: int) -> list[Fact]:
    """Soft evidence that was put aside may be believed now."""
    old = known.devices.get(uuid)
    if old is None or old.sign is None or old.incident:
        return []
    record = known.inventory.device_record(uuid)
    facts = judge(known, known.nodes[record.node_id], record.spec, old.sign, now_ms)
    if not facts:
        known.memory.timers.add(now_ms + 60_000, Due.HEALTH, uuid)
    return facts


# -- quarantine


def _empty(known: Known, node: Node, incident: Incident, now_ms: int) -> list[Fact]:
    """Tell the leases, one a look; have those go that can't stay; then it is drained."""
    soft = incident.severity < Severity.FATAL
    returned = _returned(known, node, incident, now_ms) if soft and not incident.is_check else []
    if returned:
        return returned
    held = _held(known, node, incident)
    for lease_id, pieces in held.items():
        facts = _tell(known, incident, known.leases[lease_id], pieces, now_ms)
        if facts:
            look_soon(known, incident.number, now_ms)
            return facts
    if not held:
        return [_moved(incident, Standing.DRAINED, "nothing holds any of it", now_ms, well=bool(incident.well_ms))]
    _look_again(known, incident, now_ms)
    return []


def _held(known: Known, node: Node, incident: Incident) -> dict[str, list[Slice]]:
    devices = {device.uuid for device in devices_on(node.spec, incident.units)}
    return leases_on(known.leases, known.slice_ids_by_node[node.spec.node_id], devices)


def _tell(known: Known, incident: Incident, lease: Lease, pieces: list[Slice], now_ms: int) -> list[Fact]:
    where = ", ".join(sorted({piece.plan.device_uuid for piece in pieces}))
    text = f"incident {incident.number} on {where}: {incident.reason}"
    told: list[Fact] = []
    if not any(warning.startswith(f"incident {incident.number} ") for warning in lease.warnings):
        told.append(LeaseTold(now_ms, lease.lease_id, text))
    there = [piece for piece in pieces if piece in lease.current and not piece.ending]
    if not there:
        return told
    moved = moving.move_away(known, lease, f"card not well ({incident.reason})", now_ms, leaving=there)
    if moved is not None:
        return [*told, *moved]
    if incident.severity < Severity.FATAL:
        return told
    return [*told, *lifecycle.leave(known, lease, there, text, 0, now_ms)]


# -- drained


def _go_on(known: Known, node: Node, incident: Incident, now_ms: int) -> list[Fact]:
    """What comes next for cards that nothing holds: they are well again, are repaired, or wait for somebody."""
    returned = _returned(known, node, incident, now_ms)
    if returned:
        return returned
    if _held(known, node, incident):
        return [_moved(incident, Standing.QUARANTINED, "something holds some of it again", now_ms)]
    if incident.remedy is Remedy.SERVICE:
        return [_to_service(incident, "a person has to look at it", now_ms)]
    if incident.remedy in (Remedy.RESET, Remedy.REBOOT):
        return _repair(known, node, incident, now_ms)
    _look_again(known, incident, now_ms)
    return []


def _repair(known: Known, node: Node, incident: Incident, now_ms: int) -> list[Fact]:
    repairs = [
        sum(
            past.action is not Remedy.NONE and past.cause == incident.cause and past.at_ms > now_ms - PAST_MS
            for past in known.health.past.get(unit, ())
        )
        for unit in incident.units
    ]
    if max(repairs, default=0) >= known.config.repairs_max and not incident.tried:
        return [_to_service(incident, f"repaired {max(repairs)} times of this within seven days", now_ms)]
    if WORDS[incident.remedy] not in node.spec.remedies or node.state is not NodeState.READY:
        _look_again(known, incident, now_ms)
        return []
    if incident.remedy is Remedy.REBOOT and (wider := _all_of(node, incident)):
        return [_widened(known, node, incident, wider, "all of its node goes, because that is to be restarted", now_ms)]
    if may_repair(known, incident, now_ms):
        _look_again(known, incident, now_ms)
        return []
    reset = incident.remedy is Remedy.RESET
    due_ms = now_ms + (known.config.reset_timeout_ms if reset else known.config.reboot_timeout_ms)
    text = f"its agent is told to {WORDS[incident.remedy]}"
    return [_ordered(incident, Standing.REPAIRING, incident.remedy, text, due_ms, now_ms)]


def _all_of(node: Node, incident: Incident) -> tuple[str, ...]:
    """All cards of a node, where the incident does not cover them yet."""
    cards = dict.fromkeys((*incident.units, *cards_of(node.spec)))
    instances = {device.uuid for device in node.spec.devices if device.parent_uuid}
    whole = tuple(unit for unit in cards if unit not in instances)
    return whole if set(whole) - set(incident.units) else ()


def _widened(
    known: Known, node: Node, incident: Incident, units: tuple[str, ...], text: str, now_ms: int
) -> IncidentMoved:
    absorbs = covered(known, node.spec, units, but=incident.number)
    return IncidentMoved(
        now_ms, incident.number, Standing.QUARANTINED, text, remedy=Remedy.REBOOT, units=units, absorbs=absorbs
    )


# -- orders


def _wait_for_agent(known: Known, node: Node, incident: Incident, now_ms: int) -> list[Fact]:
    """An order that nobody answers is given up, once the agent could have answered."""
    if now_ms < incident.due_ms:
        look_soon(known, incident.number, incident.due_ms)
        return []
    if node.state is not NodeState.READY:
        _look_again(known, incident, now_ms)  # its agent will say at its return what became of it
        return []
    return _failed(known, node, incident, "its agent has not answered in time", now_ms)


def report_care(known: Known, command: c.ReportCare, now_ms: int) -> Decision[None]:
    """An agent says what became of an order. Ignored where that order is not under way."""
    node = known.nodes.get(command.node_id)
    if node is None or node.session_epoch != command.session_epoch:
        return NOTHING
    for order in node.care:
        incident = known.health.incidents[order.incident]
        if order.number == command.number:
            if command.problem:
                return Decision(tuple(_failed(known, node, incident, command.problem, now_ms, command.story)))
            return Decision(tuple(_succeeded(known, node, incident, command, now_ms)))
    return NOTHING


def _succeeded(known: Known, node: Node, incident: Incident, said: c.ReportCare, now_ms: int) -> list[Fact]:
    story = said.story
    if incident.state is Standing.REPAIRING:
        done = f"its agent has done the {WORDS[incident.action]}"
        if WORDS[Remedy.VERIFY] not in node.spec.remedies and not _is_well(known, node, incident):
            return _failed(known, node, incident, "its signs are as bad as before", now_ms, story)
        return [_verified(known, node, incident, f"{done}: {story}" if story else done, now_ms)]
    if not _is_well(known, node, incident):
        return _failed(known, node, incident, "it passed, but its signs are bad", now_ms, story)
    copies = tuple(each for each in said.copies if each[0] in incident.units)
    for unit, mb_s in copies:
        if slow := too_slow(known, node, unit, mb_s):
            return _failed(known, node, incident, slow, now_ms, story)
    return [*_measured(node, copies, now_ms), _passed(known, incident, story, now_ms)]


def _passed(known: Known, incident: Incident, story: str, now_ms: int) -> Fact:
    text = f"verified: {story}" if story else "verified"
    if incident.tried or incident.severity is Severity.FATAL:
        return _moved(incident, Standing.PROBATION, text, now_ms, due_ms=now_ms + known.config.probation_ms)
    return IncidentClosed(now_ms, incident.number, text)


def _measured(node: Node, copies: tuple[tuple[str, int], ...], now_ms: int) -> list[Fact]:
    of: dict[str, list[tuple[str, int]]] = {}
    for unit, mb_s in copies:
        of.setdefault(kind_of(node.spec, unit), []).append((unit, mb_s))
    return [CopiesMeasured(now_ms, node.spec.node_id, kind, tuple(found)) for kind, found in sorted(of.items())]


def _verified(known: Known, node: Node, incident: Incident, text: str, now_ms: int) -> Fact:
    """The test that comes before service; where its agent has none, the cards are watched instead."""
    if WORDS[Remedy.VERIFY] in node.spec.remedies:
        due_ms = now_ms + known.config.verify_timeout_ms
        return _ordered(incident, Standing.VERIFYING, Remedy.VERIFY, text, due_ms, now_ms)
    return _moved(incident, Standing.PROBATION, text, now_ms, due_ms=now_ms + known.config.probation_ms)


def _failed(known: Known, node: Node, incident: Incident, problem: str, now_ms: int, story: str = "") -> list[Fact]:
    """The next rung of the ladder: reset, restart, a person."""
    what = "verification" if incident.state is Standing.VERIFYING else WORDS[incident.action]
    text = f"{what} failed: {problem}" + (f" ({story})" if story else "")
    rungs = (Remedy.RESET, Remedy.REBOOT)
    for rung in rungs:
        if rung in incident.tried or rung < incident.remedy or WORDS[rung] not in node.spec.remedies:
            continue
        if rung < max(incident.tried, default=Remedy.NONE):
            continue
        return [_moved(incident, Standing.DRAINED, text, now_ms, remedy=rung)]
    return [_to_service(incident, text, now_ms)]


# -- back into service


def _returned(known: Known, node: Node, incident: Incident, now_ms: int) -> list[Fact]:
    """Facts for an incident whose signs are good (again): it is over, or is tested first, or must rest for a while."""
    if incident.by or incident.failed or not _is_well(known, node, incident):
        return []
    if not incident.well_ms:
        text = "nothing is known to be wrong with it" if incident.is_check else "its signs are good again"
        return [_moved(incident, incident.state, text, now_ms, remedy=incident.remedy, well=True)]
    rest_ms = _rest_ms(known, incident, now_ms)
    if now_ms < incident.well_ms + rest_ms:
        look_soon(known, incident.number, incident.well_ms + rest_ms)
        return []
    if incident.severity < Severity.FATAL and not incident.is_check:
        return [IncidentClosed(now_ms, incident.number, "its signs stayed good")]
    if node.state is not NodeState.READY:
        return []
    return [_verified(known, node, incident, "its signs stayed good", now_ms)]


def _is_well(known: Known, node: Node, incident: Incident) -> bool:
    """Whether all that it covers is there, and its agent has nothing to say against any of it."""
    devices = devices_on(node.spec, incident.units)
    there = {unit for device in devices for unit in (device.uuid, device.parent_uuid)}
    there |= {card.uuid for card in node.spec.cards}
    return there.issuperset(incident.units) and all(known.devices[device.uuid].well for device in devices)


def _rest_ms(known: Known, incident: Incident, now_ms: int) -> int:
    """How long it must have been well: a card that flaps is out for longer each time."""
    earlier = max(
        sum(
            past.cause == incident.cause and past.action is Remedy.NONE and past.at_ms > now_ms - DAY_MS
            for past in known.health.past.get(unit, ())
        )
        for unit in incident.units
    )
    if earlier < 2 or incident.is_check:  # the first of them is this one
        return 0
    return min(known.config.flap_rest_ms << min(earlier - 2, 16), known.config.flap_rest_max_ms)


# -- by hand


def quarantine(known: Known, command: c.QuarantineDevice, now_ms: int) -> Decision[None]:
    """Somebody takes a card out of service, until it is returned."""
    node, device = _named(known, command.uuid)
    covering = covering_of(known, device)
    if covering is not None and covering.by and (covering.severity is Severity.FATAL or not command.drain):
        return NOTHING
    severity = Severity.FATAL if command.drain else Severity.DEGRADED
    reason = command.reason or "quarantined by hand"
    sign = Sign(BY_HAND, severity, Scope.CARD, Remedy.NONE, reason)
    return Decision(tuple(open_incident(known, node, device, sign, now_ms, by=command.by or "somebody")))


def verify(known: Known, command: c.VerifyDevice, now_ms: int) -> Decision[None]:
    """Somebody has a card tested: once nothing holds it, where it is in service."""
    node, device = _named(known, command.uuid)
    if WORDS[Remedy.VERIFY] not in node.spec.remedies:
        raise CardInUse(
            f"the agent of node {node.spec.name} can't test cards",
            hint="update that agent; `aliquot device return` takes the card back into service untested",
        )
    incident = covering_of(known, device)
    if incident is None or incident.state is Standing.PROBATION:
        sign = Sign(CHECK, Severity.DEGRADED, Scope.CARD, Remedy.NONE, command.reason or "to be tested")
        return Decision(tuple(open_incident(known, node, device, sign, now_ms, believed=True)))
    if incident.state in ORDERED:
        return NOTHING
    if held := _held(known, node, incident):
        raise CardInUse(
            f"{len(held)} leases still hold some of what incident {incident.number} covers",
            hint="wait for their ends, or end them (`aliquot device quarantine --drain`)",
        )
    return Decision((_verified(known, node, incident, f"asked for by {command.by or 'somebody'}", now_ms),))


def give_back(known: Known, command: c.ReturnDevice, now_ms: int) -> Decision[None]:
    """Somebody takes a card back into service. What was before counts no more."""
    node, device = _named(known, command.uuid)
    incident = covering_of(known, device)
    covered = devices_on(node.spec, incident.units) if incident is not None else (device,)
    unwell = [each for each in covered if not known.devices[each.uuid].well]
    unwell.sort(key=lambda each: bool(known.devices[each.uuid].cause))  # those first that nobody can overrule
    said = [f"{each.uuid} is not well: {known.devices[each.uuid].reason}" for each in unwell]
    if unwell and not known.devices[unwell[0].uuid].cause:
        raise StillUnwell(
            said[0],
            hint="it returns by itself when its agent can use it again. Nobody can answer for that: the agent names no "
            "fault of the card, but can't reach it, or can't hold a limit on it",
        )
    if incident is None:
        return NOTHING
    if said and not command.overrule:
        raise StillUnwell(
            said[0],
            hint="it returns by itself when that is over; `aliquot health` shows what it waits for. "
            "`aliquot device return --overrule` takes it back although its agent says so",
        )
    by = command.by or "somebody"
    outcome = f"returned by {by}" + (f": {command.reason}" if command.reason else "")
    outcome = f"{outcome}; overruled: {said[0]}" if said else outcome
    return Decision((IncidentClosed(now_ms, incident.number, outcome, by, overrules=bool(said)),))


def _named(known: Known, uuid: str) -> tuple[Node, DeviceSpec]:
    """A device by its UUID, or by that of its card. Raises DeviceNotFound."""
    if uuid in known.devices:
        record = known.inventory.device_record(uuid)
        return known.nodes[record.node_id], record.spec
    for node in known.nodes.values():
        for device in node.spec.devices:
            if device.parent_uuid == uuid:
                return node, device
    raise DeviceNotFound(f"there is no device {uuid[:64]!r}", hint="`aliquot nodes --devices` lists those there are")


# -- what hits leases


def report_hit(known: Known, command: c.ReportHit, now_ms: int) -> Decision[None]:
    """A fault on a card is one lease's: its holder is told. Where several tenants' are hit, it may be the card."""
    node = known.nodes.get(command.node_id)
    lease = known.leases.get(command.lease_id)
    if node is None or node.session_epoch != command.session_epoch or lease is None or lease.ended:
        return NOTHING
    spec = next((device for device in node.spec.devices if command.uuid in (device.uuid, device.parent_uuid)), None)
    on_node = any(piece.plan.node_id == command.node_id for piece in lease.slices)
    if spec is None or not on_node:
        return NOTHING
    unit = spec.parent_uuid or spec.uuid
    tenant = lease.request.tenant
    recent = [hit for hit in known.health.hits.get(unit, ()) if hit.at_ms > now_ms - DAY_MS]
    news = command.suspicious and all(hit.tenant != tenant for hit in recent)
    facts: list[Fact] = []
    if news or command.text not in lease.warnings:
        facts.append(LeaseTold(now_ms, lease.lease_id, command.text, unit if command.suspicious else ""))
    others = {hit.tenant for hit in recent} - {tenant}
    suspected = news and len(others) + 1 >= SUSPECTS and WORDS[Remedy.VERIFY] in node.spec.remedies
    if suspected and covering_of(known, spec) is None:
        reason = f"programs of {len(others) + 1} tenants failed on it within a day"
        sign = Sign(SUSPECTED, Severity.DEGRADED, Scope.CARD, Remedy.NONE, reason)
        facts += open_incident(known, node, spec, sign, now_ms)
    return Decision(tuple(facts))


# -- facts


def _moved(
    incident: Incident,
    target: Standing,
    text: str,
    now_ms: int,
    *,
    due_ms: int = 0,
    remedy: Remedy | None = None,
    well: bool = False,
) -> IncidentMoved:
    kept = incident.remedy if remedy is None else remedy
    return IncidentMoved(now_ms, incident.number, target, text, due_ms=due_ms, remedy=kept, well=well)


def _to_service(incident: Incident, text: str, now_ms: int) -> IncidentMoved:
    return _moved(incident, Standing.SERVICE, text, now_ms, remedy=Remedy.SERVICE)


def _ordered(
    incident: Incident, target: Standing, action: Remedy, text: str, due_ms: int, now_ms: int
) -> IncidentMoved:
    # Also above the numbers of orders from before the books were begun anew, and never that of another card of the
    # node: an agent carries each number out once.
    number = max(now_ms * NUMBERS_A_MS + incident.number % NUMBERS_A_MS, incident.order + NUMBERS_A_MS)
    return IncidentMoved(now_ms, incident.number, target, text, due_ms, number, action, remedy=incident.remedy)


def _look_again(known: Known, incident: Incident, now_ms: int) -> None:
    look_soon(known, incident.number, now_ms + known.config.health_look_ms)


DECIDES = Decides(commands=by_kind(report_care, report_hit, quarantine, verify, give_back), due={Due.HEALTH: look})
