"""What is on offer, what is ordered, and who carries it out."""

from __future__ import annotations

from msgspec.structs import replace

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.demand import Forecast, Forecasts
from aliquot.coordinator.core.books.nodes import NodeCordoned
from aliquot.coordinator.core.books.supply import (
    NodeOrdered,
    Order,
    OrderChanged,
    OrderState,
    SupplyDeclared,
    SupplySpec,
    Way,
)
from aliquot.coordinator.core.commands.outcomes import NOTHING, Decision
from aliquot.coordinator.core.deciding.node_orders import (
    AGAIN_MS,
    AGAIN_MS_MAX,
    TRIES_MAX,
    acted,
    closed_by,
    follow,
    node_of,
    over,
)
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.deciding.supply.giving_back import shrink
from aliquot.coordinator.core.deciding.supply.giving_back import to_order as removal
from aliquot.coordinator.core.deciding.supply.growth import Growth, grow
from aliquot.coordinator.core.deciding.supply.growth import to_order as addition
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.rules.supply import is_up, open_orders
from aliquot.coordinator.core.values.errors import Conflict, InvalidField, OrderNotFound, OrderTaken
from aliquot.coordinator.core.values.fact import Fact, by_kind
from aliquot.coordinator.core.values.timers import Due

SOON_MS = 1_000
CALM_MS = 60_000
"""How often to look while nobody waits, nothing is ordered and nothing is to be spare."""
POSTPONED_MAX = 3
"""A look waits for a pass along the lines that is under way, but not for ever."""


class _Postponed:
    """How often in a row a look was postponed."""

    times = 0


def declare(known: Known, command: c.DeclareSupply, now_ms: int) -> Decision[int]:
    """Put these shapes and rules in the place of the earlier ones. Orders under way go on. Answers with the version."""
    books = known.supply
    if command.version not in (c.ANY_VERSION, books.version):
        raise Conflict(
            f"what is on offer has version {books.version}, not {command.version}",
            hint="somebody else has changed it: read it again",
        )
    _check(command.spec)
    if command.spec == books.spec:
        return Decision((), books.version)
    version = books.version + 1
    return Decision((SupplyDeclared(now_ms, command.spec, version),), version)


def _check(spec: SupplySpec) -> None:
    names = [shape.name for shape in spec.shapes]
    machines = [name for shape in spec.shapes for name in shape.machines]
    for field, each in (("shapes", names), ("machines", machines), ("pools", [bound.pool for bound in spec.pools])):
        twice = next((name for name in each if each.count(name) > 1), "")
        if twice:
            raise InvalidField(field, f"{twice} is named twice")
    if spec.policy.spare_permille > min(
        map(spec.headroom_permille, {shape.node.pool for shape in spec.shapes}), default=0
    ):
        raise InvalidField("policy.spare_permille", "more would be ordered ahead than stays when nodes are given back")
    for shape in spec.shapes:
        if not shape.node.devices:
            raise InvalidField("shapes", f"nodes of shape {shape.name} have no devices")
        if not shape.nodes_min <= shape.nodes_max:
            raise InvalidField("shapes", f"shape {shape.name}: at least {shape.nodes_min}, at most {shape.nodes_max}")
        if shape.machines and shape.nodes_max > len(shape.machines):
            raise InvalidField("shapes", f"shape {shape.name}: there are {len(shape.machines)} machines")


def look(known: Known, _: str, now_ms: int) -> list[Fact]:
    """What is due about nodes: see how orders go, and order what the queue, or a forecast, asks for."""
    if known.memory.supply_due_ms > now_ms:
        return []  # an earlier look was brought forward
    known.memory.supply_due_ms = 0
    spec = known.supply.spec
    if spec is None:
        return []
    facts = follow(known, now_ms)
    if facts:
        known.look_for_supply(now_ms + SOON_MS)
        return facts
    busy = bool(len(known.lines) or known.supply.orders or spec.policy.spare_permille or spec.policy.ready_permille)
    known.memory.supply_calm = not busy
    known.look_for_supply(now_ms + (known.config.supply_look_ms if busy else CALM_MS))
    if not spec.policy.act:
        return []
    postponed = known.memory.part(_Postponed, _Postponed)
    if known.wants_admission() and postponed.times < POSTPONED_MAX:
        postponed.times += 1
        known.look_for_supply(now_ms + SOON_MS)
        return []
    postponed.times = 0
    facts = _act(known, spec, now_ms)
    if facts:
        known.look_for_supply(now_ms + SOON_MS)
    return facts


