"""A lease that exceeds its limit again and again, whatever its processes do, is ended; nobody else notices.

`bench/evade.py` measures how much attackers gain; here is what becomes of their lease.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.common.tiers import Tier
from tests.agent.harness import desired, until
from tests.enforce.evasion import DEFAULTS, attack, longest, most_of, spans
from tests.enforce.world import World, world


@pytest.fixture(scope="module")
def watched() -> Iterator[World]:
    """A world whose agent ends leases as it does by default."""
    with (
        tempfile.TemporaryDirectory(prefix="aliquot-evasion-") as directory,
        world(Path(directory) / "watchdog", Tier.WATCHDOG, environment=DEFAULTS) as made,
    ):
        yield made


@pytest.mark.parametrize(
    ("name", "lease"), [("relay", "l-20"), ("respawn", "l-21"), ("rotation", "l-22"), ("churn", "l-24")]
)
def test_a_lease_of_attackers_is_ended(watched: World, name: str, lease: str) -> None:
    gain = attack(watched, name, lease)
    assert gain.ended
    assert gain.noticed
    assert gain.others_touched == 0


def test_an_order_to_run_does_not_bring_back_what_was_revoked(watched: World) -> None:
    """The coordinator may not have heard of it yet."""
    made = watched
    assert attack(made, "respawn", "l-23").ended
    told = len(made.coordinator.reports)
    made.coordinator.desire(desired(made.device_uuid, slice_id="l-23.1.0", lease_id="l-23", grace_ms=1000))
    until(lambda: len(made.coordinator.reports) > told, "the agent has answered")
    assert made.failure_of("l-23") == "OVER_LIMIT"


def test_pieces_and_minutes_are_counted_from_samples() -> None:
    samples = [(0.0, 9), (1.0, 9), (2.0, 1), (2.02, 9), (3.0, 1), (70.0, 9), (72.0, 1), (73.0, 1)]
    found = spans(samples, 5)
    assert found == [(0.0, 2.0), (2.02, 3.0), (70.0, 72.0)]
    assert longest(found) == pytest.approx(3.0)
    assert most_of(found) == pytest.approx(2.98)
