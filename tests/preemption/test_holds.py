"""What is kept for a preemptor until its victims have gone, and what becomes of it when things change meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.holds import HoldBroken
from aliquot.coordinator.core.books.leases.records import LeaseState
from aliquot.coordinator.core.evolve import holds as evolve
from tests.core.harness import Books, node
from tests.preemption.asking import ask, leave, run, state_of


def test_a_preemptor_that_goes_away_reprieves_its_victims(books: Books) -> None:
    low = run(books, count=4, preemptible=True)
    high = ask(books, count=4, priority=10)
    assert state_of(books, low) is LeaseState.PREEMPTING
    books.do(c.Release(high.lease_id))
    assert state_of(books, low) is LeaseState.ACTIVE
    assert books.again(low).preemptions == 0
    assert not books.state.holds
    books.do(c.Release(low.lease_id))
    assert state_of(books, low) is LeaseState.RELEASING


def test_a_victim_that_has_begun_to_go_is_not_called_back(books: Books) -> None:
    low = run(books, count=2, preemptible=True)
    run(books, count=2)
    high = ask(books, count=2, priority=10)
    books.report(low, c.ReportStatus.GONE, index=0)
    books.do(c.Release(high.lease_id))
    assert state_of(books, low) is LeaseState.PREEMPTING
    leave(books, low)
    assert state_of(books, low) is LeaseState.GRANTED


def test_capacity_that_comes_free_elsewhere_spares_the_victims(books: Books) -> None:
    books.connect(node("two"))
    books.settle()
    other = run(books, count=4)
    low = run(books, count=4, preemptible=True)
    high = ask(books, count=4, priority=10)
    assert state_of(books, low) is LeaseState.PREEMPTING
    books.do(c.Release(other.lease_id))
    leave(books, other)
    assert state_of(books, high) is LeaseState.GRANTED
    assert state_of(books, low) is LeaseState.ACTIVE


def test_a_lost_node_breaks_the_hold_and_it_is_decided_again(books: Books) -> None:
    books.connect(node("two"))
    books.settle()
    run(books, count=4, preemptible=True)
    run(books, count=4, preemptible=True)
    books.advance(1_000)
    high = ask(books, count=4, priority=10)
    first = books.state.holds[high.lease_id].placement.node_ids[0]
    books.do(c.NodeSilent(first, books.sessions[first], lost=True))
    books.settle()
    assert any(isinstance(fact, HoldBroken) for fact in books.facts)
    assert books.state.holds[high.lease_id].placement.node_ids[0] != first


@pytest.mark.parametrize("touches", range(4))
def test_a_node_that_returns_with_other_devices_is_looked_at_anew(touches: int) -> None:
    books = Books()
    books.connect(node("one", 1))
    run(books, preemptible=True)
    books.connect(node("two", 1))
    run(books)  # nobody may end this one
    books.advance(10_000)
    waiting = ask(books, gang_size=2, priority=9)  # whom one of the two would end is remembered
    books.do(c.NodeSilent("n-one", books.sessions["n-one"], lost=True))
    books.do(c.RemoveNode("n-one", force=True))
    returned = replace(node("one", 1), devices=node("other", 1).devices)
    books.connect(returned)
    for number in range(touches):  # up to as many changes as it had seen when it was looked at
        books.do(c.DeclareNode(replace(returned, labels=(("rack", f"r{number}"),))))
    books.settle()
    other = ask(books, gang_size=2, priority=9, tenant="b")
    assert state_of(books, other) is state_of(books, waiting) is LeaseState.QUEUED


def test_a_hold_does_not_outlive_its_time(books: Books) -> None:
    low = run(books, count=4, preemptible=True, grace_ms=10_000)
    high = ask(books, count=4, priority=10)
    expires_ms = books.state.holds[high.lease_id].expires_ms
    assert expires_ms == books.now_ms + 10_000 + books.config.hold_slack_ms
    books.advance(expires_ms - books.now_ms)
    assert high.lease_id not in books.state.holds or books.state.holds[high.lease_id].created_ms == books.now_ms
    assert state_of(books, low) in (LeaseState.ACTIVE, LeaseState.PREEMPTING)


def test_a_hold_is_looked_at_once_for_what_changes_on_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    books = Books()
    books.connect(node("one", 8, cpu_milli=64_000))
    low = run(books, count=8, cpu_milli=1_000, preemptible=True)
    books.advance(10_000)
    high = ask(books, count=8, cpu_milli=1_000, priority=10)
    assert len(books.state.holds[high.lease_id].device_uuids) == 8
    books.report(low, c.ReportStatus.GONE, index=0)
    right, looks = evolve.look_at_hold, 0

    def look_at_hold(*asked: Any) -> None:
        nonlocal looks
        looks += 1
        right(*asked)

    monkeypatch.setattr(evolve, "look_at_hold", look_at_hold)
    leave(books, low)
    assert books.again(high).state is LeaseState.GRANTED
    assert looks == 7 + 1, "for each slice that goes, and for the member that goes with the last"


def test_a_hold_waits_for_the_last_thousandth() -> None:
    books = Books()
    books.connect(node("one", 1))
    books.settle()
    low = [run(books, share, preemptible=True) for share in (999, 1)]
    high = ask(books, priority=5)
    leave(books, low[0])
    assert (state_of(books, high), high.lease_id in books.state.holds) == (LeaseState.QUEUED, True)
    leave(books, low[1])
    assert state_of(books, high) is LeaseState.GRANTED
