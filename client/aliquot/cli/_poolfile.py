"""Files that describe a pool's tenants: YAML, JSON or TOML, for `aliquot apply`.

::

    pools:
      - name: default
        devices: [{model: A100-80, count: 64, memory: 79Gi}]   # declared: guarantees may count on them already
        limit: {gpus: 60}                                       # what is above it stays free
    queues:
      - name: root                                              # the order among top-level queues
        policy: fair_share                                      # fifo, priority, fair_share, capacity, slowdown
      - {name: training, policy: fair_share, guaranteed: {gpus: 16}, limit: {gpus: 48}, weight: 2}
      - name: vision
        parent: training
        ageing: 1m
        reserve_after: 5m
        idle: {action: lend, after: 2h, warn: [1h, 105m]}       # or notify, suspend, release
        scaling: [{keep: start, when: weekdays 08:00-18:00}]   # for elastic leases
    tenants:
      - name: research
        queue: training
        guaranteed: {gpus: 8, memory: 640Gi}
        limit: {gpus: 24}
        models: {A100-80: {limit: {gpus: 8}}}
        windows:                            # the first that is open is in force; of queues too
          - {when: "weekdays 08:00-18:00 Europe/Zurich", limit: {gpus: 12}}
          - {when: weekends, guaranteed: {gpus: 16}, limit: {gpus: 48}}
        budget: {period: month, gpu_hours: 5000, money: 8000}
        disruptions: {max: 3, per: 1h}
        priority_max: 100                   # of this tenant and all below it
        waiting_max: 5000
        on_over_limit: {action: stronger_tier, for: 1h, after: 1, min_tier: driver}   # or refuse, or none
    prices:
      currency: EUR
      gpu_hour: {A100-80: 2.10, "*": 1.00}
      gib_hour: {"*": 0.01}
      minimum: 1m
      discounts: [{above_gpu_hours: 1000, percent: 10}]

What the file does not name stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, TypeVar

from aliquot.client import admin
from aliquot.common import limits
from aliquot.common.duration import parse_duration_ms
from aliquot.common.errors import AliquotError, ConfigError
from aliquot.common.files import read_document, text_of
from aliquot.common.quantity import parse_bytes, parse_milli, parse_quantity

_T = TypeVar("_T")
_GPU_HOUR_MILLI_MS = 1000 * 3_600_000
_QUOTA_KEYS = {"guaranteed", "limit", "weight", "models", "windows"}
_QUEUE_KEYS = {
    *("name", "parent", "policy", "pool", "tenants", "ageing", "preempts", "reserve_after", "half_life", "scaling"),
    *("on_over_limit", "idle", "extend_to", "large_first"),
    *_QUOTA_KEYS,
}
_TENANT_KEYS = {
    *("name", "queue", "budget", "disruptions", "description", "on_over_limit", "priority_max", "waiting_max"),
    *_QUOTA_KEYS,
}
_PRICE_KEYS = {"currency", "gpu_hour", "gib_hour", "minimum", "discounts"}


def read_pool_file(path: Path) -> admin.Declarations:
    """The file's declarations. Raises `ConfigError` with the place in the file."""
    content = _load(path)
    _check_keys(content, {"pools", "queues", "tenants", "prices"}, str(path))
    prices = content.get("prices")
    return admin.Declarations(
        pools=_each(content, "pools", "", _pool),
        queues=_each(content, "queues", "", _queue),
        tenants=_each(content, "tenants", "", _tenant),
        rates=None if prices is None else _prices(prices, "prices"),
    )


def _load(path: Path) -> Mapping[str, Any]:
    content = read_document(path, exact=True)
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path}: a table was expected", hint="pools, queues, tenants, prices")
    return content


def _pool(value: Any, where: str) -> admin.PoolSpec:  # noqa: ANN401 - whatever the file holds
    _check_keys(value, {"name", "devices", "limit"}, where)
    return admin.PoolSpec(
        name=text_of(value, "name", where),
        declared=_each(value, "devices", where, _devices),
        limit=_amount(value, "limit", where),
    )


def _devices(value: Any, where: str) -> admin.DeclaredDevices:  # noqa: ANN401
    _check_keys(value, {"model", "count", "memory"}, where)
    return admin.DeclaredDevices(
        model=text_of(value, "model", where),
        devices=_whole(value.get("count", 1), f"{where}.count"),
        memory_bytes=_read(parse_bytes, value.get("memory", 0), f"{where}.memory"),
    )


def _queue(value: Any, where: str) -> admin.QueueSpec:  # noqa: ANN401
    _check_keys(value, _QUEUE_KEYS, where)
    return admin.QueueSpec(
        name=text_of(value, "name", where),
        parent=str(value.get("parent", "")),
        policy=str(value.get("policy", "")),
        pool=str(value.get("pool", "")),
        tenants=tuple(str(tenant) for tenant in _list(value, "tenants")),
        never_preempts=not _flag(value, "preempts", where, default=True),
        quota=_quota(value, where),
        ageing_s=_seconds(value, "ageing", where, "0s") if "ageing" in value else None,
        reserve_after_s=_seconds(value, "reserve_after", where, "0s") if "reserve_after" in value else None,
        half_life_s=_seconds(value, "half_life", where, "0s"),
        scaling=_each(value, "scaling", where, _rule),
        on_over_limit=_table(value, "on_over_limit", where, _on_over_limit),
        idle=_table(value, "idle", where, _idle),
        extend_to_s=_seconds(value, "extend_to", where, "0s") if "extend_to" in value else None,
        large_first_permille=_read(parse_milli, value["large_first"], f"{where}.large_first")
        if "large_first" in value
        else None,
    )


