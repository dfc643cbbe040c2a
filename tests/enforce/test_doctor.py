"""`aliquot doctor` on a simulated node: what it finds, and that its proofs prove something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from aliquot import simgpu
from aliquot.agent.doctor.checks import Mark
from aliquot.agent.doctor.command import DOCTOR
from tests.agent.foreign_cgroups import why_no_tree

PROGRAM = """
import argparse, sys
from aliquot.agent.doctor.command import DOCTOR
parser = argparse.ArgumentParser()
DOCTOR.configure(parser)
parser.add_argument("--json", action="store_true")
sys.exit(DOCTOR.run(parser.parse_args()))
"""


def doctor(tmp_path: Path, *arguments: str, **environment: str) -> tuple[int, Mapping[str, tuple[str, str]]]:
    path = tmp_path / "gpus"
    if not path.exists():
        simgpu.create(path, ["A100-40"]).close()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "--json", *arguments],
        env=os.environ | simgpu.environment(path) | environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, {each["subject"]: (each["mark"], each["text"]) for each in json.loads(done.stdout)}


def test_it_proves_the_tiers_that_can_be_had(tmp_path: Path) -> None:
    code, found = doctor(tmp_path)
    assert code == 0, found
    for tier in ("tier preload", "tier watchdog"):
        assert found[tier][0] == Mark.GOOD
        assert found[tier][1].startswith("proven")
    assert found["tier mig"] == (Mark.NOTE, "can't be had: the card is not divided into instances (MIG)")


@pytest.mark.root("to set the memory limit of a cgroup")
@pytest.mark.parametrize("nested", [False, True])
def test_it_proves_that_parts_of_a_cgroup_share_the_drivers_limit(tmp_path: Path, nested: bool) -> None:
    if problem := why_no_tree():
        pytest.skip(problem)
    with simgpu.create(tmp_path / "gpus", ["A100-40"]) as scenario:
        scenario.set_limits_nested(nested=nested)
        _, found = doctor(tmp_path)
        assert scenario.limits(0) == {}, "nothing is left of it"
    assert found["tier driver"][0] == Mark.GOOD, found
    assert "in two parts of its cgroup" in found["tier driver"][1]


def test_without_a_driver_it_says_so_and_tries_nothing(tmp_path: Path) -> None:
    code, found = doctor(tmp_path, ALIQUOT_SIMGPU=str(tmp_path / "nothing"))
    assert code == 1
    assert found["driver"][0] == Mark.BAD
    assert not any(subject.startswith("tier") for subject in found)


def test_a_full_device_is_left_alone(tmp_path: Path) -> None:
    with simgpu.create(tmp_path / "gpus", ["A100-40"]) as scenario:
        scenario.add_foreign(0, memory_bytes=38 << 30)
        code, found = doctor(tmp_path)
    assert code == 0
    assert found["tiers"][0] == Mark.NOTE


CUT = """
import pynvml
from aliquot.agent.core.partitioning import Part, difference
from aliquot.agent.enforce import mig_geometry as geometry
pynvml.nvmlInit()
uuid = pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(0))
profiles = geometry.read_profiles(uuid)
geometry.apply(uuid, difference(profiles, (), [Part(4, "3g.20gb")]))
"""


@pytest.mark.root("to cut a card")
def test_a_part_of_a_card_is_proven_too(tmp_path: Path) -> None:
    with simgpu.create(tmp_path / "gpus", ["A100-40"]) as scenario:
        scenario.set_mig_mode(0, enabled=True)
        subprocess.run(
            [sys.executable, "-c", CUT], env=os.environ | simgpu.environment(tmp_path / "gpus"), check=True, timeout=60
        )
    code, found = doctor(tmp_path)
    assert code == 0, found
    assert "3g.20gb from 4" in found["MIG"][1]
    assert found["tier mig"][0] == Mark.GOOD, found
    assert found["tier mig"][1].startswith("proven")


@pytest.mark.root("to cut a card")
def test_beside_parts_undivided_cards_are_proven_for_what_they_can(tmp_path: Path) -> None:
    with simgpu.create(tmp_path / "gpus", ["A100-40", "A100-40"]) as scenario:
        scenario.set_mig_mode(0, enabled=True)
        subprocess.run(
            [sys.executable, "-c", CUT], env=os.environ | simgpu.environment(tmp_path / "gpus"), check=True, timeout=60
        )
    code, found = doctor(tmp_path)
    assert code == 0, found
    for tier in ("mig", "preload", "watchdog"):
        assert found[f"tier {tier}"][1].startswith("proven"), found


def test_looking_only_runs_nothing(tmp_path: Path) -> None:
    _, found = doctor(tmp_path, "--no-prove")
    assert found["driver"][0] == Mark.GOOD
    assert not any(subject.startswith("tier") for subject in found)


def test_it_is_a_command_of_the_command_line() -> None:
    (named,) = [each for each in entry_points(group="aliquot.commands") if each.name == "doctor"]
    assert named.load() is DOCTOR