def _act(known: Known, spec: SupplySpec, now_ms: int) -> list[Fact]:
    growth = grow(known, spec, now_ms)
    if growth.orders:
        kept = _kept_after_all(known, growth, now_ms)
        return kept or _ordered(known, growth, now_ms)
    unneeded = _unneeded(known, growth, now_ms)
    if unneeded:
        return unneeded
    if growth.oldest_wait_ms:
        return []
    facts: list[Fact] = []
    for number, going in enumerate(shrink(known, spec, now_ms).going, known.supply.next_order):
        order = removal(known, going, number, now_ms)
        facts += [acted(now_ms, "GiveNodeBack", f"{order.order_id}: node {order.node_name}: {order.why}")]
        facts.append(NodeOrdered(now_ms, order))
        if going.here.node.grantable:
            facts.append(NodeCordoned(now_ms, order.node_id, cordoned=True, reason=closed_by(order)))
    return facts


def _kept_after_all(known: Known, growth: Growth, now_ms: int) -> list[Fact]:
    """Nodes that were to go, which nobody has begun with, stay instead of others being ordered."""
    pools = {advice.shape.node.pool for advice in growth.orders}
    facts: list[Fact] = []
    for order in open_orders(known, Way.REMOVE):
        node = node_of(known, order)
        if order.state is OrderState.ORDERED and order.pool in pools and node is not None and is_up(node):
            facts += over(known, order, OrderState.WITHDRAWN, "somebody waits for a node", now_ms)
    return facts


def _ordered(known: Known, growth: Growth, now_ms: int) -> list[Fact]:
    facts: list[Fact] = []
    for number, advice in enumerate(growth.orders, known.supply.next_order):
        order = addition(advice, number, now_ms)
        facts.append(acted(now_ms, "OrderNode", f"{order.order_id}: node {order.node_name}: {order.why}"))
        facts.append(NodeOrdered(now_ms, order))
    return facts


def _unneeded(known: Known, growth: Growth, now_ms: int) -> list[Fact]:
    """Orders that nobody has begun with, and nobody needs any more."""
    believed = set(known.memory.part(Forecasts, Forecasts).of(now_ms))
    spec = known.supply.spec or SupplySpec()
    facts: list[Fact] = []
    for order in open_orders(known, Way.ADD):
        if order.state is not OrderState.ORDERED or order.tries:
            continue
        shape = spec.shape(order.shape)
        models = {(order.pool, device.model) for device in shape.node.devices} if shape is not None else set()
        beforehand = spec.policy.spare_permille > 0 or spec.policy.ready_permille > 0
        wanted = bool(models & believed) if order.early else growth.oldest_wait_ms > 0 or beforehand
        if not wanted:
            why = "the forecast is not believed any more" if order.early else "nobody waits for it any more"
            facts += over(known, order, OrderState.WITHDRAWN, why, now_ms)
    return facts


# -- who carries orders out


def take(known: Known, command: c.TakeOrders, now_ms: int) -> Decision[tuple[Order, ...]]:
    """Give orders to whoever carries them out: those that wait, those that it has already, and those of which somebody
    else was not heard for too long. The id of an order stays the same, so that doing it twice is doing it once.
    """
    facts: list[Fact] = []
    taken: list[Order] = []
    for order in (*open_orders(known, Way.REMOVE), *open_orders(known, Way.ADD)):
        if len(taken) == command.orders_max:
            break
        mine = order.taken_by == command.taker
        lapsed = order.state is OrderState.TAKEN and order.taken_until_ms <= now_ms
        if order.state is OrderState.TAKEN and mine and not lapsed:
            taken.append(order)
            continue
        if not (lapsed or (order.state is OrderState.ORDERED and order.again_ms <= now_ms)):
            continue
        node = node_of(known, order)
        if order.way is Way.REMOVE and node is not None and known.slice_ids_by_node[node.spec.node_id]:
            facts += over(known, order, OrderState.WITHDRAWN, "something holds it after all", now_ms)
            continue
        given = replace(
            order,
            state=OrderState.TAKEN,
            taken_by=command.taker,
            taken_until_ms=now_ms + command.for_ms,
            tries=order.tries + 1,
            changed_ms=now_ms,
        )
        facts.append(OrderChanged(now_ms, given))
        taken.append(given)
    return Decision(tuple(facts), tuple(taken))


