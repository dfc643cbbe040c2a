"""Tier `mps` against a daemon that speaks the control program's text commands."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from aliquot.agent.core.model import SliceSpec
from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.enforce.base import EnforcementError, Limited
from aliquot.agent.enforce.mps import MpsEnforcer
from aliquot.agent.enforce.mps_control import PROGRAM

GIB = 1 << 30
FAKE = Path(__file__).parent / "programs/fake_mps_control.py"
DEVICE = DeviceInfo("GPU-1", 0, "NVIDIA A100-SXM4-40GB", "A100-40", "nvidia", 40 * GIB, 0)


@pytest.fixture
def mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MpsEnforcer:
    program = tmp_path / "bin" / PROGRAM
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return MpsEnforcer(tmp_path / "mps")


def piece(lease: str, gib: int, share_milli: int = 250, tenant: str = "research") -> Limited:
    return Limited(SliceSpec(f"{lease}.1.0", lease, 1, DEVICE.uuid, share_milli, gib * GIB, tenant=tenant), DEVICE)


def daemon_of(mps: MpsEnforcer, limited: Limited) -> Path:
    return Path(mps.environment(limited)["CUDA_MPS_PIPE_DIRECTORY"]) / "daemon.json"


def test_not_installed_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert PROGRAM in MpsEnforcer(tmp_path).available(piece("l-1", 4))


def test_a_lease_gets_a_daemon_and_its_own_limits(mps: MpsEnforcer) -> None:
    mine = piece("l-1", 4, share_milli=333)
    assert mps.available(mine) == ""
    assert not mps.read_back(mine)
    mps.apply(mine)
    mps.apply(mine)
    assert mps.read_back(mine)
    environment = mps.environment(mine)
    assert environment["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4096M"
    assert environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "34"
    assert json.loads(daemon_of(mps, mine).read_text())["limit"] == "4096M"
    mps.clear(mine)
    assert not daemon_of(mps, mine).exists()
    mps.clear(mine)


def test_tenants_never_share_a_daemon_and_leases_of_one_do(mps: MpsEnforcer) -> None:
    large, small, other = piece("l-1", 8), piece("l-2", 2), piece("l-3", 4, tenant="teaching")
    for each in (large, small, other):
        mps.apply(each)
    assert daemon_of(mps, large) == daemon_of(mps, small) != daemon_of(mps, other)
    assert all(mps.read_back(each) for each in (large, small, other))
    mps.clear(large)
    assert json.loads(daemon_of(mps, small).read_text())["limit"] == "2048M"
    assert mps.read_back(small)


def test_a_daemon_that_died_or_was_told_otherwise_is_noticed_and_set_right(mps: MpsEnforcer) -> None:
    mine = piece("l-1", 4)
    mps.apply(mine)
    state = daemon_of(mps, mine)
    state.write_text(state.read_text().replace("4096M", "40960M"))
    assert not mps.read_back(mine)
    mps.apply(mine)
    assert mps.read_back(mine)
    state.unlink()
    assert not mps.read_back(mine)
    mps.apply(mine)
    assert mps.read_back(mine)


def test_processes_that_missed_the_daemon_are_named(mps: MpsEnforcer) -> None:
    mine = piece("l-1", 4)
    mps.apply(mine)
    state = daemon_of(mps, mine)
    state.write_text(json.dumps(json.loads(state.read_text()) | {"servers": {"4711": [100, 101]}}))
    assert mps.escaped(mine, [100, 101, 102]) == [102]


def test_a_daemon_serves_one_user(mps: MpsEnforcer) -> None:
    mine = piece("l-1", 4)
    mps.apply(mine)
    mps.admit(mine, 1000)
    mps.admit(mine, 1000)
    with pytest.raises(EnforcementError, match="serves uid 1000"):
        mps.admit(mine, 1001)
