"""One world per tier for a whole module: an agent takes longer to start than most attempts take."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.common.tiers import Tier
from tests.agent.foreign_cgroups import why_no_tree
from tests.enforce.world import World, world


def why_not(tier: Tier) -> str:
    """Why a tier can't be tried here; empty when it can."""
    if tier is not Tier.DRIVER:
        return ""
    return why_no_tree()


@pytest.fixture(scope="module")
def shared_worlds() -> Iterator[dict[Tier, World]]:
    """Worlds by tier, made when first asked for."""

    class Lazy(dict[Tier, World]):
        def __missing__(self, tier: Tier) -> World:
            if problem := why_not(tier):
                pytest.skip(problem)
            # Not in pytest's own folder: other users' programs must be able to look into it.
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aliquot-enforce-")))
            self[tier] = stack.enter_context(world(folder / tier.word, tier))
            return self[tier]

    with contextlib.ExitStack() as stack:
        yield Lazy()


@pytest.fixture(scope="module")
def shared_nested_world() -> Iterator[World]:
    """One in which the driver's limits of cgroups nest."""
    if problem := why_not(Tier.DRIVER):
        pytest.skip(problem)
    with (
        tempfile.TemporaryDirectory(prefix="aliquot-enforce-") as folder,
        world(Path(folder) / "nested", Tier.DRIVER, nested=True) as made,
    ):
        yield made


@pytest.fixture
def nested_world(shared_nested_world: World) -> Iterator[World]:
    """The same, with an empty device again after the test."""
    yield shared_nested_world
    shared_nested_world.settle()


@pytest.fixture
def worlds(shared_worlds: dict[Tier, World]) -> Iterator[dict[Tier, World]]:
    """The same, each with an empty device again after the test, however that ended."""
    yield shared_worlds
    for made in shared_worlds.values():
        made.settle()
