"""What becomes of a sign: an incident, part of one that is open, or (where too much is out already) nothing yet."""

from __future__ import annotations

from collections.abc import Iterable

from aliquot.common.signs import Remedy, Scope, Severity
from aliquot.coordinator.core.books.health.cover import cards_of, devices_on, units_of
from aliquot.coordinator.core.books.health.records import (
    HOUR_MS,
    ORDERED,
    OUT,
    VANISHED,
    Incident,
    IncidentMoved,
    IncidentOpened,
    Sign,
    Standing,
)
from aliquot.coordinator.core.books.nodes import Node
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.timers import Due
from aliquot.coordinator.core.values.types import DeviceSpec, NodeSpec

# --------------------
# How much of the pool may be under automatic repair at once: a fault of the monitoring, or of a driver's version,
# looks like a fault of every card. Above the bound, soft evidence takes no more cards out of service and no further
# repair begins. Hard evidence goes on, and so do recoveries: what is well again returns whatever the state of the
# breaker.


def may_repair(known: Known, incident: Incident, now_ms: int) -> str:
    """Why no repair may begin now; empty: one may."""
    key = (incident.pool, incident.model)
    cards = known.health.cards.get(key, 0)
    units = len(incident.units)
    config = known.config
    at_once = max(1, cards * config.repairs_at_once_permille // 1000)
    busy = known.health.under_repair.get(key, 0)
    # What one incident covers is repaired together, even where that is more than the bound.
    if busy and busy + units > at_once:
        return (
            f"{busy} of {cards} {incident.model} in pool {incident.pool} are being repaired; at most {at_once} at once"
        )
    an_hour = max(1, cards * config.repairs_an_hour_permille // 1000)
    lately = sum(
        start.units
        for start in known.health.starts
        if start.at_ms > now_ms - HOUR_MS and (start.pool, start.model) == key
    )
    if lately and lately + units > an_hour:
        return f"{lately} of {cards} {incident.model} in pool {incident.pool} were repaired within the hour"
    return ""


def believes_soft(known: Known, pool: str, model: str, units: int) -> bool:
    """Whether soft evidence may still take cards out of service."""
    cards = known.health.cards.get((pool, model), 0)
    most = max(1, cards * known.config.soft_out_permille // 1000)
    return known.health.out.get((pool, model), 0) + units <= most


# --------------------
# Whether a card copies as fast as others of its kind: worn or throttled memory is slow before it is wrong. Rates
# are those within a card's own memory, so that nothing depends on the node. A card is compared with the median of
# others of its kind that passed their tests; of fewer than `OTHERS_MIN` nothing follows.


OTHERS_MIN = 3
LEAST_PERMILLE = 800
"""Of the median."""


def kind_of(spec: NodeSpec, unit: str) -> str:
    """The model of a card, or the model and profile of an instance."""
    device = next(iter(devices_on(spec, (unit,))), None)
    if device is None:
        return ""
    return f"{device.model} {device.mig_profile}" if device.uuid == unit and device.mig_profile else device.model


def too_slow(known: Known, node: Node, unit: str, mb_s: int) -> str:
    """Why this is too slow; empty: it is not, or nobody knows."""
    kind = kind_of(node.spec, unit)
    others = sorted(rate.mb_s for other, rate in known.health.copies.items() if rate.model == kind and other != unit)
    if not kind or len(others) < OTHERS_MIN:
        return ""
    median = others[len(others) // 2]
    if mb_s * 1000 >= median * LEAST_PERMILLE:
        return ""
    return (
        f"{unit} copies {mb_s / 1000:.1f} GB/s within itself; the median of {len(others)} {kind} is {median / 1000:.1f}"
    )


def judge(known: Known, node: Node, device: DeviceSpec, sign: Sign | None, now_ms: int) -> list[Fact]:
    """What follows from what an agent says of a device now; `sign` None: nothing is wrong with it."""
    covering = covering_of(known, device)
    if sign is not None and sign.cause == known.devices[device.uuid].overruled:
        return []
    if sign is None:
        if covering is not None:
            look_soon(known, covering.number, now_ms)
        return []
    if covering is None:
        return open_incident(known, node, device, sign, now_ms)
    if covering.state is Standing.PROBATION:
        return open_incident(known, node, device, sign, now_ms, again="it relapsed: ")
    if covering.state in ORDERED or covering.state is Standing.SERVICE:
        return []  # what is done to it shows as signs, too
    if sign.severity > covering.severity or not set(units_of(node.spec, device, sign)) <= set(covering.units):
        return open_incident(known, node, device, sign, now_ms, again="it got worse: ")
    if covering.well_ms:
        text = f"its signs are bad again: {sign.reason}"
        return [IncidentMoved(now_ms, covering.number, covering.state, text, remedy=covering.remedy)]
    return []


def covering_of(known: Known, device: DeviceSpec) -> Incident | None:
    """The open incident that covers a device: one that keeps it out of service, before others."""
    found = [
        known.health.incidents[number]
        for unit in (device.uuid, device.parent_uuid)
        if (number := known.health.of_unit.get(unit, 0))
    ]
    return next((incident for incident in found if incident.state in OUT), found[0] if found else None)


def open_incident(
    known: Known,
    node: Node,
    device: DeviceSpec,
    sign: Sign,
    now_ms: int,
    *,
    again: str = "",
    by: str = "",
    believed: bool = False,
) -> list[Fact]:
    """Take what a sign covers out of service. Soft evidence that nobody has `believed` is put aside while too much is
    out already. An incident that somebody opened (`by`) is closed by hand.
    """
    if sign.severity < Severity.DEGRADED:
        return []
    units = units_of(node.spec, device, sign)
    soft = sign.severity is Severity.DEGRADED and not (by or believed)
    if soft and not believes_soft(known, node.spec.pool, device.model, len(units)):
        return []
    return [
        IncidentOpened(
            now_ms,
            known.health.next_number,
            sign.cause,
            sign.severity,
            sign.scope,
            sign.remedy,
            node.spec.node_id,
            units,
            again + (sign.reason or sign.cause),
            node.spec.pool,
            device.model,
            covered(known, node.spec, units),
            by,
            _suspect(device, units),
        )
    ]


def _suspect(device: DeviceSpec, units: tuple[str, ...]) -> str:
    """The unit that a sign is about, where more goes out of service for it."""
    if len(units) < 2:
        return ""
    return device.uuid if device.uuid in units else device.parent_uuid


def covered(known: Known, spec: NodeSpec, units: Iterable[str], but: int = 0) -> tuple[int, ...]:
    """The open incidents about any of these units, or about instances of these cards."""
    wanted = set(units)
    wanted |= {device.uuid for device in spec.devices if device.parent_uuid in wanted}
    numbers = {known.health.of_unit[unit] for unit in wanted if unit in known.health.of_unit} - {but}
    return tuple(sorted(numbers))


def vanished(known: Known, old: Node | None, spec: NodeSpec, now_ms: int) -> list[Fact]:
    """A node was described without cards that it had: one that fell off the bus is not listed any more."""
    if old is None or not old.registered or not spec.devices:
        return []
    there = cards_of(spec)
    facts: list[Fact] = []
    number = known.health.next_number
    for unit, device in cards_of(old.spec).items():
        if unit in there or device is None:
            continue
        covering = known.health.of_unit.get(unit, 0)
        if covering and known.health.incidents[covering].state is not Standing.PROBATION:
            continue
        reason = f"{spec.name} does not list card {unit} any more"
        remedy = Remedy.REBOOT if "reboot" in spec.remedies else Remedy.NONE
        facts.append(
            IncidentOpened(
                now_ms, number, VANISHED, Severity.FATAL, Scope.CARD, remedy, spec.node_id, (unit,), reason,
                spec.pool, device.model, (covering,) if covering else (),
            )
        )  # fmt: skip
        number += 1
    return facts


def look_soon(known: Known, number: int, at_ms: int) -> None:
    """Have an incident looked at then."""
    known.memory.timers.add(at_ms, Due.HEALTH, str(number))
