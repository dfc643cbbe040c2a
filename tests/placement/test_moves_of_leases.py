"""Leases are moved to make room: the new place is held before the old one is given up; nothing else is disturbed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.facts import LeaseGranted
from aliquot.coordinator.core.books.leases.records import Lease, LeaseState, SliceState
from aliquot.coordinator.core.books.tenancy.specs import Amount, QueuePolicy, QueueSpec, Quota, TenantSpec
from aliquot.coordinator.core.commands import ReportStatus
from aliquot.coordinator.core.decider import Decider
from aliquot.coordinator.core.evolve.snapshot import state_hash
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.placement.move_budget import (
    DEMAND_REST_MS,
    MOVES_PERMILLE,
    PLAN_REST_MS,
    SAVED_MIN,
    SAVED_PERMILLE,
    MoveBudget,
)
from aliquot.coordinator.core.values.types import Demand
from tests.core.harness import Books, node, request

RESERVE_AFTER_MS = 300_000
"""Of the default queue."""


class Pool:
    """Two nodes of two devices, the policy that spreads, and as many moves as one likes."""

    def __init__(self, *, agentless: bool = False) -> None:
        self.books = Books(CoreConfig(policy="spread"))
        for name in ("one", "two"):
            if agentless:
                self.books.do(c.DeclareNode(node(name, 2, agentless=True)))
            else:
                self.books.connect(node(name, 2))
        self.agentless = agentless
        self.books.decider.engine.moves = MoveBudget(permille=10_000)

    def run(self, share: int = 300, **more: object) -> Lease:
        """A lease that runs."""
        lease = self.books.allocate(request(share, ttl_ms=0, **more))  # type: ignore[arg-type]
        return lease if self.agentless else self.books.activate(lease)

    def ask(self) -> Lease:
        """A request for a whole node, which has waited long enough."""
        large = self.books.allocate(request(count=2, ttl_ms=0, tenant="big"))
        self.books.settle()
        assert self.books.again(large).state is LeaseState.QUEUED
        self.books.advance(RESERVE_AFTER_MS)
        self.books.state.free_capacity()
        self.books.settle()
        return self.books.again(large)

    def node_of(self, lease: Lease) -> set[str]:
        """Where it holds anything."""
        return {piece.plan.node_id for piece in self.books.again(lease).holding}


def test_a_lease_is_granted_elsewhere_before_its_old_place_is_given_up() -> None:
    pool = Pool()
    leases = [pool.run(movable=True) for _ in range(2)]
    assert pool.node_of(leases[0]) != pool.node_of(leases[1]), "spread: each node is disturbed"
    before = len(pool.books.facts)
    large = pool.ask()
    moved = [lease for lease in leases if len(pool.node_of(lease)) == 2]
    assert len(moved) == 1, "one of them holds both places"
    assert pool.books.again(moved[0]).state is LeaseState.GRANTED
    assert pool.books.again(moved[0]).note.startswith(f"moved: lease {large.lease_id}")
    assert large.state is LeaseState.QUEUED
    lease = pool.books.again(moved[0])
    old = next(piece for piece in lease.holding if piece.state is SliceState.RELEASING)
    new = next(piece for piece in lease.holding if piece.state is SliceState.GRANTED)
    newcomer = pool.books.allocate(request(1000), no_queue=False)
    pool.books.settle()
    assert pool.node_of(newcomer) <= {new.plan.node_id}, "the emptied node is kept for whom it was emptied for"
    session = pool.books.sessions[old.plan.node_id]
    gone = c.SliceReport(old.slice_id, old.lease_epoch, ReportStatus.GONE)
    pool.books.do(c.ReportSlices(old.plan.node_id, session, (gone,)))
    pool.books.settle()
    assert pool.books.again(large).state is LeaseState.GRANTED
    assert pool.node_of(large) == {old.plan.node_id}
    assert pool.books.activate(moved[0]).state is LeaseState.ACTIVE
    assert pool.node_of(moved[0]) == {new.plan.node_id}
    granted = [fact for fact in pool.books.facts[before:] if isinstance(fact, LeaseGranted)]
    assert [fact.lease_id for fact in granted].count(moved[0].lease_id) == 1
    assert state_hash(pool.books.replayed()) == state_hash(pool.books.state)
    assert state_hash(pool.books.restored()) == state_hash(pool.books.state)


def test_where_nobody_confirms_all_happens_at_once() -> None:
    pool = Pool(agentless=True)
    leases = [pool.run(movable=True) for _ in range(2)]
    large = pool.ask()
    assert large.state is LeaseState.GRANTED
    assert pool.node_of(leases[0]) == pool.node_of(leases[1]) != pool.node_of(large)


@pytest.mark.parametrize(
    "terms",
    [
        {"movable": False},
        {"movable": True, "min_run_ms": 86_400_000},
        {"movable": True, "gang_size": 2, "share": 100},
    ],
    ids=["not movable", "must run on", "a gang"],
)
def test_who_may_not_be_moved_is_not(terms: dict[str, object]) -> None:
    pool = Pool()
    leases = [pool.run(**terms) for _ in range(2)]  # type: ignore[arg-type]
    places = [pool.node_of(lease) for lease in leases]
    large = pool.ask()
    assert large.state is LeaseState.QUEUED
    assert [pool.node_of(lease) for lease in leases] == places
    assert all(pool.books.again(lease).state is LeaseState.ACTIVE for lease in leases)


def test_a_limit_that_both_places_would_exceed_forbids_the_move() -> None:
    pool = Pool()
    limited = TenantSpec("a", quota=Quota(limit=Amount(600, -1)))
    pool.books.do(c.Apply(tenants=((limited, c.ANY_VERSION),)))
    leases = [pool.run(movable=True) for _ in range(2)]
    assert pool.ask().state is LeaseState.QUEUED
    assert all(pool.books.again(lease).state is LeaseState.ACTIVE for lease in leases)


def test_nobody_is_moved_twice_in_a_row() -> None:
    pool = Pool(agentless=True)
    leases = [pool.run(movable=True) for _ in range(2)]
    first = pool.ask()
    pool.books.do(c.Release(first.lease_id))
    moved = next(lease for lease in leases if pool.books.again(lease).requeues)
    other = next(lease for lease in leases if lease is not moved)
    pool.books.do(c.Release(other.lease_id))
    again = pool.run(movable=False)
    assert pool.node_of(again) != pool.node_of(moved)
    assert pool.ask().state is LeaseState.QUEUED, "the one that may move was moved a moment ago"
    assert pool.books.again(moved).requeues == 1


def test_without_moves_saved_up_nobody_is_moved() -> None:
    pool = Pool()
    pool.books.decider.engine.moves = MoveBudget()
    leases = [pool.run(movable=True) for _ in range(2)]
    assert pool.ask().state is LeaseState.QUEUED
    assert all(pool.books.again(lease).state is LeaseState.ACTIVE for lease in leases)


def test_moves_are_earned_by_starts_and_saved_up_to_a_part_of_what_lives() -> None:
    budget = MoveBudget()
    for _ in range(1_000):
        budget.earn(1, live=1_000)
    assert budget.available == MOVES_PERMILLE
    budget.spend(MOVES_PERMILLE)
    assert budget.available == 0
    budget.earn(100_000, live=0)
    assert budget.available == SAVED_MIN
    budget.earn(100_000, live=50_000)
    assert budget.available == 50_000 * SAVED_PERMILLE // 1000
    budget.earn(1, live=5_000)
    assert budget.available == 5_000 * SAVED_PERMILLE // 1000, "a pool that shrinks keeps what suits its size"


@given(
    st.integers(4_000, 100_000),
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 400)), min_size=1, max_size=200),
)
def test_at_most_one_in_a_hundred_live_leases_moves_in_a_lifetime(live: int, turns: list[tuple[int, int]]) -> None:
    """As many start in a mean lifetime as live at once, whatever moves when."""
    budget = MoveBudget()
    budget.earn(10**9, live=live)
    moved = started = 0
    for permille, wanted in turns:
        starts = min(live * permille // 1000, live - started)
        started += starts
        budget.earn(starts, live=live)
        moves = min(wanted, budget.available)
        budget.spend(moves)
        moved += moves
    assert moved <= live // 100


def test_what_waits_or_is_refused_earns_nothing_and_a_restart_begins_with_nothing_saved() -> None:
    pool = Pool()
    budget = pool.books.decider.engine.moves = MoveBudget(permille=1_000)
    for _ in range(2):
        pool.run()
    for _ in range(3):
        assert pool.books.allocate(request(count=2, ttl_ms=0)).state is LeaseState.QUEUED
    pool.books.settle()
    assert budget.available == 2
    again = Decider(pool.books.replayed(), pool.books.config)
    again.wants_admission()
    assert again.engine.moves.available == 0


def test_a_plan_that_came_to_nothing_is_not_made_again_at_once() -> None:
    budget = MoveBudget(permille=1_000)
    large, other = Demand(count=8), Demand(count=4)
    assert not budget.may_plan(large, 0), "nothing is saved up"
    budget.earn(1, live=1)
    assert budget.may_plan(large, 0)
    budget.rest(large, 0)
    assert not budget.may_plan(other, PLAN_REST_MS - 1), "nor for another one: plans take time"
    assert budget.may_plan(other, PLAN_REST_MS)
    assert not budget.may_plan(large, DEMAND_REST_MS - 1)
    assert budget.may_plan(large, DEMAND_REST_MS)


def test_a_move_needs_no_kinds_of_facts_of_its_own() -> None:
    """An older coordinator can replay it."""
    pool = Pool(agentless=True)
    for _ in range(2):
        pool.run(movable=True)
    before = len(pool.books.facts)
    pool.ask()
    tags = {type(fact).__struct_config__.tag for fact in pool.books.facts[before:]}
    assert tags <= {"queued", "sreleasing", "gone", "requeued", "granted", "hold"}


@pytest.mark.parametrize("policy", [QueuePolicy.SLOWDOWN, QueuePolicy.PRIORITY])
def test_what_becomes_free_takes_a_lease_from_devices_that_are_kept_for_a_large_request(policy: QueuePolicy) -> None:
    pool = Pool(agentless=True)
    books = pool.books
    queue = QueueSpec("default", policy=policy, reserve_after_ms=RESERVE_AFTER_MS, large_first_permille=1000)
    books.do(c.Apply(queues=((queue, c.ANY_VERSION),)))
    running = [pool.run(1000, movable=True) for _ in range(4)]
    large = pool.ask()
    small = books.allocate(request(1000, ttl_ms=0, tenant="small"))
    kept = set(books.state.holds[large.lease_id].placement.node_ids)
    assert not books.again(small).slices
    elsewhere = [lease for lease in running if pool.node_of(lease) != kept]
    for lease in elsewhere:
        books.do(c.Release(lease.lease_id))
        books.settle()
    moved = [lease for lease in running if lease not in elsewhere and pool.node_of(lease) != kept]
    if policy is QueuePolicy.SLOWDOWN:
        assert len(moved) == 2
        assert all(books.again(lease).note == f"moved: lease {large.lease_id} needs the room" for lease in moved)
        assert pool.node_of(large) == kept
        assert not books.again(small).slices
    else:
        assert not moved
        assert books.again(small).slices
    assert state_hash(books.replayed()) == state_hash(books.state)


def test_a_larger_lease_that_stays_longest_is_waited_for() -> None:
    """Moving those that leave before it would bring nothing forward."""
    pool = Pool(agentless=True)
    books = pool.books
    queue = QueueSpec("default", policy=QueuePolicy.SLOWDOWN, reserve_after_ms=RESERVE_AFTER_MS)
    books.do(c.Apply(queues=((queue, c.ANY_VERSION),)))
    running = [pool.run(1000, movable=number % 2 == 0, time_limit_ms=(4 - number) * 10_000_000) for number in range(4)]
    large = pool.ask()
    kept = set(books.state.holds[large.lease_id].placement.node_ids)
    stays = [lease for lease in running if pool.node_of(lease) == kept]
    books.do(c.Release(next(lease for lease in running if lease not in stays).lease_id))
    books.settle()
    last = max(stays, key=lambda lease: lease.request.time_limit_ms)
    assert (pool.node_of(last) != kept) == last.request.movable
    assert all(pool.node_of(lease) == kept for lease in stays if lease is not last)
