"""The book of kept leases: whatever happens, each is named well within its TTL while somebody answers."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aliquot.client._keeping import INTERVAL_MAX_S, INTERVAL_MIN_S, KeepBook, Loss, Notice, Resized
from aliquot.client._retrying import RetryPolicy
from aliquot.common.limits import MAX_KEEPALIVE_IDS
from aliquot.v1 import leases_pb2, types_pb2
from tests.client.drawn import Drawn


class Keeping(RuleBasedStateMachine):
    """A coordinator that answers every message, in time that passes as the book demands."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.book = KeepBook(RetryPolicy(), random.Random(1))
        self.ttls: dict[str, int] = {}
        self.named: dict[str, float] = {}
        self.count = 0

    @rule(ttl_s=st.integers(1, 3600))
    def add(self, ttl_s: int) -> None:
        self.count += 1
        lease_id = f"l-{self.count}"
        self.ttls[lease_id] = ttl_s
        self.named[lease_id] = self.now
        self.book.add(lease_id, ttl_s, self.now)

    @precondition(lambda self: self.ttls)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.ttls)))
        del self.ttls[lease_id]
        self.book.drop(lease_id)

    @rule()
    def sleep_and_send(self) -> None:
        wait_s = self.book.wait_s(self.now)
        assert (wait_s is None) == (not self.ttls)
        if wait_s is None:
            return
        self.now += wait_s + 0.01
        messages = self.book.take(self.now)
        for message in messages:
            for lease_id in message.lease_ids:
                self.named[lease_id] = self.now
            ttl_ms = min((1000 * self.ttls[lease_id] for lease_id in message.lease_ids), default=0)
            assert not self.book.answered(leases_pb2.KeepAliveResponse(renew_within_ms=ttl_ms), self.now)

    @rule()
    def lose_the_stream(self) -> None:
        """And open it again, to somebody who answers."""
        self.now += self.book.broke(self.now)
        self.sleep_and_send()

    @rule(asked_s=st.floats(0, 60))
    def be_sent_away(self, asked_s: float) -> None:
        """With a time to come back, which is heeded unless a lease would expire by it."""
        smallest_s = min(self.ttls.values(), default=3600)
        wait_s = self.book.broke(self.now, asked_s)
        assert wait_s >= min(asked_s, smallest_s / 3)
        self.now += wait_s
        self.sleep_and_send()

    @invariant()
    def every_lease_was_named_within_half_its_ttl(self) -> None:
        for lease_id, ttl_s in self.ttls.items():
            assert self.now - self.named[lease_id] <= ttl_s / 2 + 0.1

    @invariant()
    def nothing_else_is_named(self) -> None:
        assert len(self.book) == len(self.ttls)


TestKeeping = Keeping.TestCase


@pytest.fixture
def book() -> KeepBook:
    return KeepBook(RetryPolicy(), random.Random(1))


def test_a_message_names_at_most_the_contracts_number(book: KeepBook) -> None:
    for number in range(MAX_KEEPALIVE_IDS + 1):
        book.add(f"l-{number}", 60, 0.0)
    assert [len(message.lease_ids) for message in book.take(60.0)] == [MAX_KEEPALIVE_IDS, 1]


def test_a_loss_is_told_once_and_named_no_more(book: KeepBook) -> None:
    book.add("l-1", 60, 0.0)
    book.add("l-2", 60, 0.0)
    book.take(60.0)
    answer = leases_pb2.KeepAliveResponse(lost={"l-1": "LEASE_EXPIRED", "l-9": "LEASE_NOT_FOUND"})
    assert book.answered(answer, 60.0) == [Loss("l-1", "LEASE_EXPIRED")]
    assert book.answered(answer, 60.0) == []
    assert [list(message.lease_ids) for message in book.take(120.0)] == [["l-2"]]


def test_a_deadline_is_told_once_unless_it_changes(book: KeepBook) -> None:
    book.add("l-1", 60, 0.0)
    told = [book.answered(leases_pb2.KeepAliveResponse(preempting={"l-1": deadline}), 1.0) for deadline in (5, 5, 9)]
    assert told == [[Notice("l-1", 5)], [], [Notice("l-1", 9)]]


@given(st.integers(1, 7 * 24 * 3600))
def test_silence_is_noticed_before_a_lease_could_end_twice_over(ttl_s: int) -> None:
    book = KeepBook(RetryPolicy(), random.Random(1))
    book.add("l-1", ttl_s, 0.0)
    due = book.wait_s(0.0)
    assert due is not None
    assert due <= min(INTERVAL_MAX_S, max(0.1, ttl_s / 4))
    assert book.take(due)
    assert book.wait_for_answer_s() <= max(2.0, ttl_s / 2)


def test_each_new_shape_is_told_once() -> None:
    book = KeepBook(RetryPolicy(), random.Random(1))
    book.add("l-1", 60, 0.0)

    def told(shape: int) -> list[int]:
        resized = [types_pb2.Lease(lease_id="l-1", shape=shape), types_pb2.Lease(lease_id="l-2", shape=5)]
        news = book.answered(leases_pb2.KeepAliveResponse(kept=1, resized=resized), 1.0)
        return [item.lease.shape for item in news if isinstance(item, Resized)]

    assert [told(2), told(2), told(3)] == [[2], [], [3]]


def exactly(drawn: float = 1.0) -> KeepBook:
    return KeepBook(RetryPolicy(backoff_first_s=0.1, backoff_max_s=2.0), Drawn(drawn))


