"""Placement where somebody else decides: which nodes could take a request, and a grant on those that were chosen.

What such a request may take is what `Allocate` with `no_queue` may: what is free and kept for nobody, and, for one that
ends in time, nodes that close for maintenance and devices that are reserved for later. It passes those who wait as that
one does: all that has been offered to them and did not fit is free to take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

from msgspec.structs import replace

from aliquot.coordinator.core.books.elastic import is_elastic
from aliquot.coordinator.core.commands import GrantOn, MemberPlace
from aliquot.coordinator.core.commands.outcomes import AllocateOutcome, Decision
from aliquot.coordinator.core.commands.queries import Fits
from aliquot.coordinator.core.deciding.admission.allocate import replayed, started
from aliquot.coordinator.core.deciding.admission.means.backfilling import ends_before
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.inventory.inventory import Inventory
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.placement.gang import TRIAL_GROUP, hold_member
from aliquot.coordinator.core.placement.obstacles import ClassObstacles, gib
from aliquot.coordinator.core.placement.picking import slice_on
from aliquot.coordinator.core.placement.reasons import RESTRICTED, RESTRICTIONS, Reason
from aliquot.coordinator.core.placement.survey import NodeFit, about_devices, survey
from aliquot.coordinator.core.placement.validity import objection
from aliquot.coordinator.core.rules.closing import OPENED_MAX, closure_text, will_have_ended
from aliquot.coordinator.core.rules.granting import (
    chain_of,
    check_access,
    forbidden,
    refuse_held_back,
    sterner,
    suspended,
)
from aliquot.coordinator.core.values.errors import InvalidField, PlacementRefused, QuotaExceeded
from aliquot.coordinator.core.values.fact import by_kind
from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI, Demand, Placement, RequestSpec, SlicePlan

_Refusal = tuple[str, Reason, str]
"""Node, obstacle, and the obstacle in a few words."""


def fits(known: Known, query: Fits, now_ms: int) -> tuple[NodeFit, ...]:
    """What there is to say of each node, for one member. Limits are not asked: they depend on no node."""
    request = check_access(known, query.request)
    node_ids = query.node_ids or tuple(known.inventory.node_ids())
    demand = sterner(known, request, request.demand, now_ms)
    with _opened(known, request, node_ids, now_ms) as inventory:
        found = _survey(known, demand, node_ids)
        if not (inventory.restricted and inventory.admit(demand.admitted_on)):
            return found
        again = _survey(known, demand, node_ids)
    return tuple(map(_last, found, again))


def _last(first: NodeFit, restricted: NodeFit) -> NodeFit:
    """A node that serves a request only by devices that don't admit everything comes after all others."""
    if first.score:
        return first._replace(score=first.score + 1)
    return restricted._replace(score=min(restricted.score, 1))


def grant_on(known: Known, command: GrantOn, now_ms: int) -> Decision[AllocateOutcome]:
    """One atomic group: the request is accepted and granted there; or it is refused, and never waits."""
    replay = replayed(known, command)
    if replay is not None:
        return replay
    request = replace(check_access(known, command.request), placed=True)
    refuse_held_back(known, request, now_ms)
    demand = sterner(known, request, request.demand, now_ms)
    _check_places(request, command.places)
    with _opened(known, request, [place.node_id for place in command.places], now_ms) as inventory:
        try:
            placement = _placed(known, demand, command.places)
        except PlacementRefused:
            if not inventory.admit(demand.admitted_on):
                raise
            placement = _placed(known, demand, command.places)
    over = suspended(known, request, now_ms)
    over = over or forbidden(known, request, chain_of(known, request), placement, now_ms, ())
    if over is not None:
        raise QuotaExceeded(over.subject, over.detail, "wait until some of it is given back")
    return started(known, command, request, placement, now_ms)


