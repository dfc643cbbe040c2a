"""What was declared, and what each tenant and queue holds of it.

The declarations and the faded averages are books: durable, and part of the State's hash. What is held right now is an
index over the leases: kept up to date by `evolve`, recounted by `rebuild`, compared by the tests' invariants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

from aliquot.coordinator.core.books.tenancy.accounts import Account, AccountKey, Average, Chain, Held, Owner, faded
from aliquot.coordinator.core.books.tenancy.in_force import OUTSIDE, InForce
from aliquot.coordinator.core.books.tenancy.ranking import Part, Rank
from aliquot.coordinator.core.books.tenancy.specs import (
    DEFAULT_QUEUE,
    QUEUE_DEPTH_MAX,
    ROOT,
    Pool,
    Queue,
    QueueSpec,
    Quota,
    Tenant,
    TenantSpec,
    upwards,
)

_T = TypeVar("_T")


class Declarations(NamedTuple):
    """Everything that is declared, as of one moment."""

    pools: Mapping[str, Pool]
    tenants: Mapping[str, Tenant]
    queues: Mapping[str, Queue]
    offences: Mapping[str, tuple[int, ...]]
    in_force: Mapping[AccountKey, InForce]


@lru_cache(maxsize=4096)
def _undeclared_queue(name: str) -> QueueSpec:
    """Made once: it is looked up ten times for each lease."""
    return QueueSpec(name=name, parent="" if name == ROOT else ROOT)


class Tenancy:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.pools: dict[str, Pool] = {}
        self.tenants: dict[str, Tenant] = {}
        self.queues: dict[str, Queue] = {}
        self.offences: dict[str, tuple[int, ...]] = {}
        """When leases of a tenant ended as `OVER_LIMIT`, in order; see `offences`."""
        self.in_force: dict[AccountKey, InForce] = {}
        """Of each tenant ("t") and queue ("q") whose quota has windows."""
        self.edge_ms = 0
        """When the next of these is to be found out anew; 0: none is."""
        self.accounts: dict[AccountKey, Account] = {}
        """Of all that hold something or lately did."""
        self.version = 0
        """Moves with every declaration."""
        self.chains_version = 0
        """Moves with these, and when an account is opened or dropped."""
        self.guaranteed_version = 0
        """Moves when what is held by anybody with a guarantee changes, or a declaration does."""
        self.covered_version = 0
        """Moves with these, and when what somebody with a guarantee will be granted changes."""
        self.guarantees = False
        """Whether anything is guaranteed to anybody."""
        self.budgets = False
        self.ceilings = False
        """Whether any tenant has one on priorities or on what waits."""
        self.claims: dict[str, list[str]] = {}
        """Queue -> the tenants whose own it is."""
        self._chains: dict[tuple[str, str], Chain] = {}
        self._taken_version = -1
        self._changed: dict[AccountKey, Account] = {}
        self._unchecked: list[AccountKey] = []

    # -- declarations

    def tenant_spec(self, name: str) -> TenantSpec:
        """As declared; the defaults for one that was not."""
        tenant = self.tenants.get(name)
        return tenant.spec if tenant is not None else TenantSpec(name=name)

    def queue_spec(self, name: str) -> QueueSpec:
        """As declared; the defaults for one that was not."""
        queue = self.queues.get(name)
        if queue is not None:
            return queue.spec
        return _undeclared_queue(name)

    def queue_of(self, tenant: str, queue: str) -> str:
        """The queue that a request of this tenant waits in."""
        if queue:
            return queue
        declared = self.tenants.get(tenant)
        return (declared.spec.default_queue if declared is not None else "") or DEFAULT_QUEUE

    def path(self, queue: str) -> tuple[str, ...]:
        """From this queue up to the root."""
        names = [queue]
        while names[-1] != ROOT and len(names) <= QUEUE_DEPTH_MAX + 1:
            names.append(self.queue_spec(names[-1]).parent)
        return tuple(names)

    def said(self, tenant: str, queue: str, read: Callable[[QueueSpec], _T | None]) -> _T | None:
        """What the queue of a request says, else the first queue above that says anything; None: none does."""
        for name in self.path(self.queue_of(tenant, queue)):
            found = read(self.queue_spec(name))
            if found is not None:
                return found
        return None

    def find_claims(self) -> None:
        """Tenants were declared: which queue is whose own."""
        self.claims = {}
        for name, tenant in self.tenants.items():
            if tenant.spec.default_queue:
                self.claims.setdefault(tenant.spec.default_queue, []).append(name)

    def redeclared(self) -> None:
        """Something was declared: forget what was derived from the declarations. What is held must be recounted."""
        self.version += 1
        self.guaranteed_version += 1
        self.covered_version += 1
        self._forget_chains()
        self._find_edge()
        for account in self.accounts.values():
            self._rule(account)
            self._note(account)
        quotas = [t.spec.quota for t in self.tenants.values()] + [q.spec.quota for q in self.queues.values()]
        self.guarantees = any(quota.guarantees for quota in quotas)
        self.budgets = any(bool(tenant.spec.budget) for tenant in self.tenants.values())
        specs = [tenant.spec for tenant in self.tenants.values()]
        self.find_claims()
        self.ceilings = any(spec.priority_max is not None or spec.waiting_max is not None for spec in specs)

    def quota_of(self, kind: str, name: str) -> Quota:
        """What is in force of the quota of a tenant ("t") or queue ("q")."""
        declared = self.queue_spec(name).quota if kind == "q" else self.tenant_spec(name).quota
        if not declared.windows:
            return declared
        found = self.in_force.get((kind, name))
        return declared.under(found.window if found is not None else OUTSIDE)

    def set_in_force(self, items: Iterable[InForce]) -> None:
        """Windows of quotas have opened or closed. What follows from it is `redeclared`."""
        for item in items:
            self.in_force[item.kind, item.name] = item

    def put_in_force(self, items: Sequence[InForce]) -> bool:
        """The same where all that is held is counted as before: only amounts differ, and not whether there is a limit,
        a guarantee, or one of a kind of devices. False: nothing was done, and it takes `redeclared`.
        """
        for item in items:
            declared = self.queue_spec(item.name).quota if item.kind == "q" else self.tenant_spec(item.name).quota
            if not _counted_alike(self.quota_of(item.kind, item.name), declared.under(item.window)):
                return False
        self.set_in_force(items)
        self.version += 1
        self.chains_version += 1
        self.guaranteed_version += 1
        self.covered_version += 1
        self._find_edge()
        for item in items:
            for kind in ("q",) if item.kind == "q" else ("t", "s"):
                account = self.accounts.get((kind, item.name))
                if account is not None:
                    self._rule(account)
                    self._note(account)
        return True

    def _find_edge(self) -> None:
        self.edge_ms = min((item.until_ms for item in self.in_force.values() if item.until_ms), default=0)

    def _quota(self, kind: str, name: str) -> Quota:
        return self.quota_of("q" if kind == "q" else "t", name)

    def _rule(self, account: Account) -> None:
        """Set what an account's owner was promised, as it is in force."""
        kind, name = account.kind, account.name
        account.quota = self._quota(kind, name)
        account.declared = self.queue_spec(name).quota if kind == "q" else self.tenant_spec(name).quota
        owner = "q" if kind == "q" else "t", name
        account.in_force = self.in_force.get(owner) if account.declared.windows else None

    @property
    def half_life_ms(self) -> int:
        """Of the averages."""
        return self.queue_spec(ROOT).half_life_ms

    def set_offences(self, tenant: str, offences: tuple[int, ...]) -> None:
        """Replace what is known of a tenant's offences."""
        if offences:
            self.offences[tenant] = offences
        else:
            self.offences.pop(tenant, None)
        self.version += 1

    # -- what is held

    def account(self, kind: str, name: str) -> Account:
        """The account of a tenant ("t"), of a tenant with all below it ("s") or of a queue ("q"): an empty one, kept
        nowhere, where nothing was held lately.
        """
        account = self.accounts.get((kind, name))
        if account is None:
            account = Account(kind, name, Quota())
            self._rule(account)
            account.forget_held()
        return account

    def chain(self, tenant: str, queue: str) -> Chain:
        """The accounts of a request's tenant and queue (as the request names it, perhaps not at all); see `account`."""
        return self._chains.get((tenant, queue)) or self._chain(tenant, queue, self.account)

    def opened(self, owner: Owner) -> Chain:
        """The same of an owner, to count there."""
        key = owner.tenant, owner.queue
        chain = self._chains.get(key)
        if chain is None:
            chain = self._chains[key] = self._chain(*key, self._open)
        return chain

    def _chain(self, tenant: str, queue: str, account_of: Callable[[str, str], Account]) -> Chain:
        payer = account_of("t", tenant)
        queues = tuple(account_of("q", name) for name in self.path(self.queue_of(tenant, queue)))
        # A limit is on all that a tenant and those below it hold; what is guaranteed is each tenant's own.
        trees = tuple(account_of("s", name) for name in upwards(tenant) if _limited(self._quota("s", name)))
        return Chain(
            tenant=payer,
            queues=queues,
            trees=trees,
            limited=(*trees, *(account for account in queues if _limited(account.quota))),
            guaranteed=tuple(account for account in (payer, *queues) if account.quota.guarantees),
            accounts=(payer, *queues),
        )

    def _open(self, kind: str, name: str) -> Account:
        account = self.account(kind, name)
        if (kind, name) not in self.accounts:
            self.accounts[kind, name] = self._changed[kind, name] = account
            self.chains_version += 1
        return account

    def _forget_chains(self) -> None:
        self._chains.clear()
        self.chains_version += 1

    def drop_unused(self, number: int, at_ms: int) -> None:
        """Look at so many accounts, all of them in turn, and drop those that are as if they had never been.

        Nothing that is durable says when that happens: an account that was dropped and one that may be are the same in
        every answer, and neither is in a snapshot.
        """
        if not self._unchecked:
            self._unchecked = list(self.accounts)
        for key in self._unchecked[-number:]:
            account = self.accounts.get(key)
            if account is not None and self._is_unused(account, at_ms):
                del self.accounts[key]
                account.share_average = account.memory_average = account.average_ms = 0
                if self._taken_version < 0:
                    self._changed.pop(key, None)  # there is no copy that would have to drop it too
                else:
                    self._changed[key] = account
                self._forget_chains()
        del self._unchecked[-number:]

    def _is_unused(self, account: Account, at_ms: int) -> bool:
        if account.name in (self.queues if account.kind == "q" else self.tenants):
            return False
        quota = account.quota
        return not (account.slices or quota.guarantees or _limited(quota)) and self._has_faded(account, at_ms)

    def _has_faded(self, account: Account, at_ms: int) -> bool:
        """Whether nothing is left of the averages of an account that holds nothing, and never will be."""
        most = max(account.share_average, account.memory_average)
        return not account.average_ms or (at_ms - account.average_ms) // self.half_life_ms >= most.bit_length()

    def hold(self, owner: Owner, parts: list[Part], sign: int, at_ms: int) -> None:
        """Count slices (sign 1), or no longer (sign -1)."""
        chain = self.opened(owner)
        for account in chain.accounts:
            if account.average_ms < at_ms:
                account.accrue(at_ms, self.half_life_ms)
            account.count(parts, sign)
            if account.published:
                self._note(account)
        for account in chain.trees:  # nobody asks for their averages
            account.count(parts, sign)
            if account.published:
                self._note(account)
        for account in chain.limited:
            account.enlist(owner.lease_id, sign * len(parts))
        if chain.guaranteed:
            self.guaranteed_version += 1
            self.covered_version += 1

    def rank(self, owner: Owner, rank: Rank, parts: Iterable[Part] | None) -> None:
        """Set what a lease uses of guarantees now; None: it holds nothing."""
        for account in self.opened(owner).guaranteed:
            ranked = account.ranked
            changed = ranked.drop(owner.lease_id) if parts is None else ranked.put(owner.lease_id, rank, parts)
            self.guaranteed_version += changed
            self.covered_version += changed

    def expect(self, owner: Owner, rank: Rank, parts: Iterable[Part] | None) -> None:
        """Set what will be granted to a lease once others have ended for it; None: nothing."""
        for account in self.opened(owner).guaranteed:
            coming = account.coming
            changed = coming.drop(owner.lease_id) if parts is None else coming.put(owner.lease_id, rank, parts)
            self.covered_version += changed

    def forget_held(self) -> None:
        """Set everything that is held to nothing, before it is recounted. Averages stay."""
        for account in self.accounts.values():
            account.forget_held()
            self._note(account)

    def accrue(self, at_ms: int) -> None:
        """Bring every average up to this time."""
        half_life_ms = self.half_life_ms
        for account in self.accounts.values():
            if account.average_ms:  # others never held anything
                account.accrue(at_ms, half_life_ms)

    # -- for copies

    def _note(self, account: Account) -> None:
        if account.published:
            account.published = False
            self._changed[account.kind, account.name] = account

    def take_changes(self, *, whole: bool = False) -> tuple[Declarations | None, tuple[Held, ...]]:
        """The declarations, if any has changed since the last call, and the accounts that have. `whole`: everything."""
        declared = None
        if whole or self._taken_version != self.version:
            self._taken_version = self.version
            declared = Declarations(
                dict(self.pools),
                dict(self.tenants),
                dict(self.queues),
                dict(self.offences),
                dict(self.in_force),
            )
        changed = (self.accounts if whole else self._changed).values()
        taken = tuple([account.publish() for account in changed])
        self._changed.clear()
        return declared, taken

    def follow(self, declared: Declarations | None, held: Iterable[Held]) -> None:
        """Become a copy; see `take_changes`. A copy does not know what is held by model, or by whom."""
        if declared is not None:
            self.pools, self.tenants = dict(declared.pools), dict(declared.tenants)
            self.queues = dict(declared.queues)
            self.offences, self.in_force = dict(declared.offences), dict(declared.in_force)
            self.redeclared()
        for change in held:
            if not (change.slices or change.average_ms):
                self.accounts.pop((change.kind, change.name), None)
                continue
            account = self._open(change.kind, change.name)
            account.quota = change.quota
            account.share_milli, account.memory_bytes, account.slices = change[3:6]
            account.share_average, account.memory_average, account.average_ms = change[6:]
        self._changed.clear()  # a copy has none

    # -- averages

    def average(self, account: Account, now_ms: int) -> tuple[int, int]:
        """(share, memory) of an account's faded average, with `FRACTION_BITS`."""
        elapsed_ms, half_life_ms = now_ms - account.average_ms, self.half_life_ms
        return (
            faded(account.share_average, account.share_milli, elapsed_ms, half_life_ms),
            faded(account.memory_average, account.memory_bytes >> 20, elapsed_ms, half_life_ms),
        )

    def averages(self, now_ms: int) -> tuple[Average, ...]:
        """All averages, sorted, for snapshots. An account that never held anything, or not for long, has none."""
        return tuple(
            Average(kind, name, account.share_average, account.memory_average, account.average_ms)
            for (kind, name), account in sorted(self.accounts.items())
            if account.average_ms and (account.slices or not self._has_faded(account, now_ms))
        )

    def set_averages(self, averages: Iterable[Average]) -> None:
        """As a snapshot has them."""
        for average in averages:
            account = self._open(average.kind, average.name)
            account.share_average, account.memory_average = average.share, average.memory
            account.average_ms = average.at_ms


def _limited(quota: Quota) -> bool:
    limits = [quota.limit, *(model.limit for model in quota.models)]
    return any(limit.share_milli >= 0 or limit.memory_bytes >= 0 for limit in limits)


def _counted_alike(one: Quota, other: Quota) -> bool:
    return (
        _limited(one) == _limited(other)
        and one.guarantees == other.guarantees
        and [model.model for model in one.models] == [model.model for model in other.models]
    )


def recount(tenancy: Tenancy, held: Iterable[tuple[Owner, list[Part]]]) -> None:
    """Count everything anew; averages are left alone. What guarantees cover is left empty: see `Tenancy.rank`."""
    tenancy.forget_held()
    for owner, parts in held:
        chain = tenancy.opened(owner)
        for account in (*chain.accounts, *chain.trees):
            account.count(parts, 1)
        for account in chain.limited:
            account.enlist(owner.lease_id, len(parts))
