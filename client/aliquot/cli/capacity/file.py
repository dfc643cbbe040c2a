"""Files that put nodes on offer: YAML, JSON or TOML, for `aliquot capacity apply`.

::

    shapes:
      - name: h100              # nodes are named h100-1, h100-2, ...
        model: H100-80
        devices: 8
        max: 10                 # at a time, with those on their way
        min: 0                  # kept, however empty
        lead: 10m               # from an order to a node that takes leases
        price: 24.50            # of one node for an hour
        pool: default           # labels, memory (of a device), cpu, host_memory and linked (NVLink) too
      - {name: metal, model: A100-80, devices: 4, max: 2, lead: 4m, machines: [rack-a, rack-b]}   # woken, put to sleep
    policy:
      act: false                # a dry run: advice, and no orders
      target: 5m                # how long a request may wait that nothing else serves
      means: [wait, reclaim, shrink, move]
      idle: 10m                 # empty for so long, ...
      keep: 30m                 # ... here for so long, ...
      rest: 24h                 # ... and not given back within this time already: it is given back
      headroom: 10              # per cent that stay free when nodes are given back
      spare: 10                 # per cent that are kept free by ordering ahead; at most the headroom
      ready: 93                 # per cent of the times in which what is asked for next, before a node could come, fits
      late: 15m
      orders: 32
      budget: {hour: 200, month: 50000}
    pools:
      - {name: default, max: 20, headroom: 15}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, TypeVar

from aliquot.client.capacity import CapacityPolicy, CapacitySpec, NodeShape, PoolBound
from aliquot.common.duration import parse_duration_ms
from aliquot.common.errors import AliquotError, ConfigError
from aliquot.common.files import read_document, text_of
from aliquot.common.quantity import parse_bytes, parse_milli

_T = TypeVar("_T")
_SHAPE = {"name", "model", "devices", "max", "min", "lead", "price", "pool", "labels", "memory", "cpu", "host_memory"}
_SHAPE |= {"linked", "machines"}
_POLICY = {"act", "target", "means", "believe", "idle", "keep", "rest", "headroom", "late", "orders", "budget"}
_POLICY |= {"spare", "ready"}


def read_capacity_file(path: Path) -> CapacitySpec:
    """What a file puts on offer. Raises `ConfigError`."""
    content = read_document(path)
    try:
        document = _table(content, "", {"shapes", "policy", "pools"})
        return CapacitySpec(
            tuple(_each(document, "shapes", _shape)),
            _policy(_table(document.get("policy", {}), "policy", _POLICY)),
            tuple(_each(document, "pools", _pool)),
        )
    except AliquotError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from error


def _shape(value: Any, where: str) -> NodeShape:  # noqa: ANN401
    shape = _table(value, where, _SHAPE)
    return NodeShape(
        name=text_of(shape, "name", where),
        model=text_of(shape, "model", where),
        devices=_whole(shape, "devices", where, 1),
        nodes_max=_whole(shape, "max", where, 1),
        pool=str(shape.get("pool", "")),
        memory_bytes=_read(parse_bytes, shape, "memory", where) or 0,
        labels={str(key): str(each) for key, each in _table(shape.get("labels", {}), f"{where}.labels").items()},
        cpu_milli=_read(parse_milli, shape, "cpu", where),
        host_memory_bytes=_read(parse_bytes, shape, "host_memory", where),
        nodes_min=_whole(shape, "min", where, 0),
        lead_s=_seconds(shape, "lead", where) or 0,
        price_micro=_micro(shape, "price", where) or 0,
        machines=tuple(str(name) for name in shape.get("machines", ())),
        linked=bool(shape.get("linked")),
    )


def _policy(policy: Mapping[str, Any]) -> CapacityPolicy:
    budget = _table(policy.get("budget", {}), "policy.budget", {"hour", "month"})
    means = policy.get("means")
    if means is not None and not isinstance(means, list):
        raise ConfigError("policy.means: is no list", hint="[wait, reclaim, shrink, move]")
    return CapacityPolicy(
        act=bool(policy.get("act")),
        target_wait_s=_seconds(policy, "target", "policy"),
        means=tuple(str(word) for word in means or ()),
        means_s=_seconds(policy, "believe", "policy"),
        idle_s=_seconds(policy, "idle", "policy"),
        keep_s=_seconds(policy, "keep", "policy"),
        rest_s=_seconds(policy, "rest", "policy"),
        headroom_permille=_permille(policy, "headroom", "policy"),
        spare_permille=_permille(policy, "spare", "policy"),
        ready_permille=_permille(policy, "ready", "policy"),
        late_s=_seconds(policy, "late", "policy"),
        orders_max=_whole(policy, "orders", "policy", 0) if "orders" in policy else None,
        hour_micro=_micro(budget, "hour", "policy.budget"),
        month_micro=_micro(budget, "month", "policy.budget"),
        no_means=means == [],
    )


def _pool(value: Any, where: str) -> PoolBound:  # noqa: ANN401
    pool = _table(value, where, {"name", "max", "headroom"})
    return PoolBound(
        text_of(pool, "name", where),
        _whole(pool, "max", where, 0) if "max" in pool else None,
        _permille(pool, "headroom", where),
    )


def _each(document: Mapping[str, Any], key: str, make: Callable[[Any, str], _T]) -> list[_T]:
    values = document.get(key, [])
    if not isinstance(values, list):
        raise ConfigError(f"{key}: is no list", hint=f"write them as a list under `{key}`")
    return [make(value, f"{key}[{number}]") for number, value in enumerate(values)]


def _table(value: Any, where: str, known: set[str] | None = None) -> Mapping[str, Any]:  # noqa: ANN401
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where or 'the file'}: is no table", hint="see `aliquot capacity apply --help`")
    unknown = sorted(set(map(str, value)) - known) if known is not None else []
    if unknown:
        raise ConfigError(f"{where or 'the file'}: {unknown[0]!r} is not known", hint=", ".join(sorted(known or ())))
    return value


def _whole(table: Mapping[str, Any], key: str, where: str, default: int) -> int:
    found = table.get(key, default)
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise ConfigError(f"{where}.{key}: {found!r} is no whole number")
    return found


def _read(parse: Callable[[str], _T], table: Mapping[str, Any], key: str, where: str) -> _T | None:
    if key not in table:
        return None
    try:
        return parse(str(table[key]))
    except AliquotError as error:
        raise ConfigError(f"{where}.{key}: {error.message}", hint=error.hint) from error


def _seconds(table: Mapping[str, Any], key: str, where: str) -> int | None:
    found = _read(parse_duration_ms, table, key, where)
    return None if found is None else found // 1000


def _micro(table: Mapping[str, Any], key: str, where: str) -> int | None:
    return _scaled(table, key, where, 1_000_000)


def _permille(table: Mapping[str, Any], key: str, where: str) -> int | None:
    return _scaled(table, key, where, 10)


def _scaled(table: Mapping[str, Any], key: str, where: str, by: int) -> int | None:
    if key not in table:
        return None
    try:
        found = Decimal(str(table[key])) * by
        if not found.is_finite() or found < 0:
            raise InvalidOperation
    except InvalidOperation:
        raise ConfigError(f"{where}.{key}: {table[key]!r} is no number above 0") from None
    return int(found)
