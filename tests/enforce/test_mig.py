"""Cutting cards: plans by arithmetic on both sides, and some carried out on a simulated card."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot import simgpu
from aliquot.agent.core.partitioning import Card, Instance, Part, Profile, difference
from aliquot.coordinator.core.rules.mig import change_layout
from aliquot.coordinator.core.values.types import MigCard, MigPart, MigProfile

GIB = 1 << 30
ONE = Profile(0, 19, "1g.10gb", 1, 10 * GIB, (0, 1, 2, 3, 4, 5, 6), 1)
DOUBLE = Profile(9, 15, "1g.20gb", 1, 20 * GIB, (0, 2, 4, 6), 2)
TWO = Profile(1, 14, "2g.20gb", 2, 20 * GIB, (0, 2, 4), 2)
THREE = Profile(2, 9, "3g.40gb", 3, 40 * GIB, (0, 4), 4)
FOUR = Profile(3, 5, "4g.40gb", 4, 40 * GIB, (0,), 4)
SEVEN = Profile(4, 0, "7g.80gb", 7, 80 * GIB, (0,), 8)
PROFILES = (ONE, DOUBLE, TWO, THREE, FOUR, SEVEN)


def test_what_is_there_already_stays() -> None:
    there = Instance(1, ONE.profile_id, 6, 1, in_use=True)
    found = difference(PROFILES, [there], [Part(6, "1g.10gb"), Part(0, "4g.40gb")])
    assert found.destroy == ()
    assert [(each.profile, each.start) for each in found.create] == [(FOUR, 0)]


@pytest.mark.parametrize(
    ("wanted", "in_use", "reserved", "problem"),
    [
        ([Part(0, "4g.40gb")], True, (), "1g.10gb from 0 is in use"),
        ([Part(0, "4g.40gb")], False, (0,), "1g.10gb from 0 is in use"),
        ([Part(0, "9g.90gb")], False, (), "can have no 9g.90gb"),
        ([Part(1, "4g.40gb")], False, (), "can have no 4g.40gb from 1"),
        ([Part(0, "4g.40gb"), Part(2, "1g.10gb")], False, (), "overlaps"),
        ([Part(0, "4g.40gb")], False, (1,), ""),
    ],
)
def test_what_is_in_use_reserved_or_impossible_is_refused_whole(
    wanted: list[Part], in_use: bool, reserved: tuple[int, ...], problem: str
) -> None:
    there = Instance(1, ONE.profile_id, 0, 1, in_use=in_use)
    found = difference(PROFILES, [there], wanted, reserved)
    assert problem in found.problem
    assert bool(found.problem) == bool(problem)
    assert bool(found.create or found.destroy) != bool(problem)


def test_parts_side_by_side_are_made_in_order_and_what_nobody_knows_is_spared_in_use() -> None:
    wanted = [Part(4, "3g.40gb"), Part(0, "4g.40gb")]
    found = difference(PROFILES, [], wanted)
    assert [(each.profile, each.start) for each in found.create] == [(FOUR, 0), (THREE, 4)]
    unknown = Instance(1, 99, 6, 1, in_use=True)
    assert difference(PROFILES, [unknown], wanted).problem == "a part from 6 is in use"
    idle = Instance(1, 99, 6, 1, in_use=False)
    assert difference(PROFILES, [idle], wanted).destroy == (idle,)


def test_what_a_card_says_of_its_parts() -> None:
    parts = ((Part(4, "3g.40gb"), "MIG-2"), (Part(0, "4g.40gb"), "MIG-1"))
    card = Card("GPU-1", "A100-80", PROFILES, parts)
    assert card.geometry == (Part(0, "4g.40gb"), Part(4, "3g.40gb"))
    assert [card.slices_of(name) for name in ("3g.40gb", "1g.20gb", "9g.90gb")] == [3, 1, 0]
    assert [card.compute_milli(slices) for slices in (0, 1, 3, 7)] == [1000, 142, 428, 1000]
    assert Card("GPU-1", "A100-80", (), ()).compute_milli(3) == 1000


@st.composite
def cards(draw: st.DrawFn) -> tuple[MigCard, frozenset[str]]:
    """A card that is cut in some legal way, with some of its parts in use."""
    taken: set[int] = set()
    parts: list[MigPart] = []
    for profile, start in draw(st.lists(st.tuples(st.sampled_from(PROFILES), st.integers(0, 7)), max_size=7)):
        span = set(range(start, start + profile.length))
        if start in profile.starts and not span & taken:
            taken |= span
            parts.append(MigPart(profile.name, start, f"MIG-{start}"))
    profiles = tuple(MigProfile(each.name, each.length, each.starts, each.memory_bytes) for each in PROFILES)
    in_use = draw(st.frozensets(st.sampled_from([part.uuid for part in parts]))) if parts else frozenset()
    return MigCard("GPU-1", "A100-80", profiles, tuple(parts)), in_use


@given(cards(), st.sampled_from(PROFILES), st.integers(1, 3))
def test_the_coordinators_cut_is_legal_minimal_and_what_the_agent_carries_out(
    cut: tuple[MigCard, frozenset[str]], wanted: Profile, count: int
) -> None:
    card, in_use = cut
    names = {profile.name: profile for profile in PROFILES}
    found = change_layout("n1", card, in_use, wanted.name, count)
    fixed = [part for part in card.parts if part.uuid in in_use or part.profile == wanted.name]
    taken = {slice_ for part in fixed for slice_ in range(part.start, part.start + names[part.profile].length)}
    free = [start for start in wanted.starts if not taken & set(range(start, start + wanted.length))]
    if found is None:
        assert len(free) < count or wanted.length > 1
        return
    assert not any(part.uuid in in_use or part.profile == wanted.name for part in found.lost)
    there = [
        Instance(number, names[part.profile].profile_id, part.start, names[part.profile].length, part.uuid in in_use)
        for number, part in enumerate(card.parts)
    ]
    plan = difference(PROFILES, there, [Part(part.start, part.profile) for part in found.parts])
    assert not plan.problem
    assert [(each.profile, each.start) for each in plan.create] == [
        (wanted, part.start) for part in found.parts if not part.uuid
    ]
    assert len(plan.create) == count
    assert sorted(each.start for each in plan.destroy) == sorted(part.start for part in found.lost)
    # No idle part goes that is not in the way.
    new = {slice_ for each in plan.create for slice_ in range(each.start, each.start + each.profile.length)}
    assert all(new & set(range(each.start, each.start + each.length)) for each in plan.destroy)


CUT = """
import json, pynvml
from aliquot.agent.core.partitioning import Part, difference
from aliquot.agent.enforce import mig_geometry as geometry
pynvml.nvmlInit()
handle = pynvml.nvmlDeviceGetHandleByIndex(0)
uuid = pynvml.nvmlDeviceGetUUID(handle)
try:
    geometry.read_profiles(uuid)
    refused = ""
