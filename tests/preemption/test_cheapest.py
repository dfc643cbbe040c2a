"""The victims chosen are as few, and lose as little, as the best set that trying all of them finds."""

from __future__ import annotations

from itertools import combinations

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from aliquot.coordinator.core.leases import Lease
from aliquot.coordinator.core.preemption.overlay import Overlay
from aliquot.coordinator.core.preemption.plan import Plan, Preemption
from aliquot.coordinator.core.snapshot import state_hash
from tests.core.harness import GIB, Books, node, request

PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
"""No shrinking: each example tries every subset of the leases, and a failing one is small already."""

POOL = st.lists(
    st.tuples(
        st.sampled_from([(1000, 0), (1000, 0), (500, 20), (500, 10), (250, 10), (300, 30)]),
        st.sampled_from([1, 1, 1, 2, 3]),
        st.sampled_from([1, 1, 1, 2]),
        st.integers(0, 50),
        st.sampled_from([True, True, True, False]),
    ),
    min_size=4,
    max_size=9,
)
PREEMPTOR = st.tuples(
    st.sampled_from([(1000, 0), (500, 20), (700, 0), (250, 35)]),
    st.sampled_from([1, 1, 2, 3]),
    st.sampled_from([1, 1, 2]),
)


def cost(leases: list[Lease], now_ms: int) -> tuple[int, int]:
    """What is minimised: how many, then the work lost in share_milli·ms."""
    lost = 0
    for lease in leases:
        share = sum(piece.plan.share_milli for piece in lease.slices)
        lost += share * (now_ms - (lease.active_ms or lease.granted_ms))
    return len(leases), lost


@settings(max_examples=100, deadline=None, phases=PHASES)
@given(pool=POOL, wanted=PREEMPTOR)
def test_within_ten_percent_of_the_optimum_by_brute_force(pool: list[tuple], wanted: tuple) -> None:  # type: ignore[type-arg]
    books = Books()
    for name in ("one", "two"):
        books.connect(node(name, 3))
    books.settle()
    for (share, memory_gib), count, gang, seconds, preemptible in pool:
        spec = request(share, memory_gib * GIB, count=count, gang_size=gang, preemptible=preemptible, priority=0)
        lease = books.allocate(spec)
        books.settle()
        if books.again(lease).slices:
            books.activate(books.again(lease))
        books.advance(seconds * 1000)
    (share, memory_gib), count, gang = wanted
    spec = request(share, memory_gib * GIB, count=count, gang_size=gang, priority=5)
    state = books.state
    placed = [lease for lease in state.leases.values() if lease.holding and lease.request.preemptible]
    best: tuple[int, int] | None = None
    for size in range(len(placed) + 1):
        for some in combinations(placed, size):
            with Overlay(state, list(state.nodes), {lease.lease_id for lease in some}):
                fits = state.engine.place(spec.demand) is not None
            if fits:
                found = cost(list(some), books.now_ms)
                best = found if best is None else min(best, found)
        if best is not None:
            break
    before = state_hash(state)
    waiting = Lease("l-preemptor", 10**6, spec, books.now_ms)
    plan = Preemption(state).find(waiting, spec.demand, books.now_ms)
    assert state_hash(state) == before
    if best is None:
        assert not isinstance(plan, Plan)
        return
    if best == (0, 0):
        return  # nobody has to end, so nobody asks
    assert isinstance(plan, Plan), f"a set of {best[0]} victims would do"
    chosen = cost([state.leases[lease_id] for lease_id in plan.victims], books.now_ms)
    assert chosen[0] * 10 <= best[0] * 11
    if chosen[0] == best[0]:
        assert chosen[1] * 10 <= best[1] * 11
