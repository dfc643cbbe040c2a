"""The forecasters: what they learn from, what they survive, and that no history is too odd for them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.forecast.backtest import score, try_out
from aliquot.forecast.holes import filled
from aliquot.forecast.models import DAY, FORECASTERS, LEARN_HOURS, WEEK, Floats, median_forecast, same_hour
from aliquot.forecast.programme import forecast


def days(count: int, *, seed: int = 1, noise: float = 1.0) -> Floats:
    """Office hours of some days: 40 devices by day, 10 by night, and noise."""
    chance = np.random.default_rng(seed)
    shape = np.where((np.arange(count * DAY) % DAY >= 8) & (np.arange(count * DAY) % DAY < 20), 40.0, 10.0)
    return np.asarray(np.maximum(shape + chance.normal(0, noise, count * DAY), 0), np.float64)


def test_a_daily_peak_is_seen_before_it_comes() -> None:
    hours = days(28)
    ahead = median_forecast(hours, DAY)  # from midnight on
    assert ahead[9:19].min() > 30
    assert ahead[:7].max() < 20


def test_a_week_is_known_by_its_days() -> None:
    hours = days(28)
    weekend = (np.arange(len(hours)) // DAY) % 7 >= 5
    hours[weekend] = 10
    ahead = median_forecast(hours[: 26 * DAY], WEEK)  # from a Saturday's midnight on
    assert ahead[12] < 30, "the weekend is taken for a working day"
    assert ahead[2 * DAY + 12] > ahead[12]


def test_with_little_history_the_last_value_is_all_that_is_said() -> None:
    hours = days(4)[: LEARN_HOURS - 1]
    assert median_forecast(hours, 5).tolist() == [hours[-1]] * 5
    found = forecast(hours, 5)
    assert found.method == "last"
    assert found.high == [None] * 5


def test_a_step_that_no_history_knows_is_followed_at_once() -> None:
    hours = np.concatenate([np.full(27 * DAY, 10.0), np.full(6, 100.0)])
    ahead = median_forecast(hours, DAY)
    assert ahead[0] > 80, "it waits for the step to be undone"


@pytest.mark.parametrize("level", [0.0, 7.0])
def test_demand_that_never_changes_goes_on(level: float) -> None:
    for forecaster in FORECASTERS:
        assert forecaster(np.full(28 * DAY, level), DAY) == pytest.approx(np.full(DAY, level), abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(
    hours=st.lists(st.floats(0, 1e7), min_size=1, max_size=400),
    ahead=st.integers(1, WEEK),
)
def test_whatever_the_history_a_forecast_is_finite_and_not_below_zero(hours: list[float], ahead: int) -> None:
    found = median_forecast(np.array(hours), ahead)
    assert found.shape == (ahead,)
    assert np.isfinite(found).all()
    assert found.min() >= 0


def test_a_back_test_uses_only_what_was_known_then() -> None:
    hours = days(20)
    changed = hours.copy()
    changed[15 * DAY :] = 500.0
    first, second = try_out(hours), try_out(changed)
    known = [index for index, origin in enumerate(first.origins) if origin <= 15 * DAY]
    assert len(known) > 10
    assert first.middle[known].tolist() == second.middle[known].tolist()
    assert np.nan_to_num(first.high[known]).tolist() == np.nan_to_num(second.high[known]).tolist()


def test_a_forecast_of_a_daily_shape_beats_both_naive_ones_and_its_intervals_hold_what_they_say() -> None:
    hours = days(42, noise=3.0)
    found = score(hours, try_out(hours), first=14 * DAY)
    assert found.origins > 100
    assert found.mase < 0.95
    assert found.ratio < 0.95
    assert 0.85 < found.coverage < 0.96
    assert found.trusted


def test_intervals_recover_from_demand_that_becomes_wilder() -> None:
    hours = np.concatenate([days(21, noise=1.0), days(42, noise=12.0, seed=2)])
    found = score(hours, try_out(hours), first=35 * DAY)
    assert 0.85 < found.coverage < 0.96


def test_a_forecast_whose_intervals_fail_withdraws_itself_and_keeps_headroom() -> None:
    calm = days(24, noise=0.2)
    chance = np.random.default_rng(3)
    wild = np.repeat(chance.choice([0.0, 400.0], 6 * DAY // 3), 3)  # nothing before said that this could be
    found = forecast(np.concatenate([calm, wild]), DAY)
    assert found.score.coverage_week < 0.8
    assert found.method == "withdrawn"
    assert found.middle == [round(wild[-1])] * DAY
    assert all(high is not None and high >= wild[-1] for high in found.high)


# -- holes


def test_a_short_hole_is_bridged_and_a_long_one_is_as_the_day_before() -> None:
    hours: list[int | None] = [hour % DAY for hour in range(4 * DAY)]
    hours[30] = None
    hours[60:66] = [None] * 6
    found = filled(hours)
    assert len(found) == len(hours)
    assert found[30] == pytest.approx(6)
    assert found[60:66].tolist() == [12, 13, 14, 15, 16, 17]


def test_what_lies_before_a_long_absence_is_history_no_more() -> None:
    hours: list[int | None] = [*([5] * 10 * DAY), *([None] * 8 * DAY), *([7] * 4 * DAY)]
    found = filled(hours)
    assert set(found.tolist()) == {7.0}
    assert len(filled([None, None])) == 0


def test_the_same_hour_of_the_day_before_is_what_it_says() -> None:
    hours = np.arange(30.0)
    assert same_hour(hours, 26).tolist() == [*range(6, 30), 6, 7]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(0, 10**6)), max_size=600))
def test_holes_wherever_they_are_leave_a_series_without_any(hours: list[int | None]) -> None:
    found = filled(hours)
    assert np.isfinite(found).all()
    assert len(found) <= len(hours)
    if any(hour is not None for hour in hours):
        assert len(found)
        known = [hour for hour in hours if hour is not None]
        assert found[-1] == known[-1]


@pytest.mark.parametrize("shift", [1, -1], ids=["put forward", "put back"])
def test_when_clocks_change_only_the_edges_of_the_day_are_missed_and_not_for_long(shift: int) -> None:
    """Hours are UTC, people keep to the wall: their day begins an hour earlier or later from one day to the next."""
    hours = np.arange(40 * DAY)
    wall = (hours + np.where(hours >= 28 * DAY, shift, 0)) % DAY
    demand = np.where((wall >= 8) & (wall < 20), 40.0, 10.0) + np.random.default_rng(1).normal(0, 1, len(hours))

    def missed(days_later: int) -> list[int]:
        now = (28 + days_later) * DAY
        ahead = median_forecast(demand[:now], DAY)
        return [hour for hour in range(DAY) if abs(ahead[hour] - demand[now + hour]) > 15]

    edges = {7, 19} if shift == 1 else {8, 20}
    assert set(missed(0)) <= edges
    assert missed(8) == []
