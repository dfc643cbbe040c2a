"""A session's connections at the server, one after the other: which one counts, and how long there has been none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aliquot.remote.core.window import DOWN_LIMITS, UP_LIMITS
from aliquot.remote.server.session import ServedSession
from aliquot.v1 import remote_pb2


class Idle:
    """An engine that does nothing."""

    def handle(self, _: bytes) -> None:
        """Nothing comes of it."""

    def close(self) -> None:
        """Nothing is held."""


@pytest.fixture
def session() -> Iterator[ServedSession]:
    engine: Any = Idle()
    made = ServedSession(b"s" * 16, lambda _: engine, UP_LIMITS)
    yield made
    made.end("CLOSED", "the test is over")


def there(session: ServedSession) -> bool:
    """Asked anew each time."""
    return session.connected


def test_it_is_alone_until_somebody_comes_and_again_when_they_are_gone(session: ServedSession) -> None:
    assert not there(session)
    assert session.alone_s(time.monotonic() + 5) >= 5
    number, _ = session.attach(0)
    assert there(session)
    assert session.alone_s(time.monotonic() + 5) == 0
    session.detach(number)
    assert not there(session)
    assert session.alone_s(time.monotonic() + 5) >= 5


def test_all_that_is_counted_begins_at_nothing_and_counts_frames_bytes_and_returns(session: ServedSession) -> None:
    none = dict.fromkeys(session.figures(), 0)
    assert session.figures() == none
    assert session.attach(0) == (1, 0), "no connection has the number that means none"
    assert session.figures() == none, "the first connection is no return"
    assert session.take(1, remote_pb2.RemoteUp(first=0, frames=[b"abc", b"de"]))
    assert session.attach(0) == (2, 2)
    assert not session.take(1, remote_pb2.RemoteUp(first=2, frames=[b"f"])), "the one before counts no more"
    counted = session.figures()
    assert {name: counted[name] for name in counted if counted[name] and name != "run_ahead_frames"} == {
        "frames_up": 2,
        "bytes_up": 5,
        "resumed": 1,
    }
    session.end("STOPPED", "the test is over")
    assert session.over
    assert not session.take(2, remote_pb2.RemoteUp(first=2, frames=[b"f"])), "nothing more is done"
    assert [message.end.reason for message in session.messages(2)] == ["STOPPED"]
    assert list(session.messages(1)) == []


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (remote_pb2.RemoteUp(closing=True), "CLOSED"),
        (remote_pb2.RemoteUp(acknowledged=9), "PROTOCOL"),
        (remote_pb2.RemoteUp(first=7, frames=[b"a"]), "PROTOCOL"),
    ],
)
def test_nothing_more_is_read_of_who_closes_or_breaks_the_rules(
    session: ServedSession, message: remote_pb2.RemoteUp, reason: str
) -> None:
    number, _ = session.attach(0)
    assert session.take(number, message) is False
    assert session.over
    assert [each.end.reason for each in session.messages(number)] == [reason]
    assert session.figures()["frames_up"] == 0


def test_the_end_of_a_connection_that_counts_no_more_is_no_news(session: ServedSession) -> None:
    first, _ = session.attach(0)
    second, _ = session.attach(0)
    session.detach(first)
    assert there(session)
    assert session.alone_s(time.monotonic() + 5) == 0
    session.detach(second)
    third, _ = session.attach(0)
    assert len({first, second, third}) == 3
    session.detach(second)
    assert there(session)


def test_answers_wait_only_where_there_is_no_room_for_them() -> None:
    filled = threading.Event()

    class Telling(Idle):
        """Answers as much as may be under way."""

        def __init__(self, answer: Callable[[bytes], None]) -> None:
            self._answer = answer

        def handle(self, frame: bytes) -> None:
            for _ in range(DOWN_LIMITS.frames_max):
                self._answer(frame)
            filled.set()

    make: Any = Telling
    session = ServedSession(b"s" * 16, make, UP_LIMITS)
    try:
        number, _ = session.attach(0)
        assert session.take(number, remote_pb2.RemoteUp(first=0, frames=[b"a"]))
        assert filled.wait(30), "nothing is in the way of what there is room for"
        assert session.figures()["frames_down"] == DOWN_LIMITS.frames_max
        assert session.figures()["answer_waits"] == 0
    finally:
        session.end("CLOSED", "the test is over")
