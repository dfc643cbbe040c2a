"""Whole racks that fail: the breaker's arithmetic holds, nobody is repaired who need not be, and all return."""

from __future__ import annotations

import pytest

from tests.simulation.faults import Fault
from tests.simulation.running import Case, minimise, run_once, story

pytestmark = pytest.mark.no_cover


def hold(case: Case) -> None:
    result = run_once(case)
    if result.violations:
        pytest.fail(story(*minimise(case, result, runs_max=20)), pytrace=False)


@pytest.mark.parametrize("seed", range(1, 3))
def test_a_pool_whose_racks_fail_keeps_every_promise_and_comes_to_rest(seed: int) -> None:
    hold(Case(seed, "racks"))


@pytest.mark.parametrize("kind", ["rack.power", "rack.sick", "rack.hot"])
def test_racks_that_fail_one_after_the_other_are_back_in_the_end(kind: str) -> None:
    faults = tuple(Fault(20_000 + 25_000 * number, kind, 30_000, number) for number in range(3))
    hold(Case(7, "racks", faults))
