"""Frames are done exactly once and in order, whatever the connections under them lose, repeat or cut short."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from aliquot.remote.core.channel import FRAME_BYTES_MAX
from aliquot.remote.core.window import BATCH_BYTES_MAX, FRAME_COST_BYTES, Limits, Receiving, Sending, WindowError

LIMITS = Limits(bytes_max=4000, frames_max=12)


class Direction(RuleBasedStateMachine):
    """One direction of a session. Messages and acknowledgements are under way, and lost with their connection."""

    frames = Bundle("frames")

    @initialize()
    def begin(self) -> None:
        self.sending, self.receiving = Sending(LIMITS), Receiving(LIMITS)
        self.sent: list[bytes] = []
        self.done: list[bytes] = []
        self.waiting: deque[bytes] = deque()
        self.forth: deque[tuple[int, list[bytes]]] = deque()
        self.back: deque[int] = deque()

    @rule(size=st.integers(0, 1500))
    def add(self, size: int) -> None:
        frame = len(self.sent).to_bytes(4, "big") + bytes(size)
        if self.sending.has_room(len(frame)):
            self.sending.add(frame)
            self.sent.append(frame)

    @rule()
    def send(self) -> None:
        if self.sending.has_unsent():
            self.forth.append(self.sending.take())

    @rule(twice=st.booleans())
    def arrive(self, twice: bool) -> None:
        if self.forth:
            first, frames = self.forth.popleft()
            self.waiting.extend(self.receiving.accept(first, frames))
            if twice:
                assert self.receiving.accept(first, frames) == []

    @rule()
    def do(self) -> None:
        if self.waiting:
            frame = self.waiting.popleft()
            self.receiving.finish(frame)
            self.done.append(frame)

    @rule()
    def tell(self) -> None:
        self.back.append(self.receiving.told())

    @rule()
    def hear(self) -> None:
        if self.back:
            self.sending.acknowledge(self.back.popleft())

    @rule(arrives=st.integers(0, 3), cut=st.integers(0, 5))
    def break_connection(self, arrives: int, cut: int) -> None:
        """Some of what is under way still arrives, the last of it perhaps in part; the rest is lost."""
        for _ in range(min(arrives, len(self.forth))):
            self.arrive(False)
        if self.forth:
            first, frames = self.forth[0]
            self.waiting.extend(self.receiving.accept(first, frames[:cut]))
        self.forth.clear()
        self.back.clear()
        self.sending.resume(self.receiving.received)

    @invariant()
    def in_order_and_once(self) -> None:
        if hasattr(self, "sent"):
            assert self.done == self.sent[: len(self.done)]
            assert self.sending.acknowledged <= len(self.done)
            assert self.sending.end == len(self.sent)

    @invariant()
    def bounded(self) -> None:
        if hasattr(self, "sent"):
            held = self.sent[self.sending.acknowledged :]
            assert self.sending.under_way_bytes == sum(len(frame) + FRAME_COST_BYTES for frame in held)
            assert len(held) <= LIMITS.frames_max
            assert len(held) <= 1 or self.sending.under_way_bytes <= LIMITS.bytes_max

    def teardown(self) -> None:
        """In the end all of it is done."""
        if not hasattr(self, "sent"):
            return
        self.break_connection(0, 0)
        while self.sending.has_unsent():
            self.send()
            self.arrive(False)
        while self.waiting:
            self.do()
        assert self.done == self.sent
        self.sending.acknowledge(self.receiving.told())
        assert self.sending.under_way_bytes == 0
        assert not self.receiving.owes()


TestDirection = Direction.TestCase


def test_a_message_holds_a_mebibyte_or_a_single_frame() -> None:
    sending = Sending(Limits())
    for size in (BATCH_BYTES_MAX, 10, BATCH_BYTES_MAX - 10, 1):
        sending.add(bytes(size))
    sizes = []
    while sending.has_unsent():
        sizes.append([len(frame) for frame in sending.take()[1]])
    assert sizes == [[BATCH_BYTES_MAX], [10, BATCH_BYTES_MAX - 10], [1]]


def test_a_gap_is_refused() -> None:
    receiving = Receiving(LIMITS)
    receiving.accept(0, [b"a"])
    with pytest.raises(WindowError, match="frame 2 came after 1"):
        receiving.accept(2, [b"c"])


def test_more_than_the_window_is_refused_and_changes_nothing() -> None:
    receiving = Receiving(LIMITS)
    with pytest.raises(WindowError, match="window"):
        receiving.accept(0, [b""] * (LIMITS.frames_max + 1))
    assert receiving.received == 0
    with pytest.raises(WindowError, match="longer"):
        receiving.accept(0, [bytes(FRAME_BYTES_MAX + 1)])
    assert receiving.received == 0


@given(st.integers(0, 2**64 - 1))
def test_an_acknowledgement_of_what_was_not_sent_is_refused(number: int) -> None:
    sending = Sending(LIMITS)
    sending.add(b"a")
    sending.take()
    if number <= 1:
        sending.acknowledge(number)
    else:
        with pytest.raises(WindowError):
            sending.acknowledge(number)


@given(st.integers(0, 2**64 - 1))
def test_a_resumption_at_what_can_not_be_is_refused(number: int) -> None:
    sending = Sending(LIMITS)
    for _ in range(3):
        sending.add(b"a")
    sending.take()
    sending.acknowledge(1)
    if 1 <= number <= 3:
        sending.resume(number)
        assert sending.has_unsent() == (number < 3)
    else:
        with pytest.raises(WindowError):
            sending.resume(number)
