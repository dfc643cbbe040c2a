"""The admin contract's messages, from and to what the core declares."""

from __future__ import annotations

from typing import TypeVar

from aliquot.common import catalog
from aliquot.common.errors import InvalidFieldError
from aliquot.common.fields import Writer
from aliquot.common.tiers import Tier, parse_tier
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.holds import Hold
from aliquot.coordinator.core.books.ledger.invoice import Invoice
from aliquot.coordinator.core.books.ledger.rates import ModelRate, RateCard
from aliquot.coordinator.core.books.ledger.rates import Tier as DiscountTier
from aliquot.coordinator.core.books.tenancy import specs
from aliquot.coordinator.core.books.tenancy.scaling import Keep, ScaleRule
from aliquot.coordinator.core.books.tenancy.specs import UNLIMITED
from aliquot.coordinator.core.deciding.tenancy import APPLIED_MAX
from aliquot.coordinator.core.values.troubles import Trouble
from aliquot.coordinator.reading.books import TenancyView
from aliquot.coordinator.wire.quotas import amount_message, quota_message, read_amount, read_quota, use_message
from aliquot.coordinator.wire.use import policy_message, read_policy
from aliquot.v1 import admin_pb2

_Item = TypeVar("_Item", admin_pb2.PoolItem, admin_pb2.TenantItem, admin_pb2.QueueItem)
_HOUR_S = 3600
_DAY_S = 24 * _HOUR_S


def read_apply(request: admin_pb2.ApplyRequest) -> c.Apply:
    """What is to be declared. Raises InvalidFieldError for words that nobody knows; ranges are the core's to check."""
    items = len(request.pools) + len(request.tenants) + len(request.queues)
    if items > APPLIED_MAX:
        raise InvalidFieldError("items", f"{items} at once; at most {APPLIED_MAX}")
    return c.Apply(
        pools=tuple((_pool(item.spec), _version(item)) for item in request.pools),
        tenants=tuple((_tenant(item.spec, n), _version(item)) for n, item in enumerate(request.tenants)),
        queues=tuple((_queue(item.spec, n), _version(item)) for n, item in enumerate(request.queues)),
        rates=_rates(request.rates) if request.HasField("rates") else None,
        rates_version=request.rates_version if request.HasField("rates_version") else c.ANY_VERSION,
        dry_run=request.dry_run,
    )


def _version(item: _Item) -> int:
    return item.version if item.HasField("version") else c.ANY_VERSION


def _on_over_limit(message: admin_pb2.OnOverLimit, path: str) -> specs.OnOverLimit:
    action = message.action or specs.OverLimitAction.NONE.value
    if action not in [known.value for known in specs.OverLimitAction]:
        hint = "none, stronger_tier or refuse"
        raise InvalidFieldError(f"{path}.action", f"{action[:32]!r} is not an action", hint=hint)
    usual = specs.OnOverLimit()
    return specs.OnOverLimit(
        action=specs.OverLimitAction(action),
        for_ms=message.for_s * 1000 or usual.for_ms,
        after=message.after or usual.after,
        min_tier=parse_tier(message.min_tier, f"{path}.min_tier") if message.min_tier else usual.min_tier,
    )


def _pool(message: admin_pb2.PoolSpec) -> specs.PoolSpec:
    declared = tuple(specs.DeclaredDevices(d.model, d.devices, d.memory_bytes) for d in message.declared)
    return specs.PoolSpec(message.name, declared, read_amount(message.limit, UNLIMITED))


def _tenant(message: admin_pb2.TenantSpec, number: int) -> specs.TenantSpec:
    period = message.budget.period or specs.Period.MONTH.value
    if period not in [known.value for known in specs.Period]:
        raise InvalidFieldError(
            f"tenants[{number}].budget.period", f"{period[:32]!r} is not a period", hint="hour, day, week or month"
        )
    return specs.TenantSpec(
        name=message.name,
        quota=read_quota(message.quota, f"tenants[{number}].quota"),
        default_queue=message.default_queue,
        budget=specs.Budget(specs.Period(period), message.budget.share_milli_ms, message.budget.money_micro),
        disruptions_max=message.disruptions_max,
        disruption_period_ms=(message.disruption_period_s or _HOUR_S) * 1000,
        description=message.description,
        on_over_limit=_on_over_limit(message.on_over_limit, f"tenants[{number}].on_over_limit")
        if message.HasField("on_over_limit")
        else None,
        priority_max=message.priority_max if message.HasField("priority_max") else None,
        waiting_max=message.waiting_max if message.HasField("waiting_max") else None,
    )


def _queue(message: admin_pb2.QueueSpec, number: int) -> specs.QueueSpec:
    policy = message.policy or specs.QueuePolicy.PRIORITY.value
    if policy not in [known.value for known in specs.QueuePolicy]:
        raise InvalidFieldError(
            f"queues[{number}].policy",
            f"{policy[:32]!r} is not a policy",
            hint="fifo, priority, fair_share, capacity or slowdown",
        )
    return specs.QueueSpec(
        name=message.name,
        parent=message.parent or ("" if message.name == specs.ROOT else specs.ROOT),
        policy=specs.QueuePolicy(policy),
        quota=read_quota(message.quota, f"queues[{number}].quota"),
        pool=message.pool,
        tenants=tuple(sorted(set(message.tenants))),
        ageing_ms=message.ageing_s * 1000 if message.HasField("ageing_s") else 60_000,
        preempts=not message.never_preempts,
        reserve_after_ms=message.reserve_after_s * 1000 if message.HasField("reserve_after_s") else 300_000,
        half_life_ms=(message.half_life_s or _DAY_S) * 1000,
        scaling=tuple(_scale_rule(rule, f"queues[{number}].scaling[{n}]") for n, rule in enumerate(message.scaling)),
        on_over_limit=_on_over_limit(message.on_over_limit, f"queues[{number}].on_over_limit")
        if message.HasField("on_over_limit")
        else None,
        idle=read_policy(message.idle, f"queues[{number}].idle") if message.HasField("idle") else None,
        extend_to_ms=message.extend_to_s * 1000 if message.HasField("extend_to_s") else None,
        large_first_permille=message.large_first_permille if message.HasField("large_first_permille") else 500,
    )


