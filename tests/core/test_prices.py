"""Learnt prices come in as a command, are durable, and never go back to an older version."""

from __future__ import annotations

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.decider import Decider
from aliquot.coordinator.core.evolve.snapshot import state_hash
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.placement.prices import PriceTable
from tests.core.harness import Books, node, request


def table(version: int) -> PriceTable:
    return PriceTable(version, (0, 4), (((100, 90_000), (1000, 1_000_000)), ((1000, 700_000),)))


def test_prices_survive_replay_and_snapshot_and_older_ones_are_ignored() -> None:
    books = Books(CoreConfig(policy="price"))
    books.connect(node("one"))
    books.do(c.LearnPrices(table(2)))
    assert books.do(c.LearnPrices(table(1))).facts == ()
    assert books.do(c.LearnPrices(table(2))).facts == ()
    assert books.state.prices == table(2)
    assert books.replayed().prices == table(2)
    assert books.restored().prices == table(2)
    assert state_hash(books.restored()) == state_hash(books.state)


def test_equal_prices_place_equally_after_a_restart() -> None:
    books = Books(CoreConfig(policy="price"))
    books.connect(node("one"))
    books.connect(node("two"))
    books.do(c.LearnPrices(table(1)))
    for share in (810, 190, 500, 100, 250):
        books.allocate(request(share))
    restored = books.restored()
    for share in (810, 100, 1000, 250):
        demand = request(share).demand
        assert Decider(restored).engine.place(demand) == books.decider.engine.place(demand)


def test_what_arrives_is_counted_for_the_learner() -> None:
    books = Books()
    books.connect(node("one"))
    books.allocate(request(500))
    books.allocate(request(500, tenant="b"))
    summary = books.state.arrivals.summary(books.state.inventory)
    assert summary.noted == 2
    assert [count for _, count in summary.types] == [2]
