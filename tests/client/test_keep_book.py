"""The book of kept leases: whatever happens, each is named well within its TTL while somebody answers."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from aliquot.client._flow import RetryPolicy
from aliquot.client._keeping import INTERVAL_MAX_S, KeepBook, Loss, Notice, Resized
from aliquot.common.limits import MAX_KEEPALIVE_IDS
from aliquot.v1 import leases_pb2, types_pb2


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
