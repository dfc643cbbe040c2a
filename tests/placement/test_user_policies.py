"""A policy of one's own is a class in an entry point; the documented example works."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aliquot.common.errors import ConfigError
from aliquot.coordinator.core.placement import POLICIES, Engine, Policy, make_policy
from aliquot.coordinator.core.placement.policies import BinPack
from aliquot.coordinator.core.values.types import Demand
from aliquot.coordinator.settings.user_policies import discover, register
from bench.lib.scanning import ScanIndex
from tests.placement.example_policy import example
from tests.placement.pools import Books, node, pool


@pytest.fixture(autouse=True)
def _policies_as_before() -> Iterator[None]:
    before = dict(POLICIES)
    yield
    POLICIES.clear()
    POLICIES.update(before)


def test_the_documented_example_places() -> None:
    policy = example().QuietCorner
    register(policy, policy.name)
    inventory = pool(node("big", 8), node("small", 2), node("middle", 4))
    engine = Engine(inventory, make_policy(policy.name))
    oracle = Engine(inventory, make_policy(policy.name), index=ScanIndex)
    books = Books(inventory)
    where = []
    for _ in range(8):
        demand = Demand(share_milli=500)
        placement = engine.place(demand)
        assert placement is not None
        assert placement == oracle.place(demand)
        books.apply(demand, placement)
        where.append(placement.node_ids[0])
    assert where == ["small"] * 4 + ["middle"] * 4


def test_the_example_is_short() -> None:
    source = example().__doc__
    assert source is not None


class Impostor(Policy):
    name = "binpack"


class Worker(Policy):
    name = "workload"


@pytest.mark.parametrize(
    ("policy", "name", "complaint"),
    [
        (object(), "x", "no subclass of Policy"),
        (BinPack, "x", "calls itself"),
        (Impostor, "binpack", "would hide"),
        (Worker, "workload", "would hide"),
    ],
)
def test_what_is_no_policy_is_refused(policy: object, name: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        register(policy, name)


def test_nothing_installed_is_nothing_found() -> None:
    assert discover() == []


def test_a_policy_without_a_formula_says_so() -> None:
    engine = Engine(pool(node("a")), Policy())
    with pytest.raises(TypeError, match="overrides neither"):
        engine.place(Demand())


def test_unknown_names_list_the_known_ones() -> None:
    with pytest.raises(ValueError, match="binpack, "):
        make_policy("nonsense")
