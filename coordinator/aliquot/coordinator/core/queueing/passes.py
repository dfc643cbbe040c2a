"""One pass over everything that waits, in the order that the queues' policies give at its start.

The queues are a tree: each queue compares its children (queues, or tenants in a leaf) by its own policy, and the pass
always goes to the best child of the best child. Only what is acted on is compared anew, so a step costs the depth of
the tree and a few logarithms. The caller stops and resumes at will, which keeps the writer's turns short.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import pairwise

from aliquot.coordinator.core.books.tenancy.specs import ROOT, Amount, QueuePolicy
from aliquot.coordinator.core.books.tenancy.tenancy import Tenancy
from aliquot.coordinator.core.queueing.lines import Head, LineKey, Rank, WaitingLines
from aliquot.coordinator.core.queueing.order import Key, Standing, aged, key_of, share_for

Covered = Callable[[str], bool]
"""Whether a guarantee covers what this lease asks for."""


class _Leaf:
    """The tenants that have something waiting in one queue itself."""

    def __init__(self, admission: AdmissionPass, queue: str) -> None:
        self._admission = admission
        self._spec = admission.tenancy.queue_spec(queue)
        self._tenants = admission.lines.queues[queue]
        self._tried: dict[str, Rank] = {}
        counts = [max(lines.priorities) for lines in self._tenants.values()]
        self._highest = max(counts, default=0)
        self._heap: list[tuple[Key, str, Head, Standing]] = []
        for tenant in self._tenants:
            entry = self._entry(tenant)
            if entry is not None:
                self._heap.append(entry)
        heapq.heapify(self._heap)

    def _entry(self, tenant: str) -> tuple[Key, str, Head, Standing] | None:
        lines = self._tenants.get(tenant)
        head = lines.after(self._tried.get(tenant)) if lines is not None else None
        if head is None:
            return None
        admission, spec = self._admission, self._spec
        waited_ms = max(0, admission.now_ms - admission.created_ms(head.lease_id))
        standing = Standing(
            covered=admission.covered(head.lease_id),
            priority=aged(head.line.priority, waited_ms, spec.ageing_ms, self._highest),
            rank=head.rank,
        )
        share = admission.share_of(spec.policy, "t", tenant)
        return key_of(spec.policy, standing, share), tenant, head, standing

    def best(self) -> tuple[Head, Standing] | None:
        """The first request; what came or went meanwhile is looked at afresh."""
        while self._heap:
            _, tenant, head, standing = self._heap[0]
            lines = self._tenants.get(tenant)
            now = lines.after(self._tried.get(tenant)) if lines is not None else None
            if now == head:
                return head, standing
            self._replace_first(tenant)
        return None

    def passed(self) -> None:
        """The first request was acted on: go on with its tenant's next line."""
        _, tenant, head, _ = self._heap[0]
        self._tried[tenant] = head.rank
        self._replace_first(tenant)

    def _replace_first(self, tenant: str) -> None:
        entry = self._entry(tenant)
        if entry is None:
            heapq.heappop(self._heap)
        else:
            heapq.heapreplace(self._heap, entry)


class _Branch:
    """A queue with queues below it."""

    def __init__(self, admission: AdmissionPass, queue: str, children: list[tuple[str, _Leaf | _Branch]]) -> None:
        self._admission = admission
        self._policy = admission.tenancy.queue_spec(queue).policy
        self._heap: list[tuple[Key, str, _Leaf | _Branch, Head, Standing]] = []
        for name, child in children:
            entry = self._entry(name, child)
            if entry is not None:
                self._heap.append(entry)
        heapq.heapify(self._heap)

    def _entry(self, name: str, child: _Leaf | _Branch) -> tuple[Key, str, _Leaf | _Branch, Head, Standing] | None:
        best = child.best()
        if best is None:
            return None
        head, standing = best
        admission = self._admission
        share = admission.share_of(self._policy, "q", name)
        return key_of(self._policy, standing, share), name, child, head, standing

    def best(self) -> tuple[Head, Standing] | None:
        """The first request of the first child."""
        while self._heap:
            _, name, child, head, standing = self._heap[0]
            now = child.best()
            if now is not None and now[0] == head:
                return head, standing
            self._replace_first(name, child)
        return None

    def passed(self) -> None:
        """The first request was acted on."""
        _, name, child, _, _ = self._heap[0]
        child.passed()
        self._replace_first(name, child)

    def _replace_first(self, name: str, child: _Leaf | _Branch) -> None:
        entry = self._entry(name, child)
        if entry is None:
            heapq.heappop(self._heap)
        else:
            heapq.heapreplace(self._heap, entry)


class AdmissionPass:
    """See the module's docstring."""

    def __init__(
        self,
        lines: WaitingLines,
        tenancy: Tenancy,
        *,
        capacity: Amount,
        now_ms: int,
        covered: Covered,
        created_ms: Callable[[str], int],
    ) -> None:
        self.lines = lines
        self.tenancy = tenancy
        self.capacity = capacity
        self.now_ms = now_ms
        self.covered = covered
        self.created_ms = created_ms
        self.blocked: dict[tuple[str, str], None] = {}
        """Lines of which a request was left waiting in this pass: their first one may get a reservation."""
        self.promised: dict[tuple[str, str, str], list[int]] = {}
        """[share_milli, memory_bytes] that room is being made for in this pass, below each limit (of a kind of account,
        its name, a model)."""
        self.looked_at: dict[tuple[str, str, str, int, int], tuple[int, dict[str, None], int]] = {}
        """Searches below a limit that go on in the next turn: how many were looked at, who of them may end, and when
        somebody else may."""
        self.rests_before: dict[tuple[str, str, LineKey], tuple[Rank, str]] = {}
        """Of a line (queue, tenant, line): the first request of which it is not known that it is to be passed over."""
        self._passed = False
        self._shares: dict[tuple[QueuePolicy, str, str], tuple[int, int]] = {}
        self._root = self._build()

    def share_of(self, policy: QueuePolicy, kind: str, name: str) -> int:
        """The share that the policy compares by; computed anew only when what is held has changed."""
        if policy is not QueuePolicy.FAIR_SHARE and policy is not QueuePolicy.CAPACITY:
            return 0
        account = self.tenancy.accounts.get((kind, name))
        version = account.version if account is not None else -1
        known = self._shares.get((policy, kind, name))
        if known is None or known[0] != version:
            account = account or self.tenancy.account(kind, name)
            known = version, share_for(policy, self.tenancy, account, self.capacity, self.now_ms)
            self._shares[policy, kind, name] = known
        return known[1]

    def _build(self) -> _Branch:
        children: dict[str, list[str]] = {}
        for queue in self.lines.queues:
            path = self.tenancy.path(queue)
            for name, parent in pairwise(path):
                below = children.setdefault(parent, [])
                if name not in below:
                    below.append(name)

        def grow(name: str) -> _Branch:
            below: list[tuple[str, _Leaf | _Branch]] = []
            if name in self.lines.queues:
                below.append((name, _Leaf(self, name)))
            for child in children.get(name, ()):
                inner = children.get(child)
                below.append((child, grow(child) if inner else _Leaf(self, child)))
            return _Branch(self, name, below)

        return grow(ROOT)

    def head(self) -> Head | None:
        """The request to try now, or None when the pass is over."""
        if self._passed:
            self._passed = False
            self._root.passed()
        best = self._root.best()
        return best[0] if best is not None else None

    def passed(self) -> None:
        """The head can't be served in this pass: go on. A granted head needs no call, because it left its line.

        The next head is chosen when it is asked for: facts of this one may let another of its line be tried.
        """
        self._passed = True
