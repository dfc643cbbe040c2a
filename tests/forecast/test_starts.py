"""When what waits will start: the queue played forward."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.forecast.lifetimes import Lifetimes
from aliquot.forecast.starts import Bound, Line, Running, Starts, Waiting, middle, play

HOUR = 3600.0


def test_a_start_that_limits_settle_is_known_exactly() -> None:
    line = Line(
        nodes=(("A", 0),),
        running=(Running("a", 10.0, ((0, 1000),), ends_in_s=100.0),),
        waiting=(Waiting("l-1", "b", 1000, limit_s=50.0), Waiting("l-2", "b", 1000)),
        ended_s={"a": [1e6] * 30, "b": [1e6] * 30},
    )
    found = play(line)
    assert set(found["l-1"]) == {100.0}
    assert set(found["l-2"]) == {150.0}


def test_smaller_requests_pass_one_that_does_not_fit_and_models_are_heeded() -> None:
    line = Line(
        nodes=(("A", 500), ("B", 1000)),
        running=(Running("a", 0.0, ((0, 500),), ends_in_s=100.0),),
        waiting=(
            Waiting("large", "a", 1000, models=("A",)),
            Waiting("small", "a", 500, models=("A", "C")),
            Waiting("other", "a", 1000, models=("B",), limit_s=10.0),
            Waiting("never", "a", 1000, models=("C",)),
        ),
        ended_s={"a": [1000.0] * 30},
    )
    found = play(line)
    assert set(found["small"]) == {0.0}
    assert set(found["other"]) == {0.0}
    assert middle(found["large"]) >= 100.0
    assert "never" not in found


def test_a_gang_waits_for_all_of_its_nodes() -> None:
    running = tuple(Running("a", 0.0, ((node, 1000),), ends_in_s=100.0 * (node + 1)) for node in range(3))
    line = Line((("A", 0),) * 3, running, (Waiting("gang", "a", 1000, members=3),), {"a": [1e6] * 30})
    assert set(play(line)["gang"]) == {300.0}


def test_the_longer_something_has_run_the_longer_it_is_expected_to_run_on() -> None:
    lifetimes = Lifetimes([60.0] * 80 + [10 * HOUR] * 20, [])
    chance = random.Random(1)
    young = sorted(lifetimes.draw(0.0, 1 - chance.random()) for _ in range(200))
    old = sorted(lifetimes.draw(HOUR, 1 - chance.random()) for _ in range(200))
    assert young[100] == 60.0
    assert old[100] == 10 * HOUR
    assert lifetimes.draw(20 * HOUR, 0.5) > 20 * HOUR


def test_what_still_runs_is_not_taken_for_short() -> None:
    """Of a hundred that were begun together ten have ended: most of the others run on."""
    known = Lifetimes([60.0] * 10, [HOUR] * 90)
    chance = random.Random(2)
    drawn = [known.draw(0.0, 1 - chance.random()) for _ in range(300)]
    assert sum(length > 60.0 for length in drawn) > 240


@settings(max_examples=60, deadline=None)
@given(
    ended=st.lists(st.floats(0, 1e6), max_size=30),
    running=st.lists(st.floats(0, 1e6), max_size=30),
    age=st.floats(0, 1e7),
    chance=st.floats(1e-9, 1.0),
)
def test_a_length_is_never_shorter_than_its_age(
    ended: list[float], running: list[float], age: float, chance: float
) -> None:
    assert Lifetimes(ended, running).draw(age, chance) >= age


def test_intervals_come_from_how_wrong_earlier_expectations_were() -> None:
    starts = Starts()
    assert starts.around(HOUR) is None
    chance = random.Random(4)
    inside = 0
    for number in range(400):
        truth = HOUR * chance.lognormvariate(0, 1)
        around = starts.around(HOUR)
        if number >= 100:
            assert around is not None
            inside += around[0] <= truth <= around[1]
        starts.outcome(HOUR, truth)
    assert inside / 300 == pytest.approx(0.9, abs=0.05)


def test_limits_and_the_times_at_which_windows_change_them_are_known() -> None:
    line = Line(
        nodes=(("A", 3000),),
        running=(Running("a", 0.0, ((0, 1000),), ends_in_s=500.0, bounds=(0,)),),
        waiting=(
            Waiting("by day", "a", 1000, limit_s=10.0, bounds=(0,)),
            Waiting("by day too", "a", 1000, limit_s=10.0, bounds=(0,)),
            Waiting("another's", "b", 1000, limit_s=10.0),
            Waiting("all of it", "a", 4000, bounds=(0,)),
        ),
        ended_s={"a": [1e6] * 30, "b": [1e6] * 30},
        bounds=(Bound(1000, ((0.0, 1000), (100.0, 3000), (200.0, 0), (300.0, -1))),),
    )
    found = play(line)
    assert set(found["by day"]) == set(found["by day too"]) == {100.0}
    assert set(found["another's"]) == {0.0}
    assert set(found["all of it"]) == {500.0}
