"""Shapes, orders and forecasts between messages and the core."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from aliquot.common import limits, names
from aliquot.common.errors import InvalidFieldError
from aliquot.common.fields import Reader, Writer, word
from aliquot.coordinator.core.books.demand import POINTS_MAX, ExpectedUse, Forecast
from aliquot.coordinator.core.books.supply import (
    EVERY_MEANS,
    Means,
    NodeShape,
    Order,
    PoolBound,
    SupplyPolicy,
    SupplySpec,
    Way,
)
from aliquot.coordinator.core.commands import Expected
from aliquot.coordinator.core.deciding.supply.ahead import Advice
from aliquot.coordinator.core.deciding.supply.giving_back import Going
from aliquot.coordinator.core.deciding.supply.growth import Unserved
from aliquot.coordinator.core.deciding.supply.queries import NodeHere, SupplyReport
from aliquot.coordinator.core.deciding.supply.waiting import Served
from aliquot.coordinator.core.values.types import UNKNOWN, WHOLE_SHARE_MILLI, NodeSpec
from aliquot.coordinator.wire.nodes import DEFAULT_POOL, read_declared
from aliquot.v1 import supply_pb2, types_pb2

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
_DEFAULT = SupplyPolicy()

# -- what is put on offer


def read_spec(message: supply_pb2.SupplySpec) -> SupplySpec:
    """What is put on offer. Raises InvalidFieldError for what nobody could mean; the core checks what fits together."""
    for field, count in (("shapes", len(message.shapes)), ("pools", len(message.pools))):
        if count > SHAPES_MAX:
            raise InvalidFieldError(field, f"{count}; at most {SHAPES_MAX}")
    spec = _SPEC.read(message, "")
    if not message.policy.HasField("spare_permille"):
        # What is kept free by ordering ahead: as much as stays when nodes are given back, of the pool with least.
        own = [bound.headroom_permille for bound in spec.pools if bound.headroom_permille >= 0]
        spare = min(spec.policy.headroom_permille, _SPARE_PERMILLE, *own)
        spec = msgspec.structs.replace(spec, policy=msgspec.structs.replace(spec.policy, spare_permille=spare))
    return spec


def _node(message: supply_pb2.NodeShape, path: str) -> NodeSpec:
    """What such a node has, declared as an administrator would."""
    if not 1 <= message.devices <= limits.MAX_DEVICES_PER_NODE:
        raise InvalidFieldError(
            f"{path}.devices", f"{message.devices}; a node has 1 to {limits.MAX_DEVICES_PER_NODE} devices"
        )
    if not 1 <= message.nodes_max <= limits.MAX_NODES:
        raise InvalidFieldError(f"{path}.nodes_max", f"{message.nodes_max}; 1 to {limits.MAX_NODES}")
    if message.lead_s > SECONDS_MAX or message.price_micro > MICRO_MAX:
        raise InvalidFieldError(f"{path}.lead_s", "no node takes so long, or costs so much")
    node = types_pb2.Node(node_id=message.name, name=message.name, pool=message.pool, labels=dict(message.labels))
    for index in range(message.devices):
        device = node.devices.add(model=message.model, memory_total_bytes=message.memory_bytes, index=index)
        if message.linked:
            device.fabric_island = 0
    if message.HasField("cpu_milli"):
        node.cpu_milli = message.cpu_milli
    if message.HasField("host_memory_bytes"):
        node.host_memory_bytes = message.host_memory_bytes
    return read_declared(node, path)


def _machines(message: supply_pb2.NodeShape, path: str) -> tuple[str, ...]:
    if len(message.machines) > MACHINES_MAX:
        raise InvalidFieldError(f"{path}.machines", f"{len(message.machines)}; at most {MACHINES_MAX}")
    return tuple(names.validate_node(machine, f"{path}.machines") for machine in message.machines)


_SHAPE = Reader(
    supply_pb2.NodeShape,
    NodeShape,
    {
        "name": lambda message, path: names.validate_node(message.name, f"{path}.name"),
        "node": _node,
        "machines": _machines,
    },
)


def _means(message: supply_pb2.SupplyPolicy, path: str) -> tuple[Means, ...]:
    if message.no_means:
        return ()
    return tuple(dict.fromkeys(word(Means, text, f"{path}.means") for text in message.means)) or EVERY_MEANS


def _headroom(message: supply_pb2.SupplyPolicy | supply_pb2.PoolBound, otherwise: int) -> int:
    return _permille(message.headroom_permille) if message.HasField("headroom_permille") else otherwise


def _permille(value: int) -> int:
    if value > 1000:
        raise InvalidFieldError("headroom_permille", f"{value}; at most 1000")
    return value


def _ready(message: supply_pb2.SupplyPolicy, path: str) -> int:
    if message.ready_permille >= WHOLE_SHARE_MILLI:
        said = f"{message.ready_permille}; nothing is certain: at most 999"
        raise InvalidFieldError(f"{path}.ready_permille", said)
    return message.ready_permille if message.HasField("ready_permille") else _READY_PERMILLE


def _policy(message: supply_pb2.SupplySpec, _: str) -> SupplyPolicy:
    for field, value in message.policy.ListFields():
        if field.name.endswith("_s") and value > SECONDS_MAX:
            raise InvalidFieldError(f"policy.{field.name}", f"{value} s; at most {SECONDS_MAX}")
    return _POLICY.read(message.policy, "policy")


_POLICY = Reader(
    supply_pb2.SupplyPolicy,
    SupplyPolicy,
    {
        "means": _means,
        "headroom_permille": lambda message, _: _headroom(message, _DEFAULT.headroom_permille),
        "orders_max": lambda message, _: (
            min(message.orders_max, SHOWN_MAX) if message.HasField("orders_max") else _DEFAULT.orders_max
        ),
        "spare_permille": lambda message, _: _permille(message.spare_permille),
        "ready_permille": _ready,
    },
)
_BOUND = Reader(
    supply_pb2.PoolBound,
    PoolBound,
    {
        "pool": lambda message, path: names.validate_pool(message.pool or DEFAULT_POOL, f"{path}.pool"),
        "headroom_permille": lambda message, _: _headroom(message, -1),
    },
)
_SPEC = Reader(supply_pb2.SupplySpec, SupplySpec, {"policy": _policy})

_SHAPE_OUT = Writer(
    supply_pb2.NodeShape,
    NodeShape,
    {
        "pool": "node.pool",
        "labels": "node.labels",
        "cpu_milli": "node.cpu_milli",
        "host_memory_bytes": "node.host_memory_bytes",
        "model": lambda shape, _: shape.node.devices[0].model,
        "devices": lambda shape, _: len(shape.node.devices),
        "memory_bytes": lambda shape, _: shape.node.devices[0].memory_total_bytes,
        "linked": lambda shape, _: shape.node.devices[0].nvlink_island != UNKNOWN,
    },
)
_POLICY_OUT = Writer(supply_pb2.SupplyPolicy, SupplyPolicy, {"no_means": lambda policy, _: not policy.means})
_SPEC_OUT = Writer(supply_pb2.SupplySpec, SupplySpec, {"shapes": _SHAPE_OUT, "policy": _POLICY_OUT})


# -- forecasts


def read_series(messages: Iterable[supply_pb2.ExpectedSeries], now_ms: int) -> Iterator[Expected]:
    """A forecast. Raises InvalidFieldError for one that is too long."""
    for number, series in enumerate(messages):
        field = f"series[{number}]"
        if number >= SERIES_MAX or len(series.points) > POINTS_MAX:
            raise InvalidFieldError(field, f"at most {SERIES_MAX} series of {POINTS_MAX} points")
        points = sorted(map(_EXPECTED.read, series.points))
        yield Expected(
            names.validate_pool(series.pool or DEFAULT_POOL, f"{field}.pool"),
            names.validate_text(series.model, f"{field}.model", limits.MAX_MODEL_CHARS),
            Forecast(now_ms, tuple(points), series.fit),
        )


_EXPECTED = Reader(supply_pb2.ExpectedUse, ExpectedUse, {"milli": lambda message, _: min(message.milli, MICRO_MAX)})

# -- what is ordered, and what would be done now


class _Told(NamedTuple):
    """What is said to a reader beside what is so."""

    whole: bool = True
    """It may know whose lease something is about."""
    kept: Mapping[str, str] = {}
    """Why empty nodes stay, by name."""


_ORDER = Writer(
    supply_pb2.NodeOrder,
    Order,
    {
        "why": lambda order, told: _why(order.why, told),
        "problem": lambda order, _: order.problem[:TEXT_MAX],
    },
)


def order_message(order: Order) -> supply_pb2.NodeOrder:
    """An order, for those who may know whose lease it is for."""
    return _ORDER.message(order, _Told())


def _why(text: str, told: _Told) -> str:
    return text[:TEXT_MAX] if told.whole else "the pool needs it so"


def _lease_id(each: Served | Unserved, told: _Told) -> str:
    return each.lease_id if told.whole else ""


_ADD = Writer(
    supply_pb2.NodeAdvice,
    Advice,
    {
        "way": lambda *_: int(Way.ADD),
        "shape": "shape.name",
        "node_name": "name",
        "why": lambda advice, told: _why(advice.why, told),
    },
)
_REMOVE = Writer(
    supply_pb2.NodeAdvice,
    Going,
    {"way": lambda *_: int(Way.REMOVE), "shape": "here.shape.name", "node_name": "here.name"},
    left_out={"early": "a forecast takes nothing away"},
)


def _advice(report: SupplyReport, told: _Told) -> list[supply_pb2.NodeAdvice]:
    added = [_ADD.message(each, told) for each in report.add]
    return [*added, *map(_REMOVE.message, report.remove)][:SHOWN_MAX]


_NODE = Writer(
    supply_pb2.ShapedNode,
    NodeHere,
    {
        "node_id": "here.node.spec.node_id",
        "name": "here.name",
        "shape": "here.shape.name",
        "pool": "here.node.spec.pool",
        "kept": lambda each, told: told.kept.get(each.here.name, ""),
    },
)
_SERVED = Writer(
    supply_pb2.ServedRequest, Served, {"lease_id": _lease_id, "story": lambda each, _: each.story[:TEXT_MAX]}
)
_UNSERVED = Writer(
    supply_pb2.UnservedRequests, Unserved, {"lease_id": _lease_id, "why": lambda each, _: each.why[:TEXT_MAX]}
)
_RESTING = Writer(
    supply_pb2.RestingShape,
    tuple,
    {
        "shape": lambda named, _: named[0],
        "until_ms": lambda named, _: named[1].until_ms,
        "failures": lambda named, _: named[1].failures,
        "problem": lambda named, _: named[1].problem[:TEXT_MAX],
    },
)
_REPORT = Writer(
    supply_pb2.Supply,
    SupplyReport,
    {
        "spec": _SPEC_OUT,
        "orders": (lambda report, _: report.open[:SHOWN_MAX], _ORDER),
        "closed": (lambda report, _: report.closed[:CLOSED_SHOWN_MAX], _ORDER),
        "nodes": (lambda report, _: report.nodes[:SHOWN_MAX], _NODE),
        "advice": _advice,
        "served": (lambda report, _: report.served[:FEW_SHOWN_MAX], _SERVED),
        "unserved": (lambda report, _: report.unserved[:FEW_SHOWN_MAX], _UNSERVED),
        "resting": (lambda report, _: report.rests[:FEW_SHOWN_MAX], _RESTING),
    },
)


def report_message(report: SupplyReport, *, whole: bool) -> supply_pb2.Supply:
    """The answer to GetSupply. `whole`: its reader sees the leases of every tenant."""
    return _REPORT.message(report, _Told(whole, {each.here.name: each.why for each in report.kept}))
