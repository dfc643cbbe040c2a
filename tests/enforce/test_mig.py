"""Cutting devices: plans by arithmetic, and one carried out on a simulated device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.agent import simgpu
from aliquot.agent.core.partitioning import Instance, Profile, fitting_profile, plan

GIB = 1 << 30
ONE = Profile(0, 19, "1g.10gb", 1, 10 * GIB, (0, 1, 2, 3, 4, 5, 6), 1)
DOUBLE = Profile(9, 15, "1g.20gb", 1, 20 * GIB, (0, 2, 4, 6), 2)
TWO = Profile(1, 14, "2g.20gb", 2, 20 * GIB, (0, 2, 4), 2)
THREE = Profile(2, 9, "3g.40gb", 3, 40 * GIB, (0, 4), 4)
FOUR = Profile(3, 5, "4g.40gb", 4, 40 * GIB, (0,), 4)
SEVEN = Profile(4, 0, "7g.80gb", 7, 80 * GIB, (0,), 8)
PROFILES = (ONE, DOUBLE, TWO, THREE, FOUR, SEVEN)


@pytest.mark.parametrize(
    ("memory_gib", "share_milli", "name", "expected"),
    [
        (10, 1, "", ONE),
        (11, 1, "", DOUBLE),
        (20, 200, "", TWO),
        (30, 100, "", THREE),
        (30, 500, "", FOUR),
        (41, 1, "", SEVEN),
        (81, 1, "", None),
        (1, 1, "3g.40gb", THREE),
        (1, 1, "5g.1gb", None),
    ],
)
def test_the_smallest_profile_that_fits(memory_gib: int, share_milli: int, name: str, expected: Profile | None) -> None:
    found = fitting_profile(PROFILES, memory_bytes=memory_gib * GIB, share_milli=share_milli, name=name)
    assert found == expected


def test_what_is_there_already_is_kept() -> None:
    there = Instance(1, ONE.profile_id, 6, 1, in_use=False)
    found = plan(PROFILES, [there], [ONE, FOUR])
    assert found.destroy == ()
    assert [(each.profile, each.start) for each in found.create] == [(FOUR, 0)]


def test_an_idle_part_in_the_way_goes_and_one_in_use_never() -> None:
    idle, used = Instance(1, ONE.profile_id, 0, 1, in_use=False), Instance(2, ONE.profile_id, 4, 1, in_use=True)
    found = plan(PROFILES, [idle, used], [FOUR])
    assert found.destroy == (idle,)
    assert [each.start for each in found.create] == [0]
    assert "4g.40gb" in plan(PROFILES, [Instance(3, ONE.profile_id, 1, 1, in_use=True)], [FOUR]).problem


@given(
    st.lists(st.sampled_from(PROFILES), max_size=7),
    st.lists(st.tuples(st.sampled_from(PROFILES), st.booleans()), max_size=3),
)
def test_no_plan_overlaps_or_touches_what_is_in_use(wanted: list[Profile], there: list[tuple[Profile, bool]]) -> None:
    existing: list[Instance] = []
    taken: set[int] = set()
    for number, (profile, in_use) in enumerate(there):
        start = next((s for s in profile.starts if not taken & set(range(s, s + profile.length))), None)
        if start is not None:
            taken |= set(range(start, start + profile.length))
            existing.append(Instance(number, profile.profile_id, start, profile.length, in_use))
    found = plan(PROFILES, existing, wanted)
    if found.problem:
        assert not found.create
        assert not found.destroy
        return
    assert not any(instance.in_use for instance in found.destroy)
    left = [each for each in existing if each not in found.destroy]
    spans = [range(each.start, each.start + each.length) for each in left]
    for each in found.create:
        assert each.start in each.profile.starts
        spans.append(range(each.start, each.start + each.profile.length))
    slices = [number for span in spans for number in span]
    assert len(slices) == len(set(slices))
    kept = sorted([each.profile_id for each in left if not each.in_use] + [e.profile.profile_id for e in found.create])
    assert kept == sorted(profile.profile_id for profile in wanted)


CUT = """
import json, pynvml
from aliquot.agent.core.partitioning import plan
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
by_name = {profile.name: profile for profile in profiles}
rounds = []
for names in (["3g.20gb", "1g.5gb", "2g.10gb"], ["4g.20gb", "3g.20gb"], ["7g.40gb"]):
    there = geometry.read_instances(uuid, profiles)
    geometry.apply(uuid, plan(profiles, there, [by_name[name] for name in names]))
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


@pytest.mark.root
def test_a_device_is_cut_and_cut_again(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("cutting a device needs root")
    with simgpu.create(tmp_path / "gpus", ["A100-40"]) as scenario:
        environment = os.environ | simgpu.environment(scenario.path)
        done = subprocess.run([sys.executable, "-c", CUT], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "not in MIG mode" in found["refused"]
    assert found["rounds"] == [["1g.5gb", "2g.10gb", "3g.20gb"], ["3g.20gb", "4g.20gb"], ["7g.40gb"]]
    assert len(found["devices"]) == 1
    assert "7g.40gb" in found["devices"][0]
