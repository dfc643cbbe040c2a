"""A preemption that was called off has not happened: found by the simulation (seed 39)."""

from __future__ import annotations

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import LeaseState
from tests.core.harness import Books, node, request


def test_reprieves_do_not_count_towards_the_bound_on_preemptions() -> None:
    books = Books()
    books.connect(node("one"))
    low = books.allocate(request(count=4, preemptible=True))
    books.activate(low)
    for _ in range(books.config.preemptions_max):
        high = books.allocate(request(count=4, priority=10))
        books.settle()
        assert books.again(low).state is LeaseState.PREEMPTING
        books.do(c.Release(high.lease_id))
        assert books.again(low).state is LeaseState.ACTIVE
        assert books.again(low).preempted_at_ms == ()

    books.allocate(request(count=4, priority=10))
    books.settle()

    assert books.again(low).state is LeaseState.PREEMPTING