def _rule(value: Any, where: str) -> admin.ScaleRule:  # noqa: ANN401
    _check_keys(value, {"keep", "when", "waiting", "busy_below"}, where)
    return admin.ScaleRule(
        keep=str(value.get("keep", "")),
        when=str(value.get("when", "")),
        waiting_at_least=_whole(value.get("waiting", 0), f"{where}.waiting"),
        busy_below_permille=_percent(value, "busy_below", where, 0),
    )


def _tenant(value: Any, where: str) -> admin.TenantSpec:  # noqa: ANN401
    _check_keys(value, _TENANT_KEYS, where)
    disruptions_max, period_s = _table(value, "disruptions", where, _disruptions) or (0, 0)
    return admin.TenantSpec(
        name=text_of(value, "name", where),
        default_queue=str(value.get("queue", "")),
        description=str(value.get("description", "")),
        quota=_quota(value, where),
        budget=_table(value, "budget", where, _budget),
        disruptions_max=disruptions_max,
        disruption_period_s=period_s,
        on_over_limit=_table(value, "on_over_limit", where, _on_over_limit),
        priority_max=_priority(value["priority_max"], f"{where}.priority_max") if "priority_max" in value else None,
        waiting_max=_whole(value["waiting_max"], f"{where}.waiting_max") if "waiting_max" in value else None,
    )


def _budget(value: Any, where: str) -> admin.Budget:  # noqa: ANN401
    _check_keys(value, {"period", "gpu_hours", "money"}, where)
    return admin.Budget(
        period=str(value.get("period", "month")),
        share_milli_ms=_scaled(value.get("gpu_hours", 0), _GPU_HOUR_MILLI_MS, f"{where}.gpu_hours"),
        money_micro=_scaled(value.get("money", 0), 10**6, f"{where}.money"),
    )


def _disruptions(value: Any, where: str) -> tuple[int, int]:  # noqa: ANN401
    _check_keys(value, {"max", "per"}, where)
    return _whole(value.get("max", 0), f"{where}.max"), _seconds(value, "per", where, "1h")


def _on_over_limit(value: Any, where: str) -> admin.OnOverLimit:  # noqa: ANN401
    _check_keys(value, {"action", "for", "after", "min_tier"}, where)
    return admin.OnOverLimit(
        action=text_of(value, "action", where),
        for_s=_seconds(value, "for", where, "1h"),
        after=_whole(value.get("after", 1), f"{where}.after"),
        min_tier=str(value.get("min_tier", "")),
    )


def _idle(value: Any, where: str) -> admin.IdlePolicy:  # noqa: ANN401
    _check_keys(value, {"action", "after", "warn"}, where)
    warnings = value.get("warn")
    if warnings is not None and not isinstance(warnings, list):
        raise ConfigError(f"{where}.warn: a list was expected", hint="such as [1h, 105m]")
    return admin.IdlePolicy(
        action=text_of(value, "action", where),
        after_s=_seconds(value, "after", where, "2h"),
        warn_s=tuple(_seconds({"": each}, "", f"{where}.warn[{n}]", "1h") for n, each in enumerate(warnings or ())),
        never_warn=warnings == [],
    )


def _prices(value: Any, where: str) -> admin.RateCard:  # noqa: ANN401
    _check_keys(value, _PRICE_KEYS, where)
    by_gpu, by_gib = value.get("gpu_hour") or {}, value.get("gib_hour") or {}
    return admin.RateCard(
        currency=str(value.get("currency", "credits")),
        minimum_ms=_read(parse_duration_ms, value.get("minimum", "1m"), f"{where}.minimum"),
        rates=tuple(
            admin.ModelRate(
                model=str(model),
                gpu_hour_micro=_scaled(by_gpu.get(model, by_gpu.get("*", 0)), 10**6, f"{where}.gpu_hour.{model}"),
                gib_hour_micro=_scaled(by_gib.get(model, by_gib.get("*", 0)), 10**6, f"{where}.gib_hour.{model}"),
            )
            for model in dict.fromkeys([*by_gpu, *by_gib])
        ),
        tiers=_each(value, "discounts", where, _discount),
    )


def _discount(value: Any, where: str) -> admin.DiscountTier:  # noqa: ANN401
    _check_keys(value, {"above_gpu_hours", "percent"}, where)
    return admin.DiscountTier(
        above_gpu_milli_hours=_scaled(value.get("above_gpu_hours", 0), 1000, f"{where}.above_gpu_hours"),
        discount_permille=_scaled(value.get("percent", 0), 10, f"{where}.percent"),
    )


