"""How slices are held to their parts of a device's time, by a model of a driver that gives each process the same."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from aliquot.agent.core.pacing import PATIENCE_MS, Pace, Use, keep_pace

LOOK_MS = 1000


@dataclass
class Tenant:
    """What it may have, how many processes it has, and what each wants of the device."""

    share_milli: int
    processes: int = 1
    wants_milli: int = 1000


def driver(tenants: dict[str, Tenant], paces: dict[str, Pace]) -> dict[str, int]:
    """What each gets: turns of one length for each process that wants one; a held slice takes what it may."""
    got = dict.fromkeys(tenants, 0)
    most = {
        name: min(tenant.wants_milli * tenant.processes, paces.get(name, Pace()).allowed_milli or 1000)
        for name, tenant in tenants.items()
    }
    left = 1000
    wanting = set(tenants)
    while left > 0 and (wanting := {name for name in wanting if got[name] < most[name]}):
        turn = max(1, left // sum(tenants[name].processes for name in wanting))
        for name in sorted(wanting):
            step = min(turn * tenants[name].processes, most[name] - got[name], left)
            got[name] += step
            left -= step
    return got


def looked_at(tenants: dict[str, Tenant], looks: int, paces: dict[str, Pace] | None = None) -> list[dict[str, int]]:
    """What each got, by look. The measurement is rounded to whole percents as the driver's is."""
    paces, found = paces if paces is not None else {}, []
    for look in range(looks):
        got = driver(tenants, paces)
        found.append(got)
        uses = {name: Use(tenants[name].share_milli, round(milli / 10) * 10) for name, milli in got.items()}
        paces.update(keep_pace(paces, uses, 0, LOOK_MS, look * LOOK_MS))
    return found


@pytest.mark.parametrize(
    "tenants",
    [
        [Tenant(500), Tenant(500)],
        [Tenant(750), Tenant(250)],
        [Tenant(500), Tenant(500, processes=8)],
        [Tenant(900), Tenant(100, processes=8)],
        [Tenant(250)] * 4,
        [Tenant(400), Tenant(300), Tenant(200), Tenant(100)],
        [Tenant(250), Tenant(250), Tenant(250), Tenant(250, processes=16)],
    ],
)
def test_all_that_are_busy_come_to_their_shares_and_nothing_is_left_unused(tenants: list[Tenant]) -> None:
    named = {f"s{number}": tenant for number, tenant in enumerate(tenants)}
    found = looked_at(named, 30)
    for got in found[10:]:
        assert sum(got.values()) >= 950
        for name, milli in got.items():
            assert abs(milli - named[name].share_milli) <= 50, found


def test_what_one_does_not_want_the_others_have() -> None:
    tenants = {"modest": Tenant(500, wants_milli=200), "greedy": Tenant(500, processes=4)}
    found = looked_at(tenants, 50)
    assert all(got["modest"] >= 180 for got in found[5:])
    assert sum(sum(got.values()) for got in found[5:]) >= 955 * len(found[5:])


def test_one_look_at_a_slice_that_was_slow_does_not_cost_it_its_share() -> None:
    tenants = {"a": Tenant(750), "b": Tenant(250)}
    paces: dict[str, Pace] = {}
    looked_at(tenants, 20, paces)
    tenants["a"].wants_milli = 690
    looked_at(tenants, 1, paces)
    tenants["a"].wants_milli = 1000
    assert looked_at(tenants, 8, paces)[-1]["a"] >= 730


def test_what_wants_more_later_gets_its_part_then() -> None:
    tenants = {"a": Tenant(500, wants_milli=200), "b": Tenant(500, processes=8)}
    paces: dict[str, Pace] = {}
    looked_at(tenants, 20, paces)
    tenants["a"].wants_milli = 1000
    looks = PATIENCE_MS[1] // LOOK_MS + 10
    assert looked_at(tenants, looks, paces)[-1]["a"] >= 450


def test_whoever_is_left_alone_is_held_no_more() -> None:
    tenants = {"a": Tenant(750), "b": Tenant(250)}
    paces: dict[str, Pace] = {}
    looked_at(tenants, 10, paces)
    assert paces["b"].allowed_milli == 250
    tenants["a"].wants_milli = 0
    looked_at(tenants, 5, paces)
    assert paces["b"].allowed_milli == 0


def test_time_counts_for_what_a_launch_takes_only_while_it_is_held() -> None:
    uses = {"a": Use(750, 500), "b": Use(250, 500)}
    first = keep_pace({}, uses, 0, LOOK_MS, 0)
    assert (first["a"], first["b"]) == (Pace(), Pace(allowed_milli=250))
    second = keep_pace(first, uses, 0, LOOK_MS, LOOK_MS)
    assert (second["a"].used_us, second["b"].used_us) == (0, 500_000)


def test_what_programs_of_no_lease_use_is_not_given_away() -> None:
    """The device is full by them, so that nobody is let loose on it."""
    held = {"a": Pace(allowed_milli=500), "b": Pace(allowed_milli=250)}
    uses = {"a": Use(500, 400), "b": Use(250, 250)}
    assert keep_pace(held, uses, 330, LOOK_MS, 0)["b"].allowed_milli == 250
