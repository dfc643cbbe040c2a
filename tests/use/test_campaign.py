"""A small campaign of idleness: what `bench/idle.py` plays with ten times as many leases, for three times as long."""

from __future__ import annotations

import pytest

from tests.simulation.idlers import Campaign

# Hours of production code: watching each line would double their time.
pytestmark = pytest.mark.no_cover


def test_who_does_nothing_is_told_from_who_pauses_waits_or_hangs() -> None:
    found = Campaign(1).run(43)
    assert found.violations == []
    assert (found.leases, found.wrong, found.hung) == (20, {}, 1)
    assert (found.precision, found.recall) == (1.0, 1.0)
    assert found.loans
    assert found.lent_back_ms
    assert max(found.lent_back_ms) < 5_000
    assert found.gpu_hours_won > 0
    assert not found.ended_unwarned
