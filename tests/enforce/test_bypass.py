"""The bypass suite: no attempt leaves a lease with more than it has, by any tier."""

from __future__ import annotations

import pytest

from aliquot.common.tiers import Tier
from tests.enforce.cases import CASES, PRELOADS_OWN
from tests.enforce.verdict import Kind, Verdict
from tests.enforce.world import World

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
"""The driver's own books allow it, until the agent lifts these at its next look; the watchdog sees what was taken."""
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


@pytest.mark.parametrize("title", CASES)
def test_preload_denies_or_the_watchdog_ends(worlds: dict[Tier, World], title: str) -> None:
    verdict = attempt(worlds[Tier.PRELOAD], title)
    allowed = {Kind.DENIED, Kind.KILLED} if title in KILLED_UNDER_PRELOAD else {Kind.DENIED}
    assert verdict.kind in allowed, verdict


@pytest.mark.root("to set the memory limit of a cgroup")
@pytest.mark.parametrize("title", [title for title in CASES if title not in PRELOADS_OWN])
def test_driver_denies(worlds: dict[Tier, World], title: str) -> None:
    verdict = attempt(worlds[Tier.DRIVER], title)
    allowed = {Kind.DENIED}
    if title in KILLED_UNDER_DRIVER:
        allowed = {Kind.KILLED}
    if title == TWICE_LIMITED:
        allowed |= {Kind.KILLED}
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
