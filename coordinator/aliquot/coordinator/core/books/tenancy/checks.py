"""What may be declared: ranges, a tree without cycles, and no more guaranteed than there is. All before any fact."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aliquot.common import limits, names
from aliquot.common.tiers import Tier
from aliquot.coordinator.core.books.tenancy.in_force import WINDOWS_MAX
from aliquot.coordinator.core.books.tenancy.offences import KEPT as OFFENCES_KEPT
from aliquot.coordinator.core.books.tenancy.promises import promised_together, too_much
from aliquot.coordinator.core.books.tenancy.scaling import ScaleRule
from aliquot.coordinator.core.books.tenancy.specs import (
    MEMORY_BYTES_MAX,
    QUEUE_DEPTH_MAX,
    ROOT,
    SHARE_MILLI_MAX,
    UNLIMITED,
    WEIGHT_MAX,
    Amount,
    OnOverLimit,
    PoolSpec,
    QueueSpec,
    Quota,
    TenantSpec,
)
from aliquot.coordinator.core.books.tenancy.tenancy import Tenancy
from aliquot.coordinator.core.books.tenancy.timetable import read_timetable
from aliquot.coordinator.core.books.use import ENDING, WARNINGS_MAX, IdlePolicy
from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.values.errors import InvalidField, fields_refused
from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI

SCALE_RULES_MAX = 32
WINDOWS_IN_ALL_MAX = 2_000
"""Of all tenants and queues: a declaration looks a week ahead at each."""
_YEAR_MS = 366 * 86_400_000


def check_pool(spec: PoolSpec, path: str) -> None:
    """Ranges of a pool. Raises InvalidField."""
    with fields_refused():
        names.validate_pool(spec.name, f"{path}.name")
    models = [declared.model for declared in spec.declared]
    if len(set(models)) != len(models):
        raise InvalidField(f"{path}.declared", "a model is declared twice")
    for number, declared in enumerate(spec.declared):
        where = f"{path}.declared[{number}]"
        if not declared.model:
            raise InvalidField(f"{where}.model", "a declared device needs a model")
        _range(f"{where}.devices", declared.devices, 0, 10**7)
        _range(f"{where}.memory_bytes", declared.memory_bytes, 0, MEMORY_BYTES_MAX)
    _amount(f"{path}.limit", spec.limit, UNLIMITED)


def check_tenant(spec: TenantSpec, path: str) -> None:
    """Ranges of a tenant. Raises InvalidField."""
    with fields_refused():
        names.validate_tenant(spec.name, f"{path}.name")
    if spec.default_queue:
        with fields_refused():
            names.validate_queue(spec.default_queue, f"{path}.default_queue")
    _quota(f"{path}.quota", spec.quota)
    _range(f"{path}.budget.share_milli_ms", spec.budget.share_milli_ms, 0, 1 << 62)
    _range(f"{path}.budget.money_micro", spec.budget.money_micro, 0, 1 << 62)
    _range(f"{path}.disruptions_max", spec.disruptions_max, 0, 10**6)
    _range(f"{path}.disruption_period_ms", spec.disruption_period_ms, 1000, _YEAR_MS)
    _on_over_limit(spec.on_over_limit, f"{path}.on_over_limit")
    if spec.priority_max is not None:
        _range(f"{path}.priority_max", spec.priority_max, limits.MIN_PRIORITY, limits.MAX_PRIORITY)
    if spec.waiting_max is not None:
        _range(f"{path}.waiting_max", spec.waiting_max, 0, 10**9)


def _on_over_limit(policy: OnOverLimit | None, path: str) -> None:
    if policy is not None:
        _range(f"{path}.for_ms", policy.for_ms, 1000, _YEAR_MS)
        _range(f"{path}.after", policy.after, 1, OFFENCES_KEPT)
        _range(f"{path}.min_tier", policy.min_tier, Tier.PRELOAD, Tier.MIG)


def check_queue(spec: QueueSpec, path: str) -> None:
    """Ranges of a queue. Raises InvalidField."""
    with fields_refused():
        names.validate_queue(spec.name, f"{path}.name")
    if spec.name == ROOT:
        if spec.parent not in ("", ROOT):
            raise InvalidField(f"{path}.parent", "the root queue is above all others and has no parent")
        if spec.quota.guarantees or spec.pool or spec.tenants:
            raise InvalidField(path, "the root queue takes a policy, a limit and a half-life only")
    else:
        with fields_refused():
            names.validate_queue(spec.parent, f"{path}.parent")
        if spec.parent == spec.name:
            raise InvalidField(f"{path}.parent", f"queue {spec.name} would be its own parent")
    if spec.pool:
        with fields_refused():
            names.validate_pool(spec.pool, f"{path}.pool")
    _quota(f"{path}.quota", spec.quota)
    _range(f"{path}.ageing_ms", spec.ageing_ms, 0, _YEAR_MS)
    _range(f"{path}.reserve_after_ms", spec.reserve_after_ms, 0, _YEAR_MS)
    _range(f"{path}.large_first_permille", spec.large_first_permille, 0, 1000)
    _range(f"{path}.half_life_ms", spec.half_life_ms, 1000, 10 * _YEAR_MS)
    _on_over_limit(spec.on_over_limit, f"{path}.on_over_limit")
    _idle(spec.idle, f"{path}.idle")
    if spec.extend_to_ms is not None:
        _range(f"{path}.extend_to_ms", spec.extend_to_ms, 0, _YEAR_MS)
    if len(spec.scaling) > SCALE_RULES_MAX:
        raise InvalidField(f"{path}.scaling", f"{len(spec.scaling)} rules; at most {SCALE_RULES_MAX}")
    for number, rule in enumerate(spec.scaling):
        _scale_rule(rule, f"{path}.scaling[{number}]")


def _idle(policy: IdlePolicy | None, path: str) -> None:
    if policy is None:
        return
    _range(f"{path}.after_ms", policy.after_ms, 1000, _YEAR_MS)
    if len(policy.warn_ms) > WARNINGS_MAX:
        raise InvalidField(f"{path}.warn_ms", f"{len(policy.warn_ms)} warnings; at most {WARNINGS_MAX}")
    for number, warn_ms in enumerate(policy.warn_ms):
        after_ms = policy.warn_ms[number - 1] if number else 0
        if not after_ms < warn_ms < policy.after_ms:
            raise InvalidField(f"{path}.warn_ms", "warnings come one after another, and all before `after`")
    if policy.action in ENDING and not policy.warn_ms:
        raise InvalidField(f"{path}.warn_ms", "nothing is ended without a warning", hint="such as warn: [1h]")


def _scale_rule(rule: ScaleRule, path: str) -> None:
    if not (rule.when or rule.waiting_at_least or rule.busy_below_permille):
        raise InvalidField(path, "a rule needs a condition: a window, how many wait, or how busy")
    if rule.when:
        _timetable(rule.when, f"{path}.when")
    _range(f"{path}.waiting_at_least", rule.waiting_at_least, 0, 10**6)
    _range(f"{path}.busy_below_permille", rule.busy_below_permille, 0, 1000)


def check_tree(queues: Mapping[str, QueueSpec], now_ms: int) -> None:
    """Parents exist, nothing is its own ancestor, and no child is promised what its parent was not, at any time."""
    for name, spec in queues.items():
        seen = [name]
        while seen[-1] != ROOT:
            parent = queues[seen[-1]].parent
            if parent in seen:
                raise InvalidField(f"queues[{name}].parent", f"a cycle: {' > '.join([*seen, parent])}")
            if parent != ROOT and parent not in queues:
                raise InvalidField(
                    f"queues[{name}].parent", f"there is no queue {parent!r}; apply it first, or with this one"
                )
            seen.append(parent)
        if len(seen) > QUEUE_DEPTH_MAX + 1:
            raise InvalidField(
                f"queues[{name}].parent", f"{len(seen) - 1} levels; at most {QUEUE_DEPTH_MAX} are allowed"
            )
        if spec.pool and spec.parent in queues and queues[spec.parent].pool not in ("", spec.pool):
            raise InvalidField(
                f"queues[{name}].pool", f"its parent {spec.parent} is bound to pool {queues[spec.parent].pool}"
            )
    for name, spec in queues.items():
        if name == ROOT or not spec.quota.guarantees:
            continue
        below = [child.quota for child in queues.values() if child.parent == name and child.name != ROOT]
        for found in promised_together(below, spec.quota, now_ms):
            if found.own and found.exceeds:
                raise InvalidField(
                    f"queues[{name}].quota.guaranteed",
                    f"its children are guaranteed {_shown(found.total)}, itself only {_shown(found.own)}"
                    f"{found.when(now_ms)}",
                )


def check_promises(tenancy: Tenancy, inventory: Inventory, now_ms: int) -> None:
    """No more is guaranteed than was declared (or has registered), at any time within the next week. Clocks of several
    zones that are put forward at different times may change that later: then every guarantee shrinks for the while.

    Raises InvalidField with the numbers.
    """
    declared = declared_capacity(tenancy, inventory)
    owners = [tenant.spec.quota for tenant in tenancy.tenants.values()]
    owners += [queue.spec.quota for name, queue in tenancy.queues.items() if queue.spec.parent == ROOT != name]
    passed = too_much(owners, None, declared, now_ms)
    if passed is not None:
        raise InvalidField(
            "quota.guaranteed",
            f"{_shown(passed.total)} would be guaranteed to tenants and top-level queues together"
            f"{passed.when(now_ms)}; the pools have {_shown(declared)}, declared or registered",
            hint="guarantee less, or declare the devices that are to come in their pool (`declared`)",
        )
    for queue in tenancy.queues.values():
        pool, own = queue.spec.pool, queue.spec.quota
        if not pool:
            continue
        bound = [
            other.spec.quota
            for other in tenancy.queues.values()
            if other.spec.pool == pool and tenancy.queue_spec(other.spec.parent).pool != pool
        ]
        there = pool_capacity(tenancy, inventory, pool)
        passed = too_much(bound, None, there, now_ms) if own.guarantees else None
        if passed is not None:
            raise InvalidField(
                "quota.guaranteed",
                f"{_shown(passed.total)} would be guaranteed in pool {pool}{passed.when(now_ms)}, which has "
                f"{_shown(there)}",
                hint="guarantee less, or declare the devices that are to come in their pool (`declared`)",
            )


def declared_capacity(tenancy: Tenancy, inventory: Inventory) -> Amount:
    """Of all pools: what was declared, or what has registered where that is more."""
    total = Amount()
    for pool in {*tenancy.pools, *(key[0] for key in inventory.totals())}:
        total = total.plus(pool_capacity(tenancy, inventory, pool))
    return total


def pool_capacity(tenancy: Tenancy, inventory: Inventory, pool: str) -> Amount:
    """Of one pool: per model, what was declared or what has registered, whichever is more."""
    by_model: dict[str, Amount] = {}
    declared = tenancy.pools.get(pool)
    if declared is not None:
        for part in declared.spec.declared:
            by_model[part.model] = Amount(part.devices * WHOLE_SHARE_MILLI, part.devices * part.memory_bytes)
    for (name, model), totals in inventory.totals().items():
        if name == pool:
            known = by_model.get(model, Amount())
            by_model[model] = Amount(
                max(known.share_milli, totals.share_capacity_milli),
                max(known.memory_bytes, totals.memory_capacity_bytes),
            )
    return Amount(
        sum(amount.share_milli for amount in by_model.values()),
        sum(amount.memory_bytes for amount in by_model.values()),
    )


def check_windows(quotas: Iterable[Quota]) -> None:
    """Not more windows in all than can be looked at. Raises InvalidField."""
    windows = sum(len(quota.windows) for quota in quotas)
    if windows > WINDOWS_IN_ALL_MAX:
        raise InvalidField(
            "quota.windows",
            f"{windows} windows of quotas in all; at most {WINDOWS_IN_ALL_MAX}",
            hint="declare them with queues that several tenants share",
        )


def _quota(path: str, quota: Quota) -> None:
    if len(quota.windows) > WINDOWS_MAX:
        raise InvalidField(f"{path}.windows", f"{len(quota.windows)} windows; at most {WINDOWS_MAX}")
    for number, window in enumerate(quota.windows):
        where = f"{path}.windows[{number}]"
        _timetable(window.when, f"{where}.when")
        if window.guaranteed is None and window.limit is None and window.models is None:
            raise InvalidField(
                where, "it changes nothing", hint="say what is guaranteed, or the limit, while it is open"
            )
        _fixed_quota(where, quota.under(number))
    _fixed_quota(path, quota)


def _timetable(when: str, path: str) -> None:
    try:
        read_timetable(when)
    except ValueError as error:
        raise InvalidField(path, str(error)) from error


def _fixed_quota(path: str, quota: Quota) -> None:
    _amount(f"{path}.guaranteed", quota.guaranteed, 0)
    _amount(f"{path}.limit", quota.limit, UNLIMITED)
    _range(f"{path}.weight", quota.weight, 1, WEIGHT_MAX)
    _below(path, quota.guaranteed, quota.limit)
    models = [model.model for model in quota.models]
    if len(set(models)) != len(models):
        raise InvalidField(f"{path}.models", "a model is named twice")
    for number, model in enumerate(quota.models):
        where = f"{path}.models[{number}]"
        if not model.model:
            raise InvalidField(f"{where}.model", "is empty")
        _amount(f"{where}.guaranteed", model.guaranteed, 0)
        _amount(f"{where}.limit", model.limit, UNLIMITED)
        _below(where, model.guaranteed, model.limit)


def _below(path: str, guaranteed: Amount, limit: Amount) -> None:
    for unit, promise, bound in (
        ("share_milli", guaranteed.share_milli, limit.share_milli),
        ("memory_bytes", guaranteed.memory_bytes, limit.memory_bytes),
    ):
        if 0 <= bound < promise:
            raise InvalidField(f"{path}.guaranteed.{unit}", f"{promise} are guaranteed, but the limit is {bound}")


def _amount(path: str, amount: Amount, lowest: int) -> None:
    _range(f"{path}.share_milli", amount.share_milli, lowest, SHARE_MILLI_MAX)
    _range(f"{path}.memory_bytes", amount.memory_bytes, lowest, MEMORY_BYTES_MAX)


def _range(path: str, value: int, lowest: int, highest: int) -> None:
    if not lowest <= value <= highest:
        raise InvalidField(path, f"{value} is not within {lowest}..{highest}")


def _shown(amount: Amount) -> str:
    return f"{amount.share_milli / 1000:g} devices and {amount.memory_bytes / (1 << 30):g} GiB"
