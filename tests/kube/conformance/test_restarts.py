"""Everything restarted while pods come and go, each alone and two together: nothing booked twice, nothing left."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from aliquot.kube.core import names
from tests.coordinator.pool import eventually
from tests.kube.conformance.conftest import Places
from tests.kube.conformance.whole import Whole, or_skip, whole

QUARTER = {names.GPU_PERCENT: 25, names.GPU_MEMORY_MIB: 4096}
WHAT = ("agent", "extender", "operator", "coordinator", "api")


async def restarted(made: Whole, what: tuple[str, ...]) -> None:
    """Pods are being bound when it happens, and some are deleted soon after."""
    place, tag = made.place, "-".join(what)
    for number in range(4):
        await place.create(f"{tag}-a{number}", QUARTER)
    await asyncio.gather(*(made.restarts[name]() for name in what))
    for number in range(2):
        await place.delete(f"{tag}-a{number}")
        await place.create(f"{tag}-b{number}", QUARTER)
    left = [f"{tag}-{name}" for name in ("a2", "a3", "b0", "b1")]
    await place.bound(*left)
    await eventually(made.clean, f"no ghosts after {what} restarted")
    for name in left:
        await place.delete(name)
    await place.settled(0)
    await eventually(made.clean, f"nothing left after {what} restarted")


@pytest.mark.parametrize("first", WHAT)
async def test_one_after_another_and_two_together(places: Places, tmp_path: Path, first: str) -> None:
    """Each alone, then beside each that comes after it in the list."""
    async with whole(places.client, places.namespace, places.api, tmp_path) as made:
        or_skip(made, first)
        await restarted(made, (first,))
        for pair in itertools.combinations(WHAT, 2):
            if pair[0] == first and pair[1] in made.restarts:
                await restarted(made, pair)
