"""The bypass suite: no attempt leaves a lease with more than it has, by any tier."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.agent.core.enforcement import CONTEXT_MAX_BYTES
from aliquot.common.tiers import Tier
from tests.enforce.cases import CASES, MPS_OWN, PRELOADS_OWN
from tests.enforce.conftest import why_not
from tests.enforce.verdict import Kind, Verdict
from tests.enforce.world import LIMIT_BYTES, World, world

KILLED_UNDER_PRELOAD = {
    "LD_PRELOAD unset",
    "static binary",
    "setuid binary",
    "symbol table of the driver read by the program itself",
    "account file forged by the lease's user",
    "IPC: imported memory that outlives its owner",
}
"""What gets past the library; the watchdog sees it at its next poll."""


KILLED_UNDER_DRIVER = {
    "environment edited: another device made visible",
    # The driver's limits leave managed memory out; the watchdog doesn't.
    "allocate: managed",
    "allocate: managed, by cuGetProcAddress",
}
TWICE_LIMITED = "two containers below the lease's cgroup, each with a limit of its own"
"""The driver's own books allow it, until the agent lifts these at its next look; the watchdog sees what was taken, and
ends who holds more than a context a process too much.
"""
UNDER_WATCHDOG = (
    "allocate: malloc",
    "allocate: async",
    "allocate: vmm",
    "child of a child",
    "fork after the driver was initialised",
    "LD_PRELOAD unset",
    "setuid binary",
)
"""One of each kind: to the watchdog they are all alike."""
UNDER_MPS = (
    "allocate: malloc",
    "allocate: managed",
    "static binary",
    "LD_PRELOAD unset",
    "processes racing at the limit",
    *sorted(MPS_OWN),
)
"""Those that a client's limit denies, and those that it says nothing of."""
PAST_MPS = {"allocate: managed", "processes racing at the limit", *MPS_OWN}
"""What the server's limit does not hold: the driver's behind it does, but for managed memory, or the watchdog."""
UNDER_NESTED = (
    "allocate: malloc",
    "child of a child",
    "processes racing at the limit",
    "two cgroups made below the lease's own",
    TWICE_LIMITED,
)
"""Those that look at how limits of cgroups stand to each other."""


def attempt(world: World, title: str) -> Verdict:
    verdict = CASES[title](world)
    if verdict.kind is Kind.NOT_RUN:
        pytest.skip(verdict.detail)
    return verdict


@pytest.mark.parametrize("title", [title for title in CASES if title not in MPS_OWN])
def test_preload_denies_or_the_watchdog_ends(worlds: dict[Tier, World], title: str) -> None:
    verdict = attempt(worlds[Tier.PRELOAD], title)
    allowed = {Kind.DENIED, Kind.KILLED} if title in KILLED_UNDER_PRELOAD else {Kind.DENIED}
    assert verdict.kind in allowed, verdict


@pytest.mark.root("to set the memory limit of a cgroup")
@pytest.mark.parametrize("title", [title for title in CASES if title not in PRELOADS_OWN | MPS_OWN])
def test_driver_denies(worlds: dict[Tier, World], title: str) -> None:
    verdict = attempt(worlds[Tier.DRIVER], title)
    allowed = {Kind.DENIED}
    if title in KILLED_UNDER_DRIVER:
        allowed = {Kind.KILLED}
    if title == TWICE_LIMITED:
        allowed |= {Kind.KILLED}
        if verdict.kind is Kind.GAP:
            # Nobody is ended for less than a context a process, which may not be charged to the limit.
            assert worlds[Tier.DRIVER].held_bytes() <= LIMIT_BYTES + 2 * CONTEXT_MAX_BYTES
            return
    assert verdict.kind in allowed, verdict


@pytest.mark.root("to set the memory limit of a cgroup")
@pytest.mark.parametrize("title", UNDER_NESTED)
def test_nested_limits_deny_too(nested_world: World, title: str) -> None:
    verdict = attempt(nested_world, title)
    assert verdict.kind is Kind.DENIED, verdict


@pytest.mark.parametrize("title", UNDER_WATCHDOG)
def test_watchdog_ends(worlds: dict[Tier, World], title: str) -> None:
    verdict = attempt(worlds[Tier.WATCHDOG], title)
    assert verdict.kind is Kind.KILLED, verdict


@pytest.fixture(scope="module", params=[2, 3])
def mps_world(request: pytest.FixtureRequest) -> Iterator[World]:
    """A server for each tenant, and an older driver; and one for all, with the driver's limits behind it."""
    with (
        tempfile.TemporaryDirectory(prefix="aliquot-enforce-") as folder,
        world(Path(folder) / "mps", Tier.MPS, mps_protocol=request.param) as made,
    ):
        made.driver_behind = request.param > 2 and not why_not(Tier.DRIVER)
        yield made


@pytest.mark.parametrize("title", UNDER_MPS)
def test_mps_denies_or_what_stands_behind_it_does(mps_world: World, title: str) -> None:
    try:
        verdict = attempt(mps_world, title)
    finally:
        mps_world.settle()
    held_by_watchdog = title in PAST_MPS and (not mps_world.driver_behind or title == "allocate: managed")
    assert verdict.kind is (Kind.KILLED if held_by_watchdog else Kind.DENIED), verdict
