"""A session's connections at the server, one after the other: which one counts, and how long there has been none."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from aliquot.remote.core.window import UP_LIMITS
from aliquot.remote.server.session import ServedSession


class Idle:
    """An engine that is never given anything."""

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