@contextmanager
def _opened(known: Known, request: RequestSpec, node_ids: Sequence[str], now_ms: int) -> Iterator[Inventory]:
    """Everything else as it is, but open what this request may use because it ends in time."""
    with known.inventory.trial() as inventory:
        if request.time_limit_ms:
            closed = (node_id for node_id in node_ids if node_id in known.closed) if known.closed else ()
            in_time = (i for i in closed if will_have_ended(request, known.closed[i], now_ms))
            for node_id in islice(dict.fromkeys(in_time), max(OPENED_MAX, request.demand.gang_size)):
                inventory.set_grantable(node_id, grantable=True)
            for hold in known.holds.values():
                if ends_before(request, hold, now_ms):
                    inventory.open_devices(hold.device_uuids)
        yield inventory


def _check_places(request: RequestSpec, places: tuple[MemberPlace, ...]) -> None:
    for field, leads_away in (("movable", request.movable), ("min_count", is_elastic(request))):
        if leads_away:
            raise InvalidField(f"request.{field}", "a lease that is put on a place stays there: leave it out")
    demand = request.demand
    if len(places) != demand.gang_size:
        raise InvalidField("places", f"{len(places)} places for {demand.gang_size} members: name one for each")
    for number, place in enumerate(places):
        if place.device_uuids and len(set(place.device_uuids)) != demand.count:
            said = f"{len(set(place.device_uuids))} devices for {demand.count} slices"
            raise InvalidField(f"places[{number}].device_uuids", f"{said}: name one for each, or none")


def _placed(known: Known, demand: Demand, places: tuple[MemberPlace, ...]) -> Placement:
    """The placement that these are. Raises PlacementRefused."""
    refusal: _Refusal | None = None
    for shape in known.engine.matcher.shapes(demand):
        found = _as_shape(known, demand, shape, places)
        if isinstance(found, Placement):
            why = objection(known.engine, demand, found)
            if not why:
                return known.engine.with_charges(demand, shape, found)
            found = places[0].node_id, Reason.MISMATCH, why
        refusal = refusal or found
    node_id, obstacle, detail = refusal or _obstacle(known, demand, places[0])
    name = known.inventory.node(node_id).spec.name if known.inventory.has_node(node_id) else node_id
    raise PlacementRefused(name, obstacle.value, detail)


def _as_shape(known: Known, demand: Demand, shape: Demand, places: tuple[MemberPlace, ...]) -> Placement | _Refusal:
    """The placement as this shape, member after member, each beside those before it; or what stands against it."""
    if len(places) > 1 and not demand.affinity_group:
        demand = replace(demand, affinity_group=TRIAL_GROUP)
    members = []
    with known.inventory.trial() as inventory:
        for place in places:
            plans = _member(known, demand, shape, place)
            if plans is None:
                return _obstacle(known, demand, place)
            hold_member(inventory, demand, place.node_id, plans, apart=shape.apart)
            members.append(plans)
    return Placement(tuple(members), tuple(place.node_id for place in places))


def _member(known: Known, demand: Demand, shape: Demand, place: MemberPlace) -> tuple[SlicePlan, ...] | None:
    inventory = known.inventory
    if not inventory.has_node(place.node_id):
        return None
    if not place.device_uuids:
        return known.engine.choose_on(demand, shape, place.node_id)
    node = inventory.node(place.node_id)
    if not node.grantable or not node.may_take(demand):
        return None
    plans = []
    for uuid in place.device_uuids:
        device = inventory.device_record(uuid) if inventory.has_device(uuid) else None
        plan = slice_on(device, shape) if device is not None and device.node_id == place.node_id else None
        if plan is None:
            return None
        plans.append(plan)
    return tuple(plans)