def _quota(value: Mapping[str, Any], where: str) -> admin.Quota:
    return admin.Quota(
        guaranteed=_amount(value, "guaranteed", where),
        limit=_amount(value, "limit", where),
        weight=_whole(value.get("weight", 1), f"{where}.weight"),
        models=_models(value, where),
        windows=_each(value, "windows", where, _window),
    )


def _window(value: Any, where: str) -> admin.QuotaWindow:  # noqa: ANN401
    _check_keys(value, {"when", "guaranteed", "limit", "models"}, where)
    return admin.QuotaWindow(
        when=text_of(value, "when", where),
        guaranteed=_table(value, "guaranteed", where, _some),
        limit=_table(value, "limit", where, _some),
        models=_models(value, where),
    )


def _models(value: Mapping[str, Any], where: str) -> tuple[admin.ModelQuota, ...]:
    return tuple(
        _model_quota(str(model), quota, f"{where}.models.{model}")
        for model, quota in (value.get("models") or {}).items()
    )


def _model_quota(model: str, value: Any, where: str) -> admin.ModelQuota:  # noqa: ANN401
    _check_keys(value, {"guaranteed", "limit"}, where)
    return admin.ModelQuota(model, _amount(value, "guaranteed", where), _amount(value, "limit", where))


def _amount(value: Mapping[str, Any], key: str, where: str) -> admin.Amount:
    return _table(value, key, where, _some) or admin.Amount()


def _some(value: Any, where: str) -> admin.Amount:  # noqa: ANN401
    _check_keys(value, {"gpus", "memory"}, where)
    return admin.Amount(
        _read(parse_milli, value["gpus"], f"{where}.gpus") if "gpus" in value else None,
        _read(parse_bytes, value["memory"], f"{where}.memory") if "memory" in value else None,
    )


def _each(value: Mapping[str, Any], key: str, where: str, make: Callable[[Any, str], _T]) -> tuple[_T, ...]:
    """The items of a list, each made with its place in the file."""
    place = f"{where}.{key}" if where else key
    return tuple(make(item, f"{place}[{number}]") for number, item in enumerate(_list(value, key)))


def _table(value: Mapping[str, Any], key: str, where: str, make: Callable[[Any, str], _T]) -> _T | None:
    """The value of a key, or None if it is not set."""
    return None if value.get(key) is None else make(value[key], f"{where}.{key}")


def _percent(value: Mapping[str, Any], key: str, where: str, default: int) -> int:
    return _scaled(str(value.get(key, default)).removesuffix("%"), 10, f"{where}.{key}")


def _scaled(value: Any, scale: int, where: str) -> int:  # noqa: ANN401
    found: Fraction = _read(parse_quantity, value, where) * scale
    if found < 0 or found.denominator != 1:
        raise ConfigError(f"{where}: {value} is negative or has too many decimals", hint="write fewer decimals")
    return found.numerator


def _seconds(value: Mapping[str, Any], key: str, where: str, default: str) -> int:
    found_ms = _read(parse_duration_ms, value.get(key, default), f"{where}.{key}")
    if found_ms % 1000:
        raise ConfigError(f"{where}.{key}: {value[key]} is not a whole number of seconds", hint="write 1s or more")
    return found_ms // 1000


def _flag(value: Mapping[str, Any], key: str, where: str, *, default: bool) -> bool:
    found = value.get(key, default)
    if not isinstance(found, bool):
        raise ConfigError(f"{where}.{key}: {found!r} is neither true nor false", hint="write true or false")
    return found


def _read(parse: Callable[[str], _T], value: Any, where: str) -> _T:  # noqa: ANN401
    """A value, parsed; errors name its place."""
    try:
        return parse(str(value))
    except AliquotError as error:
        raise ConfigError(f"{where}: {error.message}", hint=error.hint) from error


def _whole(value: Any, where: str) -> int:  # noqa: ANN401
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise ConfigError(f"{where}: {value!r} is not a whole number")
    return value


def _priority(value: Any, where: str) -> int:  # noqa: ANN401
    if isinstance(value, bool) or not isinstance(value, int) or not limits.MIN_PRIORITY <= value <= limits.MAX_PRIORITY:
        raise ConfigError(f"{where}: {value!r} is not a priority: {limits.MIN_PRIORITY} to {limits.MAX_PRIORITY}")
    return value


def _list(value: Mapping[str, Any], key: str) -> list[Any]:
    found = value.get(key) or []
    if not isinstance(found, list):
        raise ConfigError(f"{key}: a list was expected, not {type(found).__name__}")
    return found


def _check_keys(value: Any, known: set[str], where: str) -> None:  # noqa: ANN401
    if not isinstance(value, Mapping):
        raise ConfigError(f"{where}: a table was expected, not {type(value).__name__}")
    unknown = sorted(set(map(str, value)) - known)
    if unknown:
        raise ConfigError(f"{where}.{unknown[0]}: unknown", hint=f"one of {', '.join(sorted(known))}")
