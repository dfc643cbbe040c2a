"""Shapes, orders and forecasts between messages and the core."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from aliquot.common import limits, names
from aliquot.common.errors import InvalidFieldError
from aliquot.common.fields import Writer
from aliquot.coordinator.core.books.capacity import (
    EVERY_MEANS,
    CapacityPolicy,
    CapacitySpec,
    Means,
    NodeShape,
    Order,
    PoolBound,
    Way,
)
from aliquot.coordinator.core.books.demand import POINTS_MAX, ExpectedUse, Forecast
from aliquot.coordinator.core.commands import Expected
from aliquot.coordinator.core.deciding.capacity.queries import CapacityReport
from aliquot.coordinator.core.values.types import UNKNOWN, WHOLE_SHARE_MILLI
from aliquot.coordinator.wire.nodes import DEFAULT_POOL, read_declared
from aliquot.v1 import capacity_pb2, types_pb2

SHAPES_MAX = 64
MACHINES_MAX = 1_000
SERIES_MAX = 256
SHOWN_MAX = 1_000
CLOSED_SHOWN_MAX = 100
FEW_SHOWN_MAX = 64
TEXT_MAX = 512
SECONDS_MAX = 366 * 86_400
MICRO_MAX = 1 << 53
_SPARE_PERMILLE = 100
_READY_PERMILLE = 930
"""What is meant where a declaration leaves them out."""
_DEFAULT = CapacityPolicy()


def read_spec(message: capacity_pb2.CapacitySpec) -> CapacitySpec:
    """What is put on offer. Raises InvalidFieldError for what nobody could mean; the core checks what fits together."""
    for field, count in (("shapes", len(message.shapes)), ("pools", len(message.pools))):
        if count > SHAPES_MAX:
            raise InvalidFieldError(field, f"{count}; at most {SHAPES_MAX}")
    return CapacitySpec(
        tuple(_shape(shape, f"shapes[{number}]") for number, shape in enumerate(message.shapes)),
        _policy(message),
        tuple(
            PoolBound(
                names.validate_pool(bound.pool or DEFAULT_POOL, f"pools[{number}].pool"),
                bound.nodes_max if bound.HasField("nodes_max") else -1,
                _permille(bound.headroom_permille) if bound.HasField("headroom_permille") else -1,
            )
            for number, bound in enumerate(message.pools)
        ),
    )


def _shape(message: capacity_pb2.NodeShape, field: str) -> NodeShape:
    name = names.validate_node(message.name, f"{field}.name")
    if not 1 <= message.devices <= limits.MAX_DEVICES_PER_NODE:
        raise InvalidFieldError(
            f"{field}.devices", f"{message.devices}; a node has 1 to {limits.MAX_DEVICES_PER_NODE} devices"
        )
    if not 1 <= message.nodes_max <= limits.MAX_NODES:
        raise InvalidFieldError(f"{field}.nodes_max", f"{message.nodes_max}; 1 to {limits.MAX_NODES}")
    if len(message.machines) > MACHINES_MAX:
        raise InvalidFieldError(f"{field}.machines", f"{len(message.machines)}; at most {MACHINES_MAX}")
    if message.lead_s > SECONDS_MAX or message.price_micro > MICRO_MAX:
        raise InvalidFieldError(f"{field}.lead_s", "no node takes so long, or costs so much")
    node = types_pb2.Node(node_id=name, name=name, pool=message.pool, labels=dict(message.labels))
    for index in range(message.devices):
        node.devices.add(model=message.model, memory_total_bytes=message.memory_bytes, index=index)
    if message.HasField("cpu_milli"):
        node.cpu_milli = message.cpu_milli
    if message.HasField("host_memory_bytes"):
        node.host_memory_bytes = message.host_memory_bytes
    if message.linked:
        for device in node.devices:
            device.fabric_island = 0
    return NodeShape(
        name=name,
        node=read_declared(node, field),
        nodes_max=message.nodes_max,
        nodes_min=message.nodes_min,
        lead_ms=message.lead_s * 1000,
        price_micro=message.price_micro,
        machines=tuple(names.validate_node(machine, f"{field}.machines") for machine in message.machines),
    )


def _policy(spec: capacity_pb2.CapacitySpec) -> CapacityPolicy:
    message = spec.policy

    def milliseconds(name: str, default_ms: int) -> int:
        if not message.HasField(name):  # type: ignore[arg-type]
            return default_ms
        seconds: int = getattr(message, name)
        if seconds > SECONDS_MAX:
            raise InvalidFieldError(f"policy.{name}", f"{seconds} s; at most {SECONDS_MAX}")
        return seconds * 1000

    return CapacityPolicy(
        act=message.act,
        target_wait_ms=milliseconds("target_wait_s", _DEFAULT.target_wait_ms),
        means=() if message.no_means else _means(message.means) or EVERY_MEANS,
        means_ms=milliseconds("means_s", _DEFAULT.means_ms),
        idle_ms=milliseconds("idle_s", _DEFAULT.idle_ms),
        keep_ms=milliseconds("keep_s", _DEFAULT.keep_ms),
        rest_ms=milliseconds("rest_s", _DEFAULT.rest_ms),
        headroom_permille=_permille(message.headroom_permille)
        if message.HasField("headroom_permille")
        else _DEFAULT.headroom_permille,
        late_ms=milliseconds("late_s", _DEFAULT.late_ms),
        orders_max=min(message.orders_max, SHOWN_MAX) if message.HasField("orders_max") else _DEFAULT.orders_max,
        spare_permille=_spare(spec),
        ready_permille=_ready(spec),
        hour_micro=message.hour_micro,
        month_micro=message.month_micro,
    )


def _spare(message: capacity_pb2.CapacitySpec) -> int:
    """What is kept free by ordering ahead: what is left out is as much as stays when nodes are given back."""
    policy = message.policy
    if policy.HasField("spare_permille"):
        return _permille(policy.spare_permille)
    headroom = policy.headroom_permille if policy.HasField("headroom_permille") else _DEFAULT.headroom_permille
    own = [bound.headroom_permille for bound in message.pools if bound.HasField("headroom_permille")]
    return min(headroom, _SPARE_PERMILLE, *own)


def _ready(message: capacity_pb2.CapacitySpec) -> int:
    policy = message.policy
    if not policy.HasField("ready_permille"):
        return _READY_PERMILLE
    if policy.ready_permille >= WHOLE_SHARE_MILLI:
        raise InvalidFieldError("policy.ready_permille", f"{policy.ready_permille}; nothing is certain: at most 999")
    return policy.ready_permille


def _means(words: Iterable[str]) -> tuple[Means, ...]:
    found: dict[Means, None] = {}
    for word in words:
        try:
            found[Means(word)] = None
        except ValueError:
            known = ", ".join(EVERY_MEANS)
            raise InvalidFieldError("policy.means", f"{word[:32]!r} is none of: {known}", hint=known) from None
    return tuple(found)


def _permille(value: int) -> int:
    if value > 1000:
        raise InvalidFieldError("headroom_permille", f"{value}; at most 1000")
    return value


def spec_message(spec: CapacitySpec) -> capacity_pb2.CapacitySpec:
    """What is on offer, with everything that was left to be as it is by default."""
    return _SPEC.message(spec)


_SPEC = Writer(
    capacity_pb2.CapacitySpec,
    CapacitySpec,
    {
        "shapes": lambda spec, _: map(_shape_message, spec.shapes),
        "policy": Writer(capacity_pb2.CapacityPolicy, CapacityPolicy, {"no_means": lambda policy, _: not policy.means}),
    },
)


def _shape_message(shape: NodeShape) -> capacity_pb2.NodeShape:
    node = shape.node
    first = node.devices[0]
    return capacity_pb2.NodeShape(
        name=shape.name,
        pool=node.pool,
        model=first.model,
        devices=len(node.devices),
        memory_bytes=first.memory_total_bytes,
        labels=dict(node.labels),
        cpu_milli=node.cpu_milli if node.cpu_milli != UNKNOWN else None,
        host_memory_bytes=node.host_memory_bytes if node.host_memory_bytes != UNKNOWN else None,
        nodes_max=shape.nodes_max,
        nodes_min=shape.nodes_min,
        lead_s=shape.lead_ms // 1000,
        price_micro=shape.price_micro,
        machines=shape.machines,
        linked=first.nvlink_island != UNKNOWN,
    )


def read_series(messages: Iterable[capacity_pb2.ExpectedSeries], now_ms: int) -> Iterator[Expected]:
    """A forecast. Raises InvalidFieldError for one that is too long."""
    for number, series in enumerate(messages):
        field = f"series[{number}]"
        if number >= SERIES_MAX or len(series.points) > POINTS_MAX:
            raise InvalidFieldError(field, f"at most {SERIES_MAX} series of {POINTS_MAX} points")
        points = sorted(
            ExpectedUse(point.at_ms, min(point.milli, MICRO_MAX), point.low_milli, point.high_milli)
            for point in series.points
        )
        yield Expected(
            names.validate_pool(series.pool or DEFAULT_POOL, f"{field}.pool"),
            names.validate_text(series.model, f"{field}.model", limits.MAX_MODEL_CHARS),
            Forecast(now_ms, tuple(points), series.fit),
        )


def order_message(order: Order, *, whole: bool = True) -> capacity_pb2.NodeOrder:
    """An order. `whole`: its reader may know whose lease it is for."""
    return _ORDER.message(order, whole)


_ORDER = Writer(
    capacity_pb2.NodeOrder,
    Order,
    {
        "why": lambda order, whole: _why(order.why, whole=whole),
        "problem": lambda order, _: order.problem[:TEXT_MAX],
    },
)


def _why(text: str, *, whole: bool) -> str:
    return text[:TEXT_MAX] if whole else "the pool needs it so"


def report_message(report: CapacityReport, *, whole: bool) -> capacity_pb2.Capacity:
    """The answer to GetCapacity. `whole`: its reader sees the leases of every tenant."""
    kept = {each.here.name: each.why for each in report.kept}
    advice = [
        capacity_pb2.NodeAdvice(
            way=int(Way.ADD),  # type: ignore[arg-type]
            shape=each.shape.name,
            node_name=each.name,
            why=_why(each.why, whole=whole),
            early=each.early,
        )
        for each in report.add
    ]
    advice += [
        capacity_pb2.NodeAdvice(
            way=int(Way.REMOVE),  # type: ignore[arg-type]
            shape=going.here.shape.name,
            node_name=going.here.name,
            why=going.why,
        )
        for going in report.remove
    ]
    return capacity_pb2.Capacity(
        spec=spec_message(report.spec) if report.spec is not None else None,
        version=report.version,
        orders=[order_message(order, whole=whole) for order in report.open[:SHOWN_MAX]],
        closed=[order_message(order, whole=whole) for order in report.closed[:CLOSED_SHOWN_MAX]],
        nodes=[
            capacity_pb2.ShapedNode(
                node_id=each.here.node.spec.node_id,
                name=each.here.name,
                shape=each.here.shape.name,
                pool=each.here.node.spec.pool,
                leases=each.leases,
                here_ms=each.here_ms,
                kept=kept.get(each.here.name, ""),
            )
            for each in report.nodes[:SHOWN_MAX]
        ],
        advice=advice[:SHOWN_MAX],
        served=[
            capacity_pb2.ServedRequest(
                lease_id=each.lease_id if whole else "", means=each.means.value, story=each.story[:TEXT_MAX]
            )
            for each in report.served[:FEW_SHOWN_MAX]
        ],
        unserved=[
            capacity_pb2.UnservedRequests(
                lease_id=each.lease_id if whole else "", requests=each.requests, why=each.why[:TEXT_MAX]
            )
            for each in report.unserved[:FEW_SHOWN_MAX]
        ],
        resting=[
            capacity_pb2.RestingShape(
                shape=name, until_ms=rest.until_ms, failures=rest.failures, problem=rest.problem[:TEXT_MAX]
            )
            for name, rest in report.rests[:FEW_SHOWN_MAX]
        ],
        hour_micro=report.hour_micro,
        month_micro=report.month_micro,
        oldest_wait_ms=report.oldest_wait_ms,
    )