@pytest.mark.parametrize(
    ("ttl_s", "first_s"), [(4, 1.0), (60, INTERVAL_MAX_S), (3600, INTERVAL_MAX_S), (0.2, INTERVAL_MIN_S), (0, 15.0)]
)
def test_the_first_message_is_due_after_a_quarter_of_the_ttl_or_a_little_earlier(ttl_s: float, first_s: float) -> None:
    for drawn, part in ((1.0, 1.0), (0.0, 0.85)):
        book = exactly(drawn)
        book.add("l-1", ttl_s, 100.0)
        assert book.wait_s(100.0) == pytest.approx(first_s * part)
        assert not book.take(99.0 + 0.85 * first_s)
        assert book.wait_s(200.0) == 0.0


def test_the_shortest_ttl_sets_the_pace() -> None:
    book = exactly()
    book.add("l-1", 20, 0.0)
    book.add("l-2", 4, 0.0)
    book.add("l-3", 20, 0.5)
    assert book.wait_s(0.0) == 1.0
    assert len(book.take(1.0)) == 1
    assert book.wait_s(1.0) == 1.0
    assert book.wait_for_answer_s() == 2.0
    assert len(book) == 3


def test_the_pace_that_an_answer_asks_for_is_kept_within_bounds() -> None:
    book = exactly()
    book.add("l-1", 60, 0.0)
    book.answered(leases_pb2.KeepAliveResponse(kept=1), 0.0)
    assert book.wait_s(0.0) == 15.0
    assert book.wait_for_answer_s() == 30.0
    book.answered(leases_pb2.KeepAliveResponse(kept=1, renew_within_ms=20_000), 2.0)
    assert book.wait_s(0.0) == 7.0  # five seconds after the answer
    assert book.wait_for_answer_s() == 10.0
    book.answered(leases_pb2.KeepAliveResponse(kept=1, renew_within_ms=60_000), 3.0)
    assert book.wait_s(0.0) == 7.0, "a message that is due is not put off"
    book.answered(leases_pb2.KeepAliveResponse(kept=1, renew_within_ms=900_000), 3.0)
    assert book.wait_for_answer_s() == 30.0
    book.answered(leases_pb2.KeepAliveResponse(kept=1, renew_within_ms=1), 3.0)
    assert book.wait_s(3.0) == pytest.approx(INTERVAL_MIN_S)
    assert book.wait_for_answer_s() == 2.0


def test_nothing_is_due_without_leases() -> None:
    book = exactly()
    book.drop("never added")
    assert book.wait_s(0.0) is None
    book.add("l-1", 60, 0.0)
    book.add("l-2", 60, 0.0)
    book.drop("l-1")
    assert book.wait_s(0.0) == 15.0
    book.drop("l-2")
    book.answered(leases_pb2.KeepAliveResponse(renew_within_ms=4000), 1.0)
    assert book.wait_s(1.0) is None
    book.broke(1.0)
    assert book.wait_s(1.0) is None
    assert not book.take(1000.0)


def test_a_lease_that_is_kept_again_is_told_its_news_again() -> None:
    book = exactly()
    answer = leases_pb2.KeepAliveResponse(preempting={"l-1": 5}, resized=[types_pb2.Lease(lease_id="l-1", shape=2)])
    assert not book.answered(answer, 0.0), "it is not kept yet"
    for _ in range(2):
        book.add("l-1", 60, 0.0)
        assert [type(item) for item in book.answered(answer, 0.0)] == [Notice, Resized]
        assert not book.answered(answer, 0.0)
        book.drop("l-1")


def test_streams_that_break_are_opened_again_after_longer_and_longer_until_one_answers() -> None:
    book = exactly()
    book.add("l-1", 60, 0.0)
    assert [book.broke(1.0) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0]
    assert book.wait_s(1.0) == 0.0, "what is kept is named at once"
    assert len(book.take(1.0)) == 1
    book.answered(leases_pb2.KeepAliveResponse(kept=1), 2.0)
    assert book.broke(3.0) == 0.1


def test_a_wait_that_was_asked_for_is_kept_as_far_as_no_lease_expires_by_it() -> None:
    for drawn, asked_s in ((0.0, 8.0), (1.0, 10.0)):
        book = exactly(drawn)
        assert book.broke(0.0, 8.0) == asked_s  # no lease, so all of it, and up to a quarter more
        book.add("l-1", 60, 0.0)
        assert book.broke(0.0, 8.0) == asked_s
        book.add("l-2", 6, 0.0)
        assert book.broke(0.0, 8.0) == 2.0
    assert exactly().broke(0.0, 0.001) == 0.1


@pytest.mark.parametrize(
    ("ttl_s", "least_s", "most_s"), [(0.1, 0.085, 0.1), (2.0, 0.425, 0.5), (10_000.0, 12.75, 15.0)]
)
def test_a_lease_is_kept_by_four_messages_in_its_life_within_what_a_coordinator_bears(
    ttl_s: float, least_s: float, most_s: float
) -> None:
    """Never in a hurry, however short it lives, and never so seldom that a notice comes late."""
    book = KeepBook(RetryPolicy(), random.Random(1))
    book.add("l-1", ttl_s, 0.0)
    due_s = book.wait_s(0.0)
    assert due_s is not None
    assert least_s <= due_s <= most_s
