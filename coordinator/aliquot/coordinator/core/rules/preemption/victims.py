"""Who may be a victim: the rules, apart from the search for the cheapest set.

By priority: only leases of strictly lower priority that said they are preemptible, have run their minimum, and whose
tenant's disruption budget is not used up. To reclaim a guarantee: any borrower, whatever its request says, after a
short minimum. Never, in either case, a lease that its own owner's guarantee covers: the leases of an owner that
together fit into its guarantee (by priority, then by arrival). And never the same lease more than `preemptions_max`
times within `preemption_period_ms`.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

from aliquot.coordinator.core.books.leases.records import Lease, SliceState
from aliquot.coordinator.core.books.tenancy.accounts import Account
from aliquot.coordinator.core.books.tenancy.limits import covered
from aliquot.coordinator.core.known.known import Known

NEVER_MS = 1 << 62


class Eligibility:
    """Answers, for one preemptor at one moment, whether a lease may be ended for it. Remembers its answers."""

    def __init__(self, known: Known, *, priority: int, preemptor: str, reclaim: bool, scale: int, now_ms: int) -> None:
        self.known = known
        self.priority = priority
        self.preemptor = preemptor
        self.reclaim = reclaim
        self.now_ms = now_ms
        self.soon_ms = now_ms + known.config.reclaim_grace_ms
        """What is leaving by then is as good as gone."""
        self._scale = scale
        self._only: Mapping[str, Container[str]] = {}
        """Tenants of whose leases none but these may be ended."""
        self._endable_ms: dict[str, int] = {}
        self._work: dict[str, tuple[int, int]] = {}
        self._lost: dict[str, int] = {}
        self._budgets: dict[str, int] = {}

    def endable_ms(self, lease_id: str) -> int:
        """From when on it may be ended; `NEVER_MS` where no waiting makes it a victim."""
        known = self._endable_ms.get(lease_id)
        if known is None:
            known = self._endable_ms[lease_id] = self._decide(self.known.leases[lease_id])
        return known

    def but_only(self, only: Mapping[str, Container[str]]) -> Eligibility:
        """The same, but of some tenants none may be ended but these leases."""
        same = Eligibility(
            self.known,
            priority=self.priority,
            preemptor=self.preemptor,
            reclaim=self.reclaim,
            scale=self._scale,
            now_ms=self.now_ms,
        )
        same._only = only
        return same

    def _decide(self, lease: Lease) -> int:
        request, config = lease.request, self.known.config
        if lease.ended or lease.lease_id == self.preemptor:
            return NEVER_MS
        if lease.lease_id not in self._only.get(request.tenant, (lease.lease_id,)):
            return NEVER_MS
        if lease.end_reason:
            # It is ending already. Its notice may be longer than an entitled request has to wait.
            return 0 if self.reclaim and not is_protected(self.known, lease, self._scale) else NEVER_MS
        by_priority = request.preemptible and request.priority < self.priority
        if not by_priority and not self.reclaim:
            return NEVER_MS
        if lease.preempted_at_ms:
            since_ms = self.now_ms - config.preemption_period_ms
            if sum(at_ms > since_ms for at_ms in lease.preempted_at_ms) >= config.preemptions_max:
                return NEVER_MS
        running = [piece.state in (SliceState.GRANTED, SliceState.ACTIVE) for piece in lease.holding]
        if not (any(running) if self.reclaim else all(running)):
            return NEVER_MS
        if is_protected(self.known, lease, self._scale):
            return NEVER_MS
        endable_ms = NEVER_MS
        if self.reclaim:
            endable_ms = lease.granted_ms + min(request.min_run_ms, config.reclaim_min_run_ms)
        if by_priority:
            endable_ms = min(
                endable_ms, max(lease.granted_ms + request.min_run_ms, self.undisturbed_until_ms(request.tenant, 1))
            )
        return endable_ms

    def undisturbed_until_ms(self, tenant: str, number: int) -> int:
        """When the tenant's disruption budget allows so many more preemptions by priority at once; 0: now;
        `NEVER_MS`: never.
        """
        if self.disruptions_left(tenant) >= number:
            return 0
        spec = self.known.tenancy.tenant_spec(tenant)
        if number > spec.disruptions_max:
            return NEVER_MS
        return self.known.disruptions[tenant][number - 1 - spec.disruptions_max] + spec.disruption_period_ms

    def work(self, lease_id: str) -> tuple[int, int]:
        """`lost_work` of a lease."""
        known = self._work.get(lease_id)
        if known is None:
            known = self._work[lease_id] = lost_work(self.known.leases[lease_id])
        return known

    def lost_now(self, lease_id: str) -> int:
        """The work that ending this lease now would lose, in share_milli·ms."""
        known = self._lost.get(lease_id)
        if known is None:
            slope, offset = self.work(lease_id)
            known = self._lost[lease_id] = slope * self.now_ms - offset
        return known

    def disruptions_left(self, tenant: str) -> int:
        """How many more leases of this tenant may be preempted by priority now."""
        left = self._budgets.get(tenant)
        if left is None:
            spec = self.known.tenancy.tenant_spec(tenant)
            if spec.disruptions_max:
                since_ms = self.now_ms - spec.disruption_period_ms
                recent = sum(at_ms > since_ms for at_ms in self.known.disruptions.get(tenant, ()))
                left = spec.disruptions_max - recent
            else:
                left = NEVER_MS
            self._budgets[tenant] = left
        return left


def lost_work(lease: Lease) -> tuple[int, int]:
    """(slope, offset) of the work that ending a lease would lose: slope * now - offset, in share_milli·ms since its
    grant. One that is ending loses nothing more.
    """
    if lease.end_reason:
        return 0, 0
    share = sum(piece.plan.share_milli for piece in lease.slices if piece.holds_capacity)
    return share, share * (lease.active_ms or lease.granted_ms)


def is_protected(known: Known, lease: Lease, scale: int) -> bool:
    """Whether a guarantee of its owner, or of a queue above it, covers this lease."""
    if not known.tenancy.guarantees:
        return False
    chain = known.tenancy.chain(lease.request.tenant, lease.request.queue)
    return any(lease.lease_id in protected_of(known, account, scale) for account in chain.guaranteed)


def protected_of(known: Known, account: Account, scale: int) -> Container[str]:
    """The leases of an account that together fit into its guarantee, by priority, then by arrival."""
    known_ones = known.memory.protected.at((known.tenancy.version, scale))
    versions = (account.version, account.ranked.version)
    old = known_ones.get((account.kind, account.name))
    if old is None or old[0] != versions:
        within = covered(account.quota, (account,), (), scale)
        old = versions, account.ranked if within else _fitting(account, scale)
        known_ones[account.kind, account.name] = old
    return old[1]


def _fitting(account: Account, scale: int) -> set[str]:
    fitting: set[str] = set()
    sums = Account(account.kind, account.name, account.quota)
    for lease_id, parts in account.ranked:
        if covered(account.quota, (sums,), parts, scale):
            fitting.add(lease_id)
            sums.count(parts, 1)
    return fitting