def _scale_rule(message: admin_pb2.ScaleRule, path: str) -> ScaleRule:
    keep = message.keep or Keep.START.value
    if keep not in [known.value for known in Keep]:
        raise InvalidFieldError(f"{path}.keep", f"{keep[:32]!r} is neither start nor least", hint="start or least")
    return ScaleRule(
        keep=Keep(keep),
        when=message.when,
        waiting_at_least=message.waiting_at_least,
        busy_below_permille=message.busy_below_permille,
    )


def _rates(message: admin_pb2.RateCard) -> RateCard:
    return RateCard(
        currency=message.currency or "credits",
        rates=tuple(
            ModelRate(catalog.parse_kind(rate.model), rate.gpu_hour_micro, rate.gib_hour_micro)
            for rate in message.rates
        ),
        tiers=tuple(DiscountTier(tier.above_gpu_milli_hours, tier.discount_permille) for tier in message.tiers),
        minimum_ms=message.minimum_ms,
    )


# -- out


def _on_over_limit_message(policy: specs.OnOverLimit | None) -> admin_pb2.OnOverLimit | None:
    if policy is None:
        return None
    tier = Tier(policy.min_tier).word
    return admin_pb2.OnOverLimit(
        action=policy.action.value, for_s=policy.for_ms // 1000, after=policy.after, min_tier=tier
    )


def _tenant_message(spec: specs.TenantSpec) -> admin_pb2.TenantSpec:
    budget = spec.budget
    return admin_pb2.TenantSpec(
        name=spec.name,
        quota=quota_message(spec.quota),
        default_queue=spec.default_queue,
        budget=admin_pb2.Budget(
            period=budget.period.value, share_milli_ms=budget.share_milli_ms, money_micro=budget.money_micro
        )
        if budget
        else None,
        disruptions_max=spec.disruptions_max,
        disruption_period_s=spec.disruption_period_ms // 1000,
        description=spec.description,
        on_over_limit=_on_over_limit_message(spec.on_over_limit),
        priority_max=spec.priority_max,
        waiting_max=spec.waiting_max,
    )


def _queue_message(spec: specs.QueueSpec) -> admin_pb2.QueueSpec:
    return admin_pb2.QueueSpec(
        name=spec.name,
        parent=spec.parent,
        policy=spec.policy.value,
        quota=quota_message(spec.quota),
        pool=spec.pool,
        tenants=spec.tenants,
        ageing_s=spec.ageing_ms // 1000,
        never_preempts=not spec.preempts,
        reserve_after_s=spec.reserve_after_ms // 1000,
        half_life_s=spec.half_life_ms // 1000,
        scaling=[
            admin_pb2.ScaleRule(
                keep=rule.keep.value,
                when=rule.when,
                waiting_at_least=rule.waiting_at_least,
                busy_below_permille=rule.busy_below_permille,
            )
            for rule in spec.scaling
        ],
        on_over_limit=_on_over_limit_message(spec.on_over_limit),
        idle=policy_message(spec.idle),
        extend_to_s=None if spec.extend_to_ms is None else spec.extend_to_ms // 1000,
        large_first_permille=spec.large_first_permille,
    )


_HOLD = Writer(admin_pb2.HoldView, Hold)
_RATES = Writer(admin_pb2.RateCard, RateCard)


def tenancy_message(view: TenancyView) -> admin_pb2.Tenancy:
    """Everything declared."""
    message = admin_pb2.Tenancy(
        rates_version=view.rates_version,
        guarantee_scale_millionths=view.guarantee_scale_millionths,
        alerts=view.alerts,
        holds=map(_HOLD.message, view.holds),
    )
    for pool in view.pools:
        declared = [
            admin_pb2.DeclaredDevices(model=d.model, devices=d.devices, memory_bytes=d.memory_bytes)
            for d in pool.spec.declared
        ]
        spec = admin_pb2.PoolSpec(
            name=pool.spec.name, declared=declared, limit=amount_message(pool.spec.limit, UNLIMITED)
        )
        message.pools.add(spec=spec, version=pool.version)
    for tenant in view.tenants:
        message.tenants.add(
            spec=_tenant_message(tenant.spec),
            version=tenant.version,
            use=use_message(tenant),
            budget_permille=tenant.budget_permille,
            offences=tenant.offences,
            held_until_ms=tenant.held_until_ms,
        )
    for queue in view.queues:
        message.queues.add(spec=_queue_message(queue.spec), version=queue.version, use=use_message(queue))
    if view.rates is not None:
        _RATES.write(message.rates, view.rates)
    return message


invoice_message = Writer(
    admin_pb2.Invoice,
    Invoice,
    {"discounts": lambda invoice, _: [_discount_message(*discount) for discount in invoice.discounts]},
).message
"""An invoice; what knows no bound as decimals."""


def _discount_message(above: int, permille: int, discount: int) -> admin_pb2.InvoiceDiscount:
    return admin_pb2.InvoiceDiscount(
        above_gpu_milli_hours=above, discount_permille=permille, discount_micro=str(discount)
    )


set_aside_message = Writer(
    admin_pb2.SetAside, Trouble, {"work": lambda trouble, _: str(trouble.work), "subject": "work.subject"}
).message
"""Work on which deciding failed too often."""
