"""Shares of compute: who starts many processes has no more of the device than its share while others want theirs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from aliquot.agent.core.model import SliceSpec
from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.enforce.assembly import assemble, environment_of
from aliquot.agent.enforce.base import Enforcer, Limited
from aliquot.agent.enforce.pacing import library_of, share_note
from aliquot.common.tiers import ON_SHARE, Tier
from tests.agent.harness import until
from tests.enforce.world import LEASE, NEIGHBOUR, Program, World, world

GIB = 1 << 30
BUSY = Path(__file__).parents[2] / "bench/lib/keep_busy.c"


def used_ns(made: World, programs: list[Program]) -> int:
    used = {process.pid: process.used_ns for process in made.node.scenario.devices()[0].processes}
    return sum(used.get(program.pid, 0) for program in programs)


@pytest.mark.slow
@pytest.mark.parametrize("tier", [Tier.PRELOAD, Tier.WATCHDOG])
def test_a_tenant_with_four_processes_leaves_its_neighbour_half(tmp_path: Path, tier: Tier) -> None:
    program = tmp_path / "keep_busy"
    subprocess.run(["cc", "-O2", "-o", str(program), str(BUSY), "-ldl"], check=True)
    with world(tmp_path / "world", tier, 500, {"ALIQUOT_AGENT_ENFORCEMENT_THROTTLE": "yes"}) as made:
        words = (str(program), "1000000", "8")
        modest = [made.start(*words, lease=LEASE)]
        greedy = [made.start(*words, lease=NEIGHBOUR) for _ in range(4)]
        for each in (*modest, *greedy):
            assert each.answer() is not None
        seen = [(0, 0)]

        def alike() -> bool:
            """Since the last look; four fifths of it are the greedy one's where nobody holds it."""
            seen.append((used_ns(made, modest), used_ns(made, greedy)))
            had, took = (now - before for now, before in zip(seen[-1], seen[-2], strict=True))
            if had + took < 200_000_000:
                seen.pop()
                return False
            return abs(had - took) <= (had + took) // 10

        until(alike, "both use about half", 60)


def tiers(tmp_path: Path, *, throttle: bool) -> dict[Tier, Enforcer]:
    made = assemble(
        ("mps", "preload", "watchdog"),
        directory=tmp_path,
        throttle=throttle,
        blind=lambda device: "",
        powerless=lambda: "",
        unusable=lambda device: "",
    )
    return {enforcer.tier: enforcer for enforcer in made}


def test_each_tier_says_what_a_share_is_worth(tmp_path: Path) -> None:
    device = DeviceInfo("GPU-00000000-0000-0000-0000-000000000001", 0, "A100", "A100-40", "nvidia", 40 * GIB, 0)
    half = Limited(SliceSpec("l-1.1.0", "l-1", 1, device.uuid, 500, 20 * GIB), device)
    whole = Limited(SliceSpec("l-2.1.0", "l-2", 1, device.uuid, 1000, 39 * GIB), device)
    held, left = tiers(tmp_path / "held", throttle=True), tiers(tmp_path / "left", throttle=False)
    for tier in (Tier.PRELOAD, Tier.WATCHDOG):
        for each in (held[tier], left[tier]):
            each.apply(half)
        assert share_note(held[tier], half).startswith(f"{ON_SHARE}0.5 is a guarantee, within 5 points")
        assert "guarantees nothing" in share_note(left[tier], half)
        assert share_note(held[tier], whole) == ""
    assert "no guarantee" in share_note(held[Tier.MPS], half)
    assert "about 0.25" in share_note(held[Tier.MPS], half)


def test_a_tier_that_needs_no_library_loads_it_for_the_pace_alone(tmp_path: Path) -> None:
    device = DeviceInfo("GPU-00000000-0000-0000-0000-000000000001", 0, "A100", "A100-40", "nvidia", 40 * GIB, 0)
    half = Limited(SliceSpec("l-1.1.0", "l-1", 1, device.uuid, 500, 20 * GIB), device)
    watchdog = tiers(tmp_path, throttle=True)[Tier.WATCHDOG]
    watchdog.apply(half)
    library = library_of(watchdog, half)
    assert library is not None
    present = {"LD_PRELOAD": "/usr/lib/own.so"}
    assert environment_of(watchdog, half, present, 0) == library.merge_environment(half, present)
    watchdog.clear(half)
    assert library_of(watchdog, half) is None
    assert environment_of(watchdog, half, present, 0) == {}
