"""Tier `mps` against a daemon that speaks the control program's text commands."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from aliquot.agent.core.model import SliceSpec
from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.enforce.base import EnforcementError, Limited
from aliquot.agent.enforce.mps import MpsEnforcer
from aliquot.agent.enforce.mps_control import PROGRAM
from aliquot.common.tiers import Tier
from tests.agent.harness import Node, until
from tests.enforce.cases import verdict_of
from tests.enforce.verdict import Kind
from tests.enforce.world import LEASE, world

GIB = 1 << 30
FAKE = Path(__file__).parent / "programs/fake_mps_control.py"
DEVICE = DeviceInfo("GPU-1", 0, "NVIDIA A100-SXM4-40GB", "A100-40", "nvidia", 40 * GIB, 0)


def control_program(directory: Path) -> Path:
    """A folder with what stands in for the control program."""
    program = directory / "bin" / PROGRAM
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    program.chmod(0o755)
    return program.parent


@pytest.fixture
def mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MpsEnforcer:
    monkeypatch.setenv("PATH", f"{control_program(tmp_path)}:{os.environ['PATH']}")
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


def change(mps: MpsEnforcer, limited: Limited, **what: object) -> None:
    """Something happens to the daemon."""
    befall(daemon_of(mps, limited), what)


def befall(state: Path, what: Mapping[str, object]) -> None:
    """The same, whole at once: who reads it meanwhile sees either."""
    changed = state.with_suffix(".new")
    changed.write_text(json.dumps(json.loads(state.read_text()) | what))
    changed.replace(state)


def test_a_fault_is_told_once_and_only_its_own_tenants_daemon_is_started_anew(mps: MpsEnforcer) -> None:
    told: list[str] = []
    mps._tell = told.append
    first, second, other = piece("l-1", 4), piece("l-2", 2), piece("l-3", 4, tenant="teaching")
    for each in (first, second, other):
        mps.apply(each)
    mps.admit(first, 1000)
    change(mps, first, states={"4711": "FAULT"}, mark="old")
    change(mps, other, mark="old")
    assert not mps.read_back(first)
    assert not mps.read_back(second)
    assert mps.read_back(other)
    assert len(told) == 1
    assert "l-1.1.0, l-2.1.0" in told[0]
    mps.apply(first)
    mps.apply(second)
    assert mps.read_back(first)
    assert mps.read_back(second)
    assert "mark" not in json.loads(daemon_of(mps, first).read_text()), "a fresh daemon"
    assert "mark" in json.loads(daemon_of(mps, other).read_text()), "another tenant's was left alone"
    with pytest.raises(EnforcementError, match="serves uid 1000"):
        mps.admit(first, 1001)
    change(mps, first, states={"4711": "FAULT"})
    assert not mps.read_back(first)
    assert len(told) == 2, "another fault is told again"


def test_a_control_program_that_knows_no_states_is_no_fault(mps: MpsEnforcer) -> None:
    mine = piece("l-1", 4)
    mps.apply(mine)
    change(mps, mine, states={"4711": "Invalid command: get_server_status 4711"})
    assert mps.read_back(mine)


def test_a_process_outside_the_daemon_is_told_once_after_two_looks(mps: MpsEnforcer) -> None:
    told: list[str] = []
    mps._tell = told.append
    mine = piece("l-1", 4)
    mps.apply(mine)
    change(mps, mine, servers={"4711": [100]})
    mps.look_for_escaped(mine, [100, 101])
    assert told == []
    for _ in range(3):
        mps.look_for_escaped(mine, [100, 101])
    assert len(told) == 1
    assert "process 101 of slice l-1.1.0 is not under MPS" in told[0]
    mps.look_for_escaped(mine, [100, 102])
    assert len(told) == 1
    mps.look_for_escaped(mine, [100, 102])
    assert len(told) == 2


def happened(node: Node) -> str:
    return "; ".join(node.ask_info().notes)


def test_an_agent_holds_a_lease_by_mps_and_the_watchdog_what_escapes_it(tmp_path: Path) -> None:
    """By a real agent and real processes, which are clients of the daemon that stands in if they look for it."""
    path = f"{control_program(tmp_path)}:{os.environ['PATH']}"
    with world(tmp_path / "world", Tier.MPS, environment={"PATH": path}) as made:
        assert verdict_of(made, made.probe()).kind is Kind.DENIED
        escaped = ("env", "-u", "CUDA_MPS_PIPE_DIRECTORY", sys.executable, "-m", "aliquot.agent.doctor.probe", "--hold")
        quiet = made.start(*escaped, "--most", "64Mi")
        assert quiet.answer() is not None
        until(lambda: f"process {quiet.pid} of slice" in happened(made.node), "the escape is told")
        assert quiet.process.poll() is None, "it is within its limit"
        assert verdict_of(made, made.start(*escaped, "--most", "6Gi")).kind is Kind.KILLED

        state = next((made.enforcement_dir / "mps").glob("*/pipe/daemon.json"))
        (server,) = json.loads(state.read_text())["servers"]
        befall(state, {"states": {server: "FAULT"}, "mark": "old"})
        until(lambda: "a fatal fault in a program" in happened(made.node), "the fault is told")
        until(lambda: "mark" not in text_of(state), "the daemon is a fresh one")
        until(lambda: made.tier_of(LEASE) is Tier.MPS, "the lease is held by it again")


def text_of(state: Path) -> str:
    """A daemon's state; while there is none, one that is not fresh."""
    try:
        return state.read_text()
    except FileNotFoundError:
        return "mark"
