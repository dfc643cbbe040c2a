"""Pools, tenants, queues, quotas and prices between messages and what the core declares.

What is left out of a declaration is as the core's value has it by itself; ranges are the core's to check. Both
directions of a message stand side by side.
"""

from __future__ import annotations

from typing import Any

from aliquot.common import catalog
from aliquot.common.errors import InvalidFieldError
from aliquot.common.fields import Reader, Writer
from aliquot.common.tiers import Tier, parse_tier
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.ledger.rates import ModelRate, RateCard
from aliquot.coordinator.core.books.ledger.rates import Tier as DiscountTier
from aliquot.coordinator.core.books.tenancy.scaling import ScaleRule
from aliquot.coordinator.core.books.tenancy.specs import (
    ROOT,
    UNLIMITED,
    Amount,
    Budget,
    DeclaredDevices,
    ModelQuota,
    OnOverLimit,
    PoolSpec,
    QueueSpec,
    Quota,
    QuotaWindow,
    TenantSpec,
)
from aliquot.coordinator.core.books.tenancy.timetable import read_timetable
from aliquot.coordinator.core.books.use import HOUR_MS, IdlePolicy
from aliquot.coordinator.core.deciding.tenancy import APPLIED_MAX
from aliquot.coordinator.reading.books import AccountView
from aliquot.v1 import admin_pb2

# -- amounts and quotas

_GUARANTEED = Reader(admin_pb2.Amount, Amount)
_LIMIT = Reader(
    admin_pb2.Amount,
    Amount,
    {
        "share_milli": lambda message, _: message.share_milli if message.HasField("share_milli") else UNLIMITED,
        "memory_bytes": lambda message, _: message.memory_bytes if message.HasField("memory_bytes") else UNLIMITED,
    },
)
_GUARANTEED_OUT = Writer(
    admin_pb2.Amount,
    Amount,
    {
        "share_milli": lambda amount, _: amount.share_milli or None,
        "memory_bytes": lambda amount, _: amount.memory_bytes or None,
    },
)
_LIMIT_OUT = Writer(
    admin_pb2.Amount,
    Amount,
    {
        "share_milli": lambda amount, _: None if amount.share_milli == UNLIMITED else amount.share_milli,
        "memory_bytes": lambda amount, _: None if amount.memory_bytes == UNLIMITED else amount.memory_bytes,
    },
)

_MODEL = Reader(
    admin_pb2.ModelQuota,
    ModelQuota,
    {"model": lambda message, _: catalog.parse_kind(message.model), "guaranteed": _GUARANTEED, "limit": _LIMIT},
)
_MODEL_OUT = Writer(admin_pb2.ModelQuota, ModelQuota, {"guaranteed": _GUARANTEED_OUT, "limit": _LIMIT_OUT})


def _models(message: Any, _: str) -> tuple[ModelQuota, ...]:  # noqa: ANN401 - a quota, or a window of one
    return tuple(sorted(map(_MODEL.read, message.models), key=lambda model: model.model))


def _when(message: admin_pb2.QuotaWindow, path: str) -> str:
    try:
        return read_timetable(message.when).text
    except ValueError as error:
        raise InvalidFieldError(f"{path}.when", str(error)) from error


_WINDOW = Reader(
    admin_pb2.QuotaWindow,
    QuotaWindow,
    {
        "when": _when,
        "guaranteed": _GUARANTEED,
        "limit": _LIMIT,
        "models": lambda message, path: _models(message, path) or None,
    },
)
_WINDOW_OUT = Writer(
    admin_pb2.QuotaWindow,
    QuotaWindow,
    {
        "guaranteed": _GUARANTEED_OUT,
        "limit": _LIMIT_OUT,
        "models": (lambda window, _: window.models or (), _MODEL_OUT),
    },
)
_QUOTA = Reader(admin_pb2.Quota, Quota, {"guaranteed": _GUARANTEED, "limit": _LIMIT, "models": _models})
_QUOTA_OUT = Writer(admin_pb2.Quota, Quota, {"guaranteed": _GUARANTEED_OUT, "limit": _LIMIT_OUT})

# -- pools

_DECLARED = Reader(admin_pb2.DeclaredDevices, DeclaredDevices)
_POOL = Reader(admin_pb2.PoolSpec, PoolSpec, {"limit": _LIMIT})
POOL_OUT = Writer(
    admin_pb2.PoolSpec,
    PoolSpec,
    {
        "limit": _LIMIT_OUT,
    },
)

# -- tenants