def _survey(known: Known, demand: Demand, node_ids: Sequence[str]) -> tuple[NodeFit, ...]:
    def why_closed(node_id: str) -> tuple[Reason, str]:
        """Why a node accepts no grants, by the books."""
        node = known.nodes[node_id]
        if node.cordoned:
            return Reason.CORDONED, f"it is cordoned: {node.reason}" if node.reason else "it is cordoned"
        if node.closure is not None and node.open:
            return Reason.MAINTENANCE, closure_text(node.spec.name, node.closure).partition(": ")[2]
        return Reason.NOT_READY, f"it is {node.state.name}" + (f": {node.reason}" if node.reason else "")

    found = survey(known.engine, demand, node_ids, known.hold_of_device, why_closed)
    return _restricted(known, demand, found) if known.inventory.restricted else found


def _restricted(known: Known, demand: Demand, found: tuple[NodeFit, ...]) -> tuple[NodeFit, ...]:
    """The same; of nodes where only devices that don't admit the demand stand against it, that is said."""
    for most, said in RESTRICTED.items():
        node_ids = [fit.node_id for fit in found if about_devices(fit.reason) and fit.reason not in RESTRICTIONS]
        if most <= demand.admitted_on or not node_ids:
            continue
        with known.inventory.trial() as inventory:
            if inventory.admit(most):
                fits = {fit.node_id for fit in survey(known.engine, demand, node_ids) if fit.reason is Reason.FITS}
                why = f"its devices that are free {said.why}"
                found = tuple(
                    NodeFit(fit.node_id, said.reason, why, 0) if fit.node_id in fits and not fit.score else fit
                    for fit in found
                )
    return found


def _obstacle(known: Known, demand: Demand, place: MemberPlace) -> _Refusal:
    """The first obstacle to a member there: of the node, else of its devices."""
    fit = _survey(known, demand, [place.node_id])[0]
    if place.device_uuids and (fit.reason is Reason.FITS or about_devices(fit.reason)):
        for uuid in place.device_uuids:
            found = _of_device(known, demand, place.node_id, uuid)
            if found is not None:
                return place.node_id, *found
    if fit.reason is Reason.FITS:  # another kind of device there would do
        return place.node_id, Reason.OTHER_MODEL, "what was chosen there does not go with the other members"
    return place.node_id, fit.reason, fit.detail


def _of_device(known: Known, demand: Demand, node_id: str, uuid: str) -> tuple[Reason, str] | None:
    inventory = known.inventory
    if not inventory.has_device(uuid) or inventory.device_record(uuid).node_id != node_id:
        return Reason.DEVICE_UNKNOWN, f"it has no device {uuid}"
    device = inventory.device_record(uuid)
    looked_at = ClassObstacles(inventory, demand, device.class_id, known.engine.matcher.matches(demand))
    kind = looked_at.kind()
    if kind is not None:
        return Reason(kind.reason), f"device {uuid}: {kind.detail}"
    size = device.slice_for(looked_at.shape)
    if size is None:
        if device.works and not device.gives(demand.min_tier):
            return Reason.TIER, f"device {uuid}: its agent can't give the tier asked for"
        return Reason.UNAVAILABLE, f"device {uuid} is unhealthy, gone, or too full of others' memory"
    if device.admits > demand.admitted_on:
        said = RESTRICTED[device.admits]
        return said.reason, f"device {uuid} is one of those that {said.why}"
    if device.withheld_for == TRIAL_GROUP:
        return Reason.MISMATCH, f"device {uuid} is on the card of another member (same_card allows that)"
    if device.withheld_for:
        return Reason.WITHHELD, f"device {uuid} is kept for somebody else"
    share, memory = size
    if device.share_used_milli + share > device.spec.compute_milli:
        what = "all of it was" if share == WHOLE_SHARE_MILLI else f"share {share / 1000:g} was"
        return Reason.SHARE_HELD, f"device {uuid}: {what} asked for; it has {device.share_left_milli / 1000:g} left"
    if memory > device.memory_left_bytes:
        left = max(device.memory_left_bytes, 0)
        return Reason.MEMORY_HELD, f"device {uuid}: {gib(memory)} was asked for; it has {gib(left)} left"
    return None


DECIDES = Decides(commands=by_kind(grant_on), queries=by_kind(fits))