except Exception as error:
    refused = str(error)
pynvml.nvmlDeviceSetMigMode(handle, 1)
profiles = geometry.read_profiles(uuid)
rounds = []
for wanted in (
    [(4, "3g.20gb"), (0, "1g.5gb"), (2, "2g.10gb")],
    [(0, "4g.20gb"), (4, "3g.20gb")],
    [(0, "7g.40gb")],
):
    there = geometry.read_instances(uuid, profiles)
    geometry.apply(uuid, difference(profiles, there, [Part(*part) for part in wanted]))
    ids = {profile.profile_id: profile.name for profile in profiles}
    rounds.append(sorted(ids[each.profile_id] for each in geometry.read_instances(uuid, profiles)))
devices = []
for index in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
    try:
        devices.append(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)))
    except pynvml.NVMLError:
        pass
print(json.dumps({"refused": refused, "rounds": rounds, "devices": devices}))
"""


@pytest.mark.root("to cut a card")
def test_a_device_is_cut_and_cut_again(tmp_path: Path) -> None:
    with simgpu.create(tmp_path / "gpus", ["A100-40"]) as scenario:
        environment = os.environ | simgpu.environment(scenario.path)
        done = subprocess.run([sys.executable, "-c", CUT], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "not in MIG mode" in found["refused"]
    assert found["rounds"] == [["1g.5gb", "2g.10gb", "3g.20gb"], ["3g.20gb", "4g.20gb"], ["7g.40gb"]]
    assert len(found["devices"]) == 1
    assert "7g.40gb" in found["devices"][0]
