"""Waits between tries: short at first, then longer, never beyond the bound, and spread."""

from __future__ import annotations

import pytest

from aliquot.common.backoff import Backoff


class Recorded:
    """Draws the highest, and remembers between what."""

    def __init__(self) -> None:
        self.drawn: list[tuple[float, float]] = []

    def uniform(self, a: float, b: float, /) -> float:
        self.drawn.append((a, b))
        return b


def test_waits_double_after_the_quick_ones_up_to_the_bound() -> None:
    random = Recorded()
    backoff = Backoff(base_s=1.0, most_s=30.0, quick=3, random=random)
    assert [backoff.next_s() for _ in range(10)] == [1, 1, 1, 2, 4, 8, 16, 30, 30, 30]
    assert {low for low, _ in random.drawn} == {0.1}
    assert backoff.failures == 10
    backoff.succeeded()
    assert backoff.next_s() == 1


def test_the_defaults_sleep_through_no_failover() -> None:
    backoff = Backoff(random=Recorded())
    waits = [backoff.next_s() for _ in range(40)]
    assert waits[:22] == [1.0] * 20 + [2.0, 4.0]
    assert waits[-1] == 30.0


def test_a_million_failures_still_give_a_wait() -> None:
    backoff = Backoff(base_s=1.0, most_s=1e12, quick=0, random=Recorded(), failures=1_000_000)
    assert backoff.next_s() == 2.0**20


@pytest.mark.parametrize("asked_s", [0.5, 7.0])
def test_a_wait_that_was_asked_for_is_kept_and_spread_upwards(asked_s: float) -> None:
    random = Recorded()
    backoff = Backoff(random=random)
    assert backoff.next_s(at_least_s=asked_s) == 2 * asked_s
    assert random.drawn == [(0.0, asked_s)]
    assert backoff.failures == 1
