"""Pools, tenants, queues and prices: declared together or not at all, on the version that was read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import owner_of, parts_of, queue_of
from aliquot.coordinator.core.books.ledger.facts import RatesApplied
from aliquot.coordinator.core.books.ledger.rates import RateCard, check_rates
from aliquot.coordinator.core.books.tenancy import checks
from aliquot.coordinator.core.books.tenancy.accounts import Chain
from aliquot.coordinator.core.books.tenancy.facts import (
    OffencesForgotten,
    PoolApplied,
    PoolRemoved,
    QueueApplied,
    QueueRemoved,
    QuotasInForce,
    TenantApplied,
    TenantRemoved,
)
from aliquot.coordinator.core.books.tenancy.in_force import OUTSIDE, InForce, in_force, over
from aliquot.coordinator.core.books.tenancy.limits import over_limit, promised
from aliquot.coordinator.core.books.tenancy.offences import counted_for_ms
from aliquot.coordinator.core.books.tenancy.owning import may_use
from aliquot.coordinator.core.books.tenancy.specs import (
    DEFAULT_QUEUE,
    ROOT,
    Pool,
    PoolSpec,
    Queue,
    QueueSpec,
    Quota,
    Tenant,
    TenantSpec,
    upwards,
)
from aliquot.coordinator.core.books.tenancy.tenancy import Tenancy, recount
from aliquot.coordinator.core.commands.outcomes import ApplyOutcome, Decision
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.placement.policies import BY_WORKLOAD, POLICIES
from aliquot.coordinator.core.values.errors import (
    Conflict,
    InvalidField,
    QueueInUse,
    QueueNotFound,
    TenantInUse,
    TenantNotFound,
)
from aliquot.coordinator.core.values.fact import Fact, by_kind
from aliquot.coordinator.core.values.timers import Due

_Spec = TypeVar("_Spec", PoolSpec, TenantSpec, QueueSpec)
APPLIED_MAX = 10_000


def apply(known: Known, command: c.Apply, now_ms: int) -> Decision[ApplyOutcome]:
    """Declare what differs. All or nothing. Raises Conflict, InvalidField."""
    if len(command.pools) + len(command.tenants) + len(command.queues) > APPLIED_MAX:
        raise InvalidField("items", f"more than {APPLIED_MAX} at once")
    _check_ranges(command)
    tenancy = known.tenancy
    facts: list[Fact] = []
    unchanged: list[str] = []
    trial = _copy(tenancy)
    changed: list[tuple[str, int]] = []
    for pool, wanted in _differing("pool", command.pools, tenancy.pools, unchanged):
        trial.pools[pool.name] = Pool(pool, wanted)
        facts.append(PoolApplied(at_ms=now_ms, spec=pool, version=wanted))
        changed.append((f"pool {pool.name}", wanted))
    for queue, wanted in _differing("queue", command.queues, tenancy.queues, unchanged):
        trial.queues[queue.name] = Queue(queue, wanted)
        facts.append(QueueApplied(at_ms=now_ms, spec=queue, version=wanted))
        changed.append((f"queue {queue.name}", wanted))
    for tenant, wanted in _differing("tenant", command.tenants, tenancy.tenants, unchanged):
        trial.tenants[tenant.name] = Tenant(tenant, wanted)
        facts.append(TenantApplied(at_ms=now_ms, spec=tenant, version=wanted))
        changed.append((f"tenant {tenant.name}", wanted))
    opened = [
        in_force("q" if isinstance(fact, QueueApplied) else "t", fact.spec.name, fact.spec.quota, now_ms)
        for fact in facts
        if isinstance(fact, TenantApplied | QueueApplied) and fact.spec.quota.windows
    ]
    if opened:
        trial.set_in_force(opened)
        facts.append(QuotasInForce(at_ms=now_ms, items=tuple(opened)))
    if facts:
        _check_trial(known, trial, now_ms)
    if command.rates is not None:
        version = known.ledger.prices.version
        _expect("rates", command.rates_version, version)
        if version and known.ledger.prices.latest == command.rates:
            unchanged.append("rates")
        else:
            _check_currency(known, command.rates)
            facts.append(RatesApplied(at_ms=now_ms, card=command.rates, version=version + 1))
            changed.append(("rates", version + 1))
    outcome = ApplyOutcome(tuple(changed), tuple(unchanged))
    return Decision(() if command.dry_run else tuple(facts), outcome)


def remove(known: Known, command: c.Withdraw, now_ms: int) -> Decision[None]:
    """Withdraw a declaration that is not in use."""
    tenancy, name = known.tenancy, command.name
    fact: Fact
    if command.kind is c.Declared.TENANT:
        tenant = tenancy.tenants.get(name)
        if tenant is None:
            raise TenantNotFound(f"there is no tenant {name!r}", hint="`aliquot tenants` lists those there are")
        _expect(f"tenant {name}", command.version, tenant.version)
        live = [lease for lease in known.leases.values() if lease.request.tenant == name and not lease.ended]
        if live:
            holding = sum(bool(lease.holding) for lease in live)
            raise TenantInUse(
                f"tenant {name} has {holding} leases that hold something and {len(live) - holding} that wait",
                hint="release them first; its ledger stays in any case",
            )
        fact = TenantRemoved(at_ms=now_ms, name=name)
    elif command.kind is c.Declared.QUEUE:
        queue = tenancy.queues.get(name)
        if queue is None:
            raise QueueNotFound(f"there is no queue {name!r}", hint="`aliquot queues` lists those there are")
        _expect(f"queue {name}", command.version, queue.version)
        _check_unused(known, name)
        fact = QueueRemoved(at_ms=now_ms, name=name)
    else:
        pool = tenancy.pools.get(name)
        if pool is None:
            raise InvalidField("name", f"there is no declaration of pool {name!r}")
        _expect(f"pool {name}", command.version, pool.version)
        if any(queue.spec.pool == name for queue in tenancy.queues.values()):
            raise QueueInUse(f"queues are bound to pool {name}", hint="bind them to another pool first")
        fact = PoolRemoved(at_ms=now_ms, name=name)
    return Decision((fact,))


def move_quotas(known: Known, command: c.MoveQuotas, now_ms: int) -> Decision[None]:
    """Put in force what windows of quotas say by now."""
    return Decision(tuple(quotas_moved(known, now_ms)))


def quotas_moved(known: Known, now_ms: int) -> list[Fact]:
    """A fact about all windows of quotas that have opened or closed by now; none where none has."""
    tenancy = known.tenancy
    items: list[InForce] = []
    for item in over(tenancy.in_force.values(), now_ms):
        spec = tenancy.queue_spec(item.name) if item.kind == "q" else tenancy.tenant_spec(item.name)
        items.append(in_force(item.kind, item.name, spec.quota, now_ms, item))
    return [QuotasInForce(at_ms=now_ms, items=tuple(items))] if items else []


def forgive(known: Known, command: c.Forgive, now_ms: int) -> Decision[int]:
    """Hold nothing of what was against a tenant any more. Answers with how many offences were forgiven."""
    offences = known.tenancy.offences.get(command.tenant, ())
    if not offences:
        return Decision((), 0)
    fact = OffencesForgotten(at_ms=now_ms, tenant=command.tenant, up_to_ms=offences[-1], forgiven=True)
    return Decision((fact,), len(offences))


def offences_over(known: Known, tenant: str, now_ms: int) -> list[Fact]:
    """Forget the offences of a tenant that count by no policy any more."""
    longest_ms = max(counted_for_ms(known.tenancy, tenant), default=0)
    over = [at_ms for at_ms in known.tenancy.offences.get(tenant, ()) if at_ms + longest_ms <= now_ms]
    return [OffencesForgotten(at_ms=now_ms, tenant=tenant, up_to_ms=over[-1])] if over else []


def _check_unused(known: Known, name: str) -> None:
    below = [queue.spec.name for queue in known.tenancy.queues.values() if queue.spec.parent == name]
    if below and name != ROOT:
        raise QueueInUse(f"queue {name} has queues below it: {', '.join(sorted(below))}", hint="remove those first")
    users = [t.spec.name for t in known.tenancy.tenants.values() if t.spec.default_queue == name]
    if users:
        raise QueueInUse(f"queue {name} is the default of {', '.join(sorted(users)[:8])}", hint="give them another one")
    if name in (ROOT, DEFAULT_QUEUE):
        return
    live = sum(not lease.ended and queue_of(known.tenancy, lease) == name for lease in known.leases.values())
    if live:
        raise QueueInUse(f"queue {name} has {live} leases", hint="release them, or wait until they have ended")


def _check_ranges(command: c.Apply) -> None:
    for number, (pool, _) in enumerate(command.pools):
        checks.check_pool(pool, f"pools[{number}]")
        _check_placement(pool.placement, f"pools[{number}].placement")
    for number, (tenant, _) in enumerate(command.tenants):
        checks.check_tenant(tenant, f"tenants[{number}]")
    for number, (queue, _) in enumerate(command.queues):
        checks.check_queue(queue, f"queues[{number}]")
        _check_placement(queue.placement, f"queues[{number}].placement")
    for kind, items in (("pools", command.pools), ("tenants", command.tenants), ("queues", command.queues)):
        names = [spec.name for spec, _ in items]
        if len(set(names)) != len(names):
            raise InvalidField(kind, "the same name twice")
    if command.rates is not None:
        check_rates(command.rates, "rates")


def _check_placement(name: str, path: str) -> None:
    known = (BY_WORKLOAD, *POLICIES)
    if name and name not in known:
        raise InvalidField(path, f"there is no placement policy {name[:64]!r}; there are {', '.join(sorted(known))}")


def _check_currency(known: Known, card: RateCard) -> None:
    """Amounts in the books have no currency of their own: they are all in that of the pool."""
    before = known.ledger.prices.latest
    if before is None or before.currency == card.currency:
        return
    if known.holding_by_priority or known.ledger.next_number > 1:
        raise InvalidField(
            "rates.currency",
            f"{card.currency}, but what is charged and paid is in {before.currency}",
            hint=f"write currency: {before.currency}, which a pool keeps once something was charged or paid in it",
        )


def _differing(
    kind: str, items: Iterable[tuple[_Spec, int]], known: Mapping[str, object], unchanged: list[str]
) -> list[tuple[_Spec, int]]:
    """What is new or different, with its next version."""
    found: list[tuple[_Spec, int]] = []
    for spec, expected in items:
        old = known.get(spec.name)
        version = old.version if isinstance(old, (Pool, Tenant, Queue)) else 0
        _expect(f"{kind} {spec.name}", expected, version)
        if isinstance(old, (Pool, Tenant, Queue)) and old.spec == spec:
            unchanged.append(f"{kind} {spec.name}")
        else:
            found.append((spec, version + 1))
    return found


def _expect(what: str, expected: int, version: int) -> None:
    if expected not in (c.ANY_VERSION, version):
        now = f"is at version {version}" if version else "does not exist"
        raise Conflict(
            f"{what} {now}, not at version {expected}: somebody else has changed it",
            hint="read it again, and apply your change to what is there now",
        )


def _copy(tenancy: Tenancy) -> Tenancy:
    trial = Tenancy()
    trial.pools, trial.tenants, trial.queues = dict(tenancy.pools), dict(tenancy.tenants), dict(tenancy.queues)
    trial.in_force = dict(tenancy.in_force)
    return trial


def _check_trial(known: Known, trial: Tenancy, now_ms: int) -> None:
    """Check the declarations as a whole: the tree, the guarantees, and what is held already."""
    checks.check_windows(quota for _, _, quota in _quotas(trial))
    checks.check_tree({name: queue.spec for name, queue in trial.queues.items()}, now_ms)
    trial.find_claims()
    for name, tenant in trial.tenants.items():
        default = tenant.spec.default_queue
        if not default:
            continue
        if known.config.strict_tenants and default not in trial.queues:
            raise InvalidField(f"tenants[{name}].default_queue", f"there is no queue {default!r}")
        above = next((each for each in upwards(name) if each != name and each in trial.tenants), "")
        if (
            above
            and not may_use(trial, above, default, apart_from=above)
            and name not in trial.queue_spec(default).tenants
        ):
            raise InvalidField(
                f"tenants[{name}].default_queue",
                f"tenant {above} above it may not use queue {default}",
                hint=f"an administrator can list {name} under `tenants` of that queue",
            )
    capacity = checks.declared_capacity(trial, known.inventory)
    before = checks.declared_capacity(known.tenancy, known.inventory)
    if _promises(trial) != _promises(known.tenancy) or capacity != before:
        checks.check_promises(trial, known.inventory, now_ms)
    held = [(owner_of(lease), parts_of(lease.holding)) for lease in known.leases.values() if lease.holding]
    recount(trial, held)
    for owner, _ in held:
        passed = over_limit(_without_windows(trial.chain(owner.tenant, owner.queue)), [])
        # What is above one already, from before limits held for all below them, is no reason to declare nothing.
        if passed is not None and passed != over_limit(known.tenancy.chain(owner.tenant, owner.queue), []):
            raise InvalidField(
                "quota.limit",
                f"{passed.detail.partition(';')[0]}: a limit can't be below what is held",
                hint="release something first, or lower the limit in steps",
            )


def _without_windows(chain: Chain) -> Chain:
    """Without limits that a window has put in force: those may come down below what is held at any time."""
    kept = [item for item in chain.limited if item.in_force is None or item.in_force.window == OUTSIDE]
    return chain._replace(limited=tuple(kept))


def _promises(tenancy: Tenancy) -> tuple[object, ...]:
    """All that decides whether more is promised than there is."""
    windows = [(kind, name, quota) for kind, name, quota in _quotas(tenancy) if quota.windows]
    bound = sorted((name, queue.spec) for name, queue in tenancy.queues.items() if queue.spec.pool)
    return promised(tenancy), bound, windows


def _quotas(tenancy: Tenancy) -> Iterator[tuple[str, str, Quota]]:
    for name, tenant in sorted(tenancy.tenants.items()):
        yield "t", name, tenant.spec.quota
    for name, queue in sorted(tenancy.queues.items()):
        yield "q", name, queue.spec.quota


def _offence(known: Known, tenant: str, now_ms: int) -> list[Fact]:
    """An offence of a tenant does not count any more: what it was held to may be over."""
    known.memory.look_again = True
    return offences_over(known, tenant, now_ms)


def _quota(known: Known, _: str, now_ms: int) -> list[Fact]:
    """A window of a quota opens or closes; where nothing does, this moment was put in force already."""
    return quotas_moved(known, now_ms)


DECIDES = Decides(commands=by_kind(apply, move_quotas, remove, forgive), due={Due.OFFENCE: _offence, Due.QUOTA: _quota})