_OVER_LIMIT = Reader(
    admin_pb2.OnOverLimit,
    OnOverLimit,
    {
        "min_tier": lambda message, path: (
            parse_tier(message.min_tier, f"{path}.min_tier") if message.min_tier else OnOverLimit().min_tier
        )
    },
)
_OVER_LIMIT_OUT = Writer(admin_pb2.OnOverLimit, OnOverLimit, {"min_tier": lambda policy, _: Tier(policy.min_tier).word})
_BUDGET = Reader(admin_pb2.Budget, Budget)
_BUDGET_OUT = Writer(admin_pb2.Budget, Budget)
_TENANT = Reader(admin_pb2.TenantSpec, TenantSpec)
TENANT_OUT = Writer(admin_pb2.TenantSpec, TenantSpec, {"budget": (lambda spec, _: spec.budget or None, _BUDGET_OUT)})

# -- queues


def _warn_ms(message: admin_pb2.IdlePolicy, _: str) -> tuple[int, ...]:
    """Without warnings of its own they come after a half and 7/8 of the time."""
    after_ms = message.after_s * 1000 or 2 * HOUR_MS
    if message.warn_s or message.never_warn:
        return tuple(warn_s * 1000 for warn_s in message.warn_s)
    return after_ms // 2, after_ms * 7 // 8


_IDLE = Reader(admin_pb2.IdlePolicy, IdlePolicy, {"warn_ms": _warn_ms})
_IDLE_OUT = Writer(
    admin_pb2.IdlePolicy,
    IdlePolicy,
    {
        "warn_s": lambda policy, _: [warn_ms // 1000 for warn_ms in policy.warn_ms],
        "never_warn": lambda policy, _: not policy.warn_ms,
    },
)
_SCALING = Reader(admin_pb2.ScaleRule, ScaleRule)
_QUEUE = Reader(
    admin_pb2.QueueSpec,
    QueueSpec,
    {
        "parent": lambda message, _: message.parent or ("" if message.name == ROOT else ROOT),
        "tenants": lambda message, _: tuple(sorted(set(message.tenants))),
        "preempts": lambda message, _: not message.never_preempts,
    },
)
QUEUE_OUT = Writer(admin_pb2.QueueSpec, QueueSpec, {"never_preempts": lambda spec, _: not spec.preempts})

# -- prices

_RATE = Reader(admin_pb2.ModelRate, ModelRate, {"model": lambda message, _: catalog.parse_kind(message.model)})
_DISCOUNT = Reader(admin_pb2.DiscountTier, DiscountTier)
_RATES = Reader(
    admin_pb2.RateCard,
    RateCard,
    {"minimum_ms": lambda message, _: message.minimum_ms},  # none at all, where nothing is said
)
RATES_OUT = Writer(admin_pb2.RateCard, RateCard)


def read_apply(request: admin_pb2.ApplyRequest) -> c.Apply:
    """What is to be declared. Raises InvalidFieldError for words that nobody knows; ranges are the core's to check."""
    items = len(request.pools) + len(request.tenants) + len(request.queues)
    if items > APPLIED_MAX:
        raise InvalidFieldError("items", f"{items} at once; at most {APPLIED_MAX}")
    return c.Apply(
        pools=_items(request.pools, _POOL, "pools"),
        tenants=_items(request.tenants, _TENANT, "tenants"),
        queues=_items(request.queues, _QUEUE, "queues"),
        rates=_RATES.read(request.rates) if request.HasField("rates") else None,
        rates_version=request.rates_version if request.HasField("rates_version") else c.ANY_VERSION,
        dry_run=request.dry_run,
    )


def _items(items: Any, table: Reader[Any, Any], path: str) -> tuple[Any, ...]:  # noqa: ANN401 - specs with versions
    return tuple(
        (
            table.read(item.spec, f"{path}[{number}]"),
            item.version if item.HasField("version") else c.ANY_VERSION,
        )
        for number, item in enumerate(items)
    )


# -- what they use


def _windows_now(view: AccountView[Any], _: object) -> admin_pb2.WindowsNow | None:
    """What its windows make of a quota now."""
    ruling = view.in_force
    if ruling is None:
        return None
    quota = view.spec.quota
    now = admin_pb2.WindowsNow(
        in_force=_QUOTA_OUT.message(quota.under(ruling.window)),
        window=quota.windows[ruling.window].when if 0 <= ruling.window < len(quota.windows) else "",
        until_ms=ruling.until_ms,
        unknown=ruling.unknown,
    )
    if ruling.until_ms and not ruling.unknown:
        _QUOTA_OUT.write(now.next, quota.under(ruling.following))
    return now


USE_OUT = Writer(
    admin_pb2.AccountUse,
    AccountView,
    {"guaranteed_now": ("guaranteed_scaled", _GUARANTEED_OUT), "windows": _windows_now},
)
