"""What is remembered of which nodes fit: asked once, asked again where something changed, and never for long."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest

from aliquot.client import NodeFit, PoolError, Request
from aliquot.kube.holding import fits as remembered
from aliquot.kube.holding.fits import FitsCache

NODES = ("a", "b", "c")


class Coordinator:
    """Knows how many pods each node takes; those with none don't fit."""

    def __init__(self) -> None:
        self.members = {"a": 2, "b": 1, "c": 0}
        self.calls: list[tuple[str, ...]] = []
        self.broken = False

    async def fits(self, _: Request, nodes: Sequence[str]) -> list[NodeFit]:
        self.calls.append(tuple(nodes))
        if self.broken:
            raise PoolError("away")
        known = [node for node in nodes if node in self.members]
        found = [(node, self.members[node]) for node in known]
        return [
            NodeFit(node, "FITS" if many else "NO_ROOM", "" if many else f"{node} is full", 10 * many, many)
            for node, many in found
        ]


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


def cache(coordinator: Coordinator, **fields: Any) -> FitsCache:
    pool: Any = coordinator
    return FitsCache(pool, **fields)


REQUEST = Request(gpu="0.1")


async def test_nodes_are_asked_about_once_and_only_those_that_are_not_known(coordinator: Coordinator) -> None:
    fits = cache(coordinator)
    assert set(await fits.obstacles("k", REQUEST, ["a", "c"])) == {"c"}
    assert await fits.obstacles("k", REQUEST, ["c", "a"]) == {"c": "aliquot: c is full"}
    assert (fits.asked, fits.hits) == (1, 1)
    assert "b" not in await fits.obstacles("k", REQUEST, NODES)
    found = await fits.obstacles("k", REQUEST, ["x"])
    assert found["x"] == "aliquot: not a node of the pool"
    assert coordinator.calls == [("a", "c"), ("b",), ("x",)]
    await fits.obstacles("another", REQUEST, ["a"])
    assert (fits.asked, fits.hits) == (4, 1)
    await fits.close()


async def test_what_changed_is_asked_again_and_what_is_old_is_too(coordinator: Coordinator) -> None:
    fits = cache(coordinator, lag_s=0.0)
    await fits.obstacles("k", REQUEST, NODES)
    coordinator.members["a"] = 0
    fits.dirty(["a", "of another cluster"])
    assert set(await fits.obstacles("k", REQUEST, NODES)) == {"a", "c"}
    fits.clear()
    await fits.obstacles("k", REQUEST, ["a"])
    assert coordinator.calls == [NODES, ("a",), ("a",)]
    old = cache(coordinator, age_max_s=-1.0)
    await old.obstacles("k", REQUEST, ["a"])
    await old.obstacles("k", REQUEST, ["a"])
    assert (old.asked, old.hits) == (2, 0)


async def test_an_answer_that_did_not_come_leaves_what_changed_to_be_asked(coordinator: Coordinator) -> None:
    fits = cache(coordinator, lag_s=0.0)
    await fits.obstacles("k", REQUEST, NODES)
    fits.dirty(["b"])
    coordinator.broken = True
    with pytest.raises(PoolError):
        await fits.obstacles("k", REQUEST, NODES)
    coordinator.broken, coordinator.members["b"] = False, 0
    assert set(await fits.obstacles("k", REQUEST, NODES)) == {"b", "c"}


async def test_pods_that_are_being_bound_take_what_is_left_until_that_fails(coordinator: Coordinator) -> None:
    fits, told = cache(coordinator), []
    fits.on_given_back.append(lambda: told.append("given back"))
    await fits.obstacles("k", REQUEST, NODES)
    assert not fits.turned_away("k"), "the one that does not fit is full"
    with fits.binding("k", "b"):
        found = await fits.obstacles("k", REQUEST, NODES)
        assert found["b"] == "aliquot: pods that are being bound there take what is left"
        assert "a" not in found
    assert "b" in await fits.obstacles("k", REQUEST, NODES), "it was bound"
    with contextlib.suppress(KeyError), fits.binding("k", "a"), fits.binding("k", "a"):
        assert "a" in await fits.obstacles("k", REQUEST, NODES)
        assert fits.turned_away("k")
        raise KeyError
    assert "a" not in await fits.obstacles("k", REQUEST, NODES)
    assert told == ["given back"], "once, because somebody was turned away"
    for key, node in (("k", "c"), ("unknown", "a")):
        with fits.binding(key, node):
            pass
    assert not fits.turned_away("unknown")
    await fits.close()


async def test_scores_of_one_comparison_serve_for_a_moment_and_for_the_same_nodes(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remembered, "_SCORES_KEPT_S", 3600.0)
    fits = cache(coordinator)
    await fits.obstacles("k", REQUEST, NODES)
    first = await fits.scores("k", REQUEST, NODES)
    assert first == {"a": 20, "b": 10, "c": 0}
    assert await fits.scores("k", REQUEST, ["b"]) == {"b": 10}
    assert coordinator.calls == [NODES, NODES]
    assert await fits.scores("k", REQUEST, ["a", "x"]) == {"a": 20, "x": 0}
    assert coordinator.calls[2:] == [("a", "x")]
    assert await fits.scores("unknown", REQUEST, ["a"]) == {"a": 20}
    monkeypatch.setattr(remembered, "_SCORES_KEPT_S", -1.0)
    asked = fits.asked
    assert await fits.scores("k", REQUEST, ["a"]) == {"a": 20}
    assert fits.asked == asked + 1, "the moment is over"
