"""Limits that are changed behind the agent's back come back within a poll, and jobs live on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aliquot.agent.enforce.preload_files import LeaseFiles
from aliquot.agent.processes.proc import cgroup_of
from aliquot.common.kernel_files import MOUNTINFO, find_mount
from aliquot.common.tiers import Tier
from tests.agent.harness import until
from tests.enforce.cases import verdict_of
from tests.enforce.conftest import why_not
from tests.enforce.verdict import Kind
from tests.enforce.world import LEASE, LIMIT_BYTES, World, mps_program, world

UNKNOWN_ERROR = 999


def files_of(world: World) -> LeaseFiles:
    return LeaseFiles(world.folder(), LEASE)


def limit_bytes(world: World) -> int | None:
    found = files_of(world).limit_of(world.device_uuid)
    return None if found is None else found.memory_bytes


def test_a_raised_limit_is_set_right(worlds: dict[Tier, World]) -> None:
    made = worlds[Tier.PRELOAD]
    job = made.probe("--most", "64Mi")
    assert job.answer() is not None
    path = made.folder() / "limit"
    data = path.read_bytes().replace(LIMIT_BYTES.to_bytes(8, "little"), (LIMIT_BYTES * 9).to_bytes(8, "little"))
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.write(data)
    assert limit_bytes(made) == LIMIT_BYTES * 9
    until(lambda: limit_bytes(made) == LIMIT_BYTES, "the limit is set right")
    assert job.process.poll() is None


def test_a_limit_that_was_removed_or_damaged_is_made_again(worlds: dict[Tier, World]) -> None:
    made = worlds[Tier.PRELOAD]
    (made.folder() / "limit").unlink()
    until(lambda: limit_bytes(made) == LIMIT_BYTES, "the limit is there again")
    (made.folder() / "limit").chmod(0o644)
    (made.folder() / "limit").write_bytes(b"nonsense")
    until(lambda: limit_bytes(made) == LIMIT_BYTES, "the limit is there again")


def test_an_account_that_was_cut_short_is_made_again(worlds: dict[Tier, World]) -> None:
    made = worlds[Tier.PRELOAD]
    path = made.folder() / "account"
    path.write_bytes(b"")
    until(lambda: files_of(made).held_bytes(made.device_uuid) == 0, "there is an account again")
    job = made.probe()
    answer = job.answer()
    assert answer is not None
    assert answer["error"] == 2
    assert made.held_bytes(job) <= LIMIT_BYTES


def test_a_report_says_which_tier_and_frameworks_are_told(worlds: dict[Tier, World]) -> None:
    made = worlds[Tier.PRELOAD]
    job = made.start("env")
    output, _ = job.process.communicate(timeout=30)
    assert "ALIQUOT_TIER=preload" in output
    assert f"LD_PRELOAD={made.folder()}/libaliquot_preload.so" in output
    # Under this tier a framework sees the lease as its device.
    assert "XLA_CLIENT_MEM_FRACTION=0.8750" in output


def test_a_tier_that_is_gone_for_good_is_reported_and_the_next_one_holds(tmp_path: Path) -> None:
    """MPS is uninstalled under a running job: it lives on under the watchdog, and everybody is told."""
    program = mps_program(tmp_path)
    path = {"PATH": f"{program}:{os.environ['PATH']}"}
    with world(tmp_path / "world", Tier.MPS, environment=path, mps_protocol=2) as made:
        job = made.probe("--most", "64Mi")
        assert job.answer() is not None
        for installed in program.iterdir():
            installed.unlink()
        until(lambda: made.tier_of(LEASE) is Tier.WATCHDOG, "the next tier holds it")
        assert job.process.poll() is None
        slice_id = f"{LEASE}.1.0"
        until(lambda: getattr(made.coordinator.last(slice_id), "tier", 0) == Tier.WATCHDOG, "and says so")
        report = made.coordinator.last(slice_id)
        assert report is not None
        assert any(note.startswith("mps: ") and "not installed" in note for note in report.tier_notes)
        assert verdict_of(made, made.probe()).kind is Kind.KILLED, "it is held, if less well"


@pytest.mark.root("to set the memory limit of a cgroup")
def test_a_cgroup_is_kept_until_its_limit_could_be_taken_away(tmp_path: Path) -> None:
    """A later cgroup of the same name must not inherit a limit."""
    if problem := why_not(Tier.DRIVER):
        pytest.skip(problem)
    with world(tmp_path / "world", Tier.DRIVER) as made:
        job = made.probe("--most", "64Mi")
        assert job.answer() is not None
        mount = find_mount(MOUNTINFO.read_text())
        leaf = mount.directory_of(cgroup_of(job.pid) or "") if mount is not None else None
        assert leaf is not None
        made.node.scenario.fail("nvmlDeviceSetMemoryLimits_v1", UNKNOWN_ERROR)
        made.stop(LEASE)
        until(lambda: job.process.poll() is not None, "its program is ended")
        until(lambda: "can't be cleared yet" in made.node.log, "the driver refuses")
        assert leaf.is_dir()
        assert not made.is_gone(LEASE)
        made.node.scenario.clear_faults()
        until(lambda: not leaf.exists(), "its cgroup is gone")
        until(lambda: made.is_gone(LEASE), "it is told")
