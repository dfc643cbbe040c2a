"""Files that describe a pool's tenants: YAML, JSON or TOML, for `aliquot apply`.

::

    pools:
      - name: default
        devices: [{model: A100-80, count: 64, memory: 79Gi}]   # declared: guarantees may count on them already
        limit: {gpus: 60}                                       # what stays free is headroom
        balancing: {label: project, threshold: 20, waited: 5m, keep: 3, rest: 10m, every: 5m, auto: false}
    queues:
      - name: root                                              # the order among top-level queues
        policy: fair_share                                      # fifo, priority, fair_share, capacity
      - {name: training, policy: fair_share, guaranteed: {gpus: 16}, limit: {gpus: 48}, weight: 2}
      - name: vision
        parent: training
        ageing: 1m
        reserve_after: 5m
        scaling: [{keep: start, cron: "0 8 * * mon-fri", lasting: 10h}]   # for elastic leases; times are UTC
    tenants:
      - name: research
        queue: training
        guaranteed: {gpus: 8, memory: 640Gi}
        limit: {gpus: 24}
        models: {A100-80: {limit: {gpus: 8}}}
        budget: {period: month, gpu_hours: 5000, money: 8000}
        disruptions: {max: 3, per: 1h}
    prices:
      currency: EUR
      gpu_hour: {A100-80: 2.10, "*": 1.00}
      gib_hour: {"*": 0.01}
      minimum: 1m
      discounts: [{above_gpu_hours: 1000, percent: 10}]

What the file does not name is left as it is.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

import yaml

from aliquot.common.duration import parse_duration_ms
from aliquot.common.errors import AliquotError, ConfigError
from aliquot.common.quantity import parse_bytes, parse_milli, parse_quantity
from aliquot.v1 import admin_pb2

_T = TypeVar("_T")
_GPU_HOUR_MILLI_MS = 1000 * 3_600_000
_QUOTA_KEYS = {"guaranteed", "limit", "weight", "models"}
_QUEUE_KEYS = {
    *("name", "parent", "policy", "pool", "tenants", "ageing", "preempts", "reserve_after", "half_life", "scaling"),
    *_QUOTA_KEYS,
}
_TENANT_KEYS = {"name", "queue", "budget", "disruptions", "description", *_QUOTA_KEYS}
_PRICE_KEYS = {"currency", "gpu_hour", "gib_hour", "minimum", "discounts"}


def read_pool_file(path: Path) -> admin_pb2.ApplyRequest:
    """What the file declares. Raises ConfigError with the place in the file."""
    content = _load(path)
    _check_keys(content, {"pools", "queues", "tenants", "prices"}, str(path))
    request = admin_pb2.ApplyRequest()
    for number, pool in enumerate(_list(content, "pools")):
        request.pools.add(spec=_pool(pool, f"pools[{number}]"))
    for number, queue in enumerate(_list(content, "queues")):
        request.queues.add(spec=_queue(queue, f"queues[{number}]"))
    for number, tenant in enumerate(_list(content, "tenants")):
        request.tenants.add(spec=_tenant(tenant, f"tenants[{number}]"))
    if content.get("prices") is not None:
        request.rates.CopyFrom(_prices(content["prices"], "prices"))
    return request


def _load(path: Path) -> Mapping[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}", hint="name a file that can be read") from error
    try:
        if path.suffix == ".json":
            content = json.loads(text, parse_float=str)
        elif path.suffix == ".toml":
            content = tomllib.loads(text, parse_float=str)
        else:
            content = yaml.safe_load(text)
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} can't be read: {error}", hint="YAML, .json and .toml are read") from error
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path}: a table was expected", hint="pools, queues, tenants, prices")
    return content


def _pool(value: Any, where: str) -> admin_pb2.PoolSpec:  # noqa: ANN401 - whatever the file holds
    _check_keys(value, {"name", "devices", "limit", "balancing"}, where)
    spec = admin_pb2.PoolSpec(name=_text(value, "name", where))
    for number, device in enumerate(_list(value, "devices")):
        place = f"{where}.devices[{number}]"
        _check_keys(device, {"model", "count", "memory"}, place)
        spec.declared.add(
            model=_text(device, "model", place),
            devices=_whole(device.get("count", 1), f"{place}.count"),
            memory_bytes=_read(parse_bytes, device.get("memory", 0), f"{place}.memory"),
        )
    _amount(value.get("limit"), spec.limit, f"{where}.limit")
    if value.get("balancing") is not None:
        _balancing(value["balancing"], spec.balancing, f"{where}.balancing")
    return spec


def _balancing(value: Any, into: admin_pb2.Balancing, where: str) -> None:  # noqa: ANN401
    _check_keys(value, {"label", "threshold", "waited", "keep", "rest", "every", "auto"}, where)
    into.label = _text(value, "label", where)
    into.auto = _flag(value, "auto", where, default=False)
    into.threshold_permille = _scaled(str(value.get("threshold", 20)).removesuffix("%"), 10, f"{where}.threshold")
    into.keep_nodes = _whole(value.get("keep", 3), f"{where}.keep")
    into.waited_s = _seconds(value, "waited", where, "5m")
    into.rest_s = _seconds(value, "rest", where, "10m")
    into.every_s = _seconds(value, "every", where, "5m")


def _queue(value: Any, where: str) -> admin_pb2.QueueSpec:  # noqa: ANN401
    _check_keys(value, _QUEUE_KEYS, where)
    spec = admin_pb2.QueueSpec(
        name=_text(value, "name", where),
        parent=str(value.get("parent", "")),
        policy=str(value.get("policy", "")),
        pool=str(value.get("pool", "")),
        tenants=[str(tenant) for tenant in _list(value, "tenants")],
        never_preempts=not _flag(value, "preempts", where, default=True),
    )
    _quota(value, spec.quota, where)
    for key in ("ageing", "reserve_after", "half_life"):
        if key in value:
            setattr(spec, f"{key}_s", _seconds(value, key, where, "0s"))
    for number, rule in enumerate(_list(value, "scaling")):
        place = f"{where}.scaling[{number}]"
        _check_keys(rule, {"keep", "cron", "lasting", "waiting", "busy_below"}, place)
        spec.scaling.add(
            keep=str(rule.get("keep", "")),
            cron=str(rule.get("cron", "")),
            lasting_s=_seconds(rule, "lasting", place, "0s"),
            waiting_at_least=_whole(rule.get("waiting", 0), f"{place}.waiting"),
            busy_below_permille=_scaled(str(rule.get("busy_below", 0)).removesuffix("%"), 10, f"{place}.busy_below"),
        )
    return spec


def _tenant(value: Any, where: str) -> admin_pb2.TenantSpec:  # noqa: ANN401
    _check_keys(value, _TENANT_KEYS, where)
    spec = admin_pb2.TenantSpec(
        name=_text(value, "name", where),
        default_queue=str(value.get("queue", "")),
        description=str(value.get("description", "")),
    )
    _quota(value, spec.quota, where)
    budget = value.get("budget")
    if budget is not None:
        _check_keys(budget, {"period", "gpu_hours", "money"}, f"{where}.budget")
        spec.budget.period = str(budget.get("period", "month"))
        spec.budget.share_milli_ms = _scaled(
            budget.get("gpu_hours", 0), _GPU_HOUR_MILLI_MS, f"{where}.budget.gpu_hours"
        )
        spec.budget.money_micro = _scaled(budget.get("money", 0), 10**6, f"{where}.budget.money")
    disruptions = value.get("disruptions")
    if disruptions is not None:
        _check_keys(disruptions, {"max", "per"}, f"{where}.disruptions")
        spec.disruptions_max = _whole(disruptions.get("max", 0), f"{where}.disruptions.max")
        spec.disruption_period_s = _seconds(disruptions, "per", f"{where}.disruptions", "1h")
    return spec


def _prices(value: Any, where: str) -> admin_pb2.RateCard:  # noqa: ANN401
    _check_keys(value, _PRICE_KEYS, where)
    card = admin_pb2.RateCard(
        currency=str(value.get("currency", "credits")),
        minimum_ms=_read(parse_duration_ms, value.get("minimum", "1m"), f"{where}.minimum"),
    )
    by_gpu, by_gib = value.get("gpu_hour") or {}, value.get("gib_hour") or {}
    for model in dict.fromkeys([*by_gpu, *by_gib]):
        card.rates.add(
            model=str(model),
            gpu_hour_micro=_scaled(by_gpu.get(model, by_gpu.get("*", 0)), 10**6, f"{where}.gpu_hour.{model}"),
            gib_hour_micro=_scaled(by_gib.get(model, by_gib.get("*", 0)), 10**6, f"{where}.gib_hour.{model}"),
        )
    for number, tier in enumerate(_list(value, "discounts")):
        place = f"{where}.discounts[{number}]"
        _check_keys(tier, {"above_gpu_hours", "percent"}, place)
        card.tiers.add(
            above_gpu_milli_hours=_scaled(tier.get("above_gpu_hours", 0), 1000, f"{place}.above_gpu_hours"),
            discount_permille=_scaled(tier.get("percent", 0), 10, f"{place}.percent"),
        )
    return card


def _quota(value: Mapping[str, Any], into: admin_pb2.Quota, where: str) -> None:
    _amount(value.get("guaranteed"), into.guaranteed, f"{where}.guaranteed")
    _amount(value.get("limit"), into.limit, f"{where}.limit")
    into.weight = _whole(value.get("weight", 1), f"{where}.weight")
    for model, quota in (value.get("models") or {}).items():
        place = f"{where}.models.{model}"
        _check_keys(quota, {"guaranteed", "limit"}, place)
        of_model = into.models.add(model=str(model))
        _amount(quota.get("guaranteed"), of_model.guaranteed, f"{place}.guaranteed")
        _amount(quota.get("limit"), of_model.limit, f"{place}.limit")


def _amount(value: Any, into: admin_pb2.Amount, where: str) -> None:  # noqa: ANN401
    if value is None:
        return
    _check_keys(value, {"gpus", "memory"}, where)
    if "gpus" in value:
        into.share_milli = _read(parse_milli, value["gpus"], f"{where}.gpus")
    if "memory" in value:
        into.memory_bytes = _read(parse_bytes, value["memory"], f"{where}.memory")


def _scaled(value: Any, scale: int, where: str) -> int:  # noqa: ANN401
    found: Fraction = _read(parse_quantity, value, where) * scale
    if found < 0 or found.denominator != 1:
        raise ConfigError(f"{where}: {value} is negative, or finer than is kept", hint="write fewer decimals")
    return found.numerator


def _seconds(value: Mapping[str, Any], key: str, where: str, default: str) -> int:
    found_ms = _read(parse_duration_ms, value.get(key, default), f"{where}.{key}")
    if found_ms % 1000:
        raise ConfigError(f"{where}.{key}: {value[key]} is no whole number of seconds", hint="write 1s or more")
    return found_ms // 1000


def _flag(value: Mapping[str, Any], key: str, where: str, *, default: bool) -> bool:
    found = value.get(key, default)
    if not isinstance(found, bool):
        raise ConfigError(f"{where}.{key}: {found!r} is neither true nor false", hint="write true or false")
    return found


def _read(parse: Callable[[str], _T], value: Any, where: str) -> _T:  # noqa: ANN401
    """What a parser makes of a value; what it refuses is said with the place."""
    try:
        return parse(str(value))
    except AliquotError as error:
        raise ConfigError(f"{where}: {error.message}", hint=error.hint) from error


def _whole(value: Any, where: str) -> int:  # noqa: ANN401
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise ConfigError(f"{where}: {value!r} is no whole number")
    return value


def _list(value: Mapping[str, Any], key: str) -> list[Any]:
    found = value.get(key) or []
    if not isinstance(found, list):
        raise ConfigError(f"{key}: a list was expected, not {type(found).__name__}")
    return found


def _text(value: Mapping[str, Any], key: str, where: str) -> str:
    found = value.get(key)
    if not isinstance(found, str) or not found:
        raise ConfigError(f"{where}.{key}: not set", hint=f"write {key}: …")
    return found


def _check_keys(value: Any, known: set[str], where: str) -> None:  # noqa: ANN401
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: a table was expected, not {type(value).__name__}")
    unknown = sorted(set(map(str, value)) - known)
    if unknown:
        raise ConfigError(f"{where}.{unknown[0]}: unknown", hint=f"one of {', '.join(sorted(known))}")
