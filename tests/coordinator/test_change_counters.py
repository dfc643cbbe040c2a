"""Moves, changes of shape and nodes that change hands are counted as they become durable."""

from __future__ import annotations

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import LeaseState
from aliquot.coordinator.core.evolve import evolve
from aliquot.coordinator.core.state import State
from aliquot.coordinator.reading.metrics import Metrics
from aliquot.coordinator.reading.outbox import Outbox
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.reading.waiting import Waiters
from aliquot.coordinator.reading.watch import WatchHub
from aliquot.coordinator.writing.commits import take_commit
from tests.core.harness import Books, node, request
from tests.placement.test_moves_of_leases import Pool as Movable
from tests.tenancy.test_elastic import grow, start


def measured(books: Books) -> Metrics:
    """What is measured of these books while they become durable, a fact a group."""
    view = View()
    metrics = Metrics(view, int)
    outbox = Outbox(view, WatchHub(), Waiters(), [metrics])
    state = State.fresh()
    for fact in books.facts:
        evolve(state, fact)
        outbox.publish(take_commit(state))
    return metrics


def test_a_move_is_counted_once_and_a_new_grant_for_another_reason_is_none() -> None:
    pool = Movable()
    leases = [pool.run(movable=True) for _ in range(2)]
    assert measured(pool.books).moved == 0
    pool.ask()
    assert measured(pool.books).moved == 1
    pool.books.do(c.Release(leases[0].lease_id))
    assert measured(pool.books).moved == 1


def test_changes_of_shape_are_counted_by_what_they_are() -> None:
    books = Books()
    books.connect(node("one", 4))
    grow(books, start(books))
    assert measured(books).resized == {"grown": 1}
    other = books.allocate(request(count=2, tenant="b"))
    books.settle()
    assert measured(books).resized == {"grown": 1, "shrunk": 1}
    books.do(c.Release(other.lease_id))
    books.settle()
    assert books.again(other).state is LeaseState.ENDED
    assert measured(books).resized == {"grown": 1, "shrunk": 1, "kept": 1}
