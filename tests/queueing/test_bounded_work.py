"""What one question costs the writer does not grow with the pool: counted in what is looked at, not in time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.facts import LeaseReleasing
from aliquot.coordinator.core.books.tenancy.specs import Amount, QueueSpec, Quota, TenantSpec
from aliquot.coordinator.core.commands.outcomes import AdmitOutcome, Decision
from aliquot.coordinator.core.commands.queries import ExplainLease
from aliquot.coordinator.core.decider import Decider
from aliquot.coordinator.core.deciding.admission.means.reclaiming import LOOKED_AT_MAX
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.types import RequestSpec
from tests.core.harness import node, request
from tests.core.invariants import check

T = TypeVar("T")

NODES = 600


class Counting(dict[str, Any]):
    """Counts which entries were read one by one."""

    def __init__(self, entries: dict[str, Any]) -> None:
        super().__init__(entries)
        self.read: list[str] = []

    def __getitem__(self, key: str) -> Any:
        self.read.append(key)
        return super().__getitem__(key)

    def values(self) -> Any:
        self.read += super().keys()
        return super().values()

    def items(self) -> Any:
        self.read += super().keys()
        return super().items()


class Pool:
    """A State without checks after every step: they look at everything."""

    def __init__(self) -> None:
        self.decider = Decider(State.fresh())
        self.state = self.decider.state
        self.now_ms = 1_000_000
        self.do(c.StartLeading(1))
        self.ids = (f"l-{number}" for number in range(1 << 30))
        for number in range(NODES):
            self.do(c.RegisterNode(node(f"{number:04}", 1), 1))
            self.do(c.ReconcileNode(f"n-{number:04}", 1, ()))

    def do(self, command: c.Command[T]) -> Decision[T]:
        decision = self.decider.decide(command, self.now_ms)
        self.decider.carry_out(decision, self.now_ms)
        return decision

    def counting(self) -> tuple[Counting, Counting]:
        """The slices by node, and the leases, from now on with a note of what is read of them."""
        slices, leases = Counting(self.state.slice_ids_by_node), Counting(self.state.leases)
        self.state.slice_ids_by_node, self.state.leases = slices, leases
        vars(self.decider.known).update(slice_ids_by_node=slices, leases=leases)
        return slices, leases

    def declare(self, *specs: TenantSpec | QueueSpec) -> None:
        self.do(
            c.Apply(
                tenants=tuple((spec, c.ANY_VERSION) for spec in specs if isinstance(spec, TenantSpec)),
                queues=tuple((spec, c.ANY_VERSION) for spec in specs if isinstance(spec, QueueSpec)),
            )
        )

    def allocate(self, spec: RequestSpec) -> str:
        lease_id = next(self.ids)
        self.do(c.Allocate(lease_id, spec))
        return lease_id

    def admit(self) -> Iterator[Decision[AdmitOutcome]]:
        while self.decider.wants_admission():
            yield self.do(c.Admit())


def test_explaining_what_a_guarantee_gives_looks_at_a_bounded_number_of_nodes_and_once() -> None:
    pool = Pool()
    pool.declare(TenantSpec("owner", Quota(Amount(2000))))
    pool.allocate(request(1000, tenant="guest", gang_size=NODES // 2, min_run_ms=10**7))
    for _ in range(NODES // 2):
        pool.allocate(request(1000, tenant="guest", min_run_ms=10**7))
    waiting = pool.allocate(request(1000, tenant="owner"))
    list(pool.admit())
    check(pool.state)
    slices, leases = pool.counting()
    found = pool.decider.answer(ExplainLease(waiting), pool.now_ms)
    assert any("once they have run 20 s" in note for note in found.notes), found
    assert len(set(slices.read)) < NODES // 2
    assert len(set(leases.read)) < NODES // 2
    slices.read.clear()
    leases.read.clear()
    pool.now_ms += 1000
    assert pool.decider.answer(ExplainLease(waiting), pool.now_ms).notes == found.notes
    assert not slices.read
    assert len(leases.read) < 10


def test_room_below_a_limit_is_looked_for_among_those_below_it_and_a_bounded_number_in_a_turn() -> None:
    pool = Pool()
    pool.declare(
        TenantSpec("owner", Quota(Amount(1000))),
        QueueSpec("shared", quota=Quota(limit=Amount(1000 * (NODES - 10), -1))),
    )
    for _ in range(10):
        pool.allocate(request(1000, tenant="elsewhere", gang_size=1))
    pool.now_ms += 1
    oldest = pool.allocate(request(1000, tenant="guest", queue="shared", min_run_ms=10**7))
    pool.now_ms += 100_000
    for _ in range(NODES - 11):
        pool.allocate(request(1000, tenant="guest", queue="shared", min_run_ms=10**7))
    list(pool.admit())
    pool.allocate(request(1000, tenant="owner", queue="shared"))
    slices, leases = pool.counting()
    told: list[str] = []
    turns = 0
    for decision in pool.admit():
        turns += 1
        assert len(set(leases.read)) < LOOKED_AT_MAX + 20
        told += [fact.lease_id for fact in decision.facts if isinstance(fact, LeaseReleasing)]
        leases.read.clear()
    assert told == [oldest]  # the others have not run long enough to be told to end
    assert turns > 1
    pool.state.leases = dict(leases)
    pool.state.slice_ids_by_node = dict(slices)
    check(pool.state)