def report(known: Known, command: c.ReportOrder, now_ms: int) -> Decision[Order]:
    """What has become of an order that somebody took. Of one that is under way, the node's name may be told when it is
    known, and that it failed after all. Raises OrderNotFound, OrderTaken.
    """
    order = _open(known, command.number)
    under_way = order.state is OrderState.UNDER_WAY
    if under_way and command.accepted and command.node_name in ("", order.node_name):
        return Decision((), order)  # said twice
    if not (under_way or order.state is OrderState.TAKEN) or order.taken_by != command.taker:
        raise OrderTaken(
            f"{order.order_id} is not {command.taker}'s to report: it is {order.state.name.lower()}",
            hint="it took too long, and was given to another: take orders again",
        )
    if command.accepted:
        name = command.node_name or order.node_name
        if name != order.node_name:
            _check_name(known, order, name)
        due_ms = command.due_ms or max(order.due_ms, now_ms)
        changed = replace(
            order,
            state=OrderState.UNDER_WAY,
            changed_ms=now_ms,
            node_name=name,
            reference=command.reference or order.reference,
            due_ms=due_ms,
            problem="",
        )
        return Decision((OrderChanged(now_ms, changed),), changed)
    if order.tries >= TRIES_MAX or command.final:
        failed = replace(order, reference=command.reference or order.reference)
        facts = over(known, failed, OrderState.FAILED, command.problem or "it failed", now_ms)
        changed = next(fact.order for fact in facts if isinstance(fact, OrderChanged))
        return Decision(tuple(facts), changed)
    again_ms = now_ms + min(AGAIN_MS << (order.tries - 1), AGAIN_MS_MAX)
    changed = replace(
        order,
        state=OrderState.ORDERED,
        changed_ms=now_ms,
        taken_by="",
        taken_until_ms=0,
        again_ms=again_ms,
        reference=command.reference or order.reference,
        problem=command.problem,
    )
    return Decision((OrderChanged(now_ms, changed),), changed)


def _check_name(known: Known, order: Order, name: str) -> None:
    old = known.nodes.get(known.node_ids_by_name.get(name, ""))
    others = any(other.node_name == name and other.number != order.number for other in known.supply.orders.values())
    if others or (old is not None and order.way is Way.ADD and not _may_be(known, order, name)):
        raise InvalidField("node_name", f"{name!r} is the name of another node")


def _may_be(known: Known, order: Order, name: str) -> bool:
    """Whether a node that is known may be the one that was ordered: it came before the answer did."""
    slot = known.supply.slots.get(name)
    return slot is None or (slot.shape == order.shape and slot.here_ms >= order.ordered_ms)


def withdraw(known: Known, command: c.WithdrawOrder, now_ms: int) -> Decision[Order]:
    """An administrator wants no more of an order. Raises OrderNotFound."""
    order = _open(known, command.number)
    facts = over(known, order, OrderState.WITHDRAWN, command.reason or "an administrator withdrew it", now_ms)
    changed = next(fact.order for fact in facts if isinstance(fact, OrderChanged))
    return Decision(tuple(facts[1:]), changed)  # who did it is put down with the command


def _open(known: Known, number: int) -> Order:
    order = known.supply.orders.get(number)
    if order is not None:
        return order
    closed = next((each for each in known.supply.closed if each.number == number), None)
    was = f"order-{number} is over: it {closed.state.name.lower()}" if closed else f"there is no order {number}"
    raise OrderNotFound(was, hint="`aliquot supply orders` lists those there are")


def expect_demand(known: Known, command: c.ExpectDemand, now_ms: int) -> Decision[None]:
    """Take a forecast. It is no fact: what follows from it is."""
    forecasts = known.memory.part(Forecasts, Forecasts)
    for series in command.series:
        forecasts.put(series.pool, series.model, replace_made(series.forecast, now_ms))
    known.look_for_supply(now_ms + SOON_MS)
    return NOTHING


def replace_made(forecast: Forecast, now_ms: int) -> Forecast:
    """The forecast, made no later than now."""
    return forecast._replace(made_ms=min(forecast.made_ms or now_ms, now_ms))


DECIDES = Decides(commands=by_kind(declare, take, report, withdraw, expect_demand), due={Due.SUPPLY: look})
