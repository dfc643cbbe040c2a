"""Tier `mps` against a daemon that speaks the control program's text commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from aliquot.agent.core.model import SliceSpec
from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.enforce.base import EnforcementError, Limited
from aliquot.agent.enforce.mps import MpsEnforcer, look_at
from aliquot.agent.enforce.mps_control import PROGRAM
from aliquot.agent.enforce.nothing_set import NothingSet
from aliquot.common.tiers import Tier
from tests.agent.harness import Node, until
from tests.enforce.cases import verdict_of
from tests.enforce.verdict import Kind
from tests.enforce.world import LEASE, Program, World, mps_environment, world

GIB = 1 << 30
DEVICE = DeviceInfo("GPU-1", 0, "NVIDIA A100-SXM4-40GB", "A100-40", "nvidia", 40 * GIB, 0)


@pytest.fixture
def mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MpsEnforcer:
    """With a control program that has no names: a daemon for each tenant."""
    monkeypatch.setenv("PATH", mps_environment(tmp_path, 2)["PATH"])
    made = MpsEnforcer(tmp_path / "mps")
    assert not made.together
    return made


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MpsEnforcer:
    """With one that has: a namespace for each lease."""
    monkeypatch.setenv("PATH", mps_environment(tmp_path, 3)["PATH"])
    made = MpsEnforcer(tmp_path / "named")
    assert made.together
    return made


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
    assert "tenant 'research' (slices l-1.1.0, l-2.1.0): a fatal fault" in told[0]
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
    mps.look_at_clients(mine, [100, 101])
    assert told == []
    for _ in range(3):
        mps.look_at_clients(mine, [100, 101])
    assert len(told) == 1
    assert "process 101 of slice l-1.1.0 is not under MPS" in told[0]
    mps.look_at_clients(mine, [100, 102])
    assert len(told) == 1
    mps.look_at_clients(mine, [100, 102])
    assert len(told) == 2


def happened(node: Node) -> str:
    return "; ".join(node.ask_info().notes)


def test_an_agent_holds_a_lease_by_mps_and_the_watchdog_what_escapes_it(tmp_path: Path) -> None:
    """By a real agent and real processes, which are clients of the daemon that stands in if they look for it."""
    with world(tmp_path / "world", Tier.MPS, mps_protocol=2) as made:
        assert verdict_of(made, made.probe()).kind is Kind.DENIED
        escaped = ("env", "-u", "CUDA_MPS_PIPE_DIRECTORY", sys.executable, "-m", "aliquot.agent.doctor.probe", "--hold")
        quiet = made.start(*escaped, "--most", "64Mi")
        assert quiet.answer() is not None
        until(lambda: f"process {quiet.pid} of slice" in happened(made.node), "the escape is told")
        assert quiet.process.poll() is None, "it is within its limit"
        assert verdict_of(made, made.start(*escaped, "--most", "6Gi")).kind is Kind.KILLED

        state = next((made.enforcement_dir / "mps").glob("*/pipe/daemon.json"))
        (server,) = json.loads(state.read_text())["servers"]
        uuid, _, tenant = state.parents[1].name.partition(".")
        text = what_the_doctor_says(made.node)[f"MPS {uuid}"]
        assert text.startswith(f"tenant {tenant!r}: servers: {server}")
        befall(state, {"states": {server: "FAULT"}, "mark": "old"})
        until(lambda: "a fatal fault in one of its programs" in happened(made.node), "the fault is told")
        until(lambda: "mark" not in text_of(state), "the daemon is a fresh one")
        until(lambda: made.tier_of(LEASE) is Tier.MPS, "the lease is held by it again")


def what_the_doctor_says(node: Node) -> dict[str, str]:
    """By subject, of a node whose agent runs."""
    command = [sys.executable, "-m", "aliquot.cli", "doctor", "--no-prove", "--state-dir", str(node.state_dir)]
    done = subprocess.run(
        [*command, "--json"], env=node.base_environment(), capture_output=True, text=True, timeout=60, check=False
    )
    return {each["subject"]: each["text"] for each in json.loads(done.stdout)}


def text_of(state: Path) -> str:
    """A daemon's state; while there is none, one that is not fresh."""
    try:
        return state.read_text()
    except FileNotFoundError:
        return "mark"


def state_of(mps: MpsEnforcer, limited: Limited) -> Path:
    """Of the daemon that serves all tenants of a device."""
    return mps._control(limited).pipe_directory / "daemon.json"


def test_one_server_has_a_namespace_for_each_lease_of_all_tenants(tmp_path: Path, named: MpsEnforcer) -> None:
    mine, other = piece("l-1", 4, share_milli=500), piece("L-2", 8, share_milli=333, tenant="teaching")
    for each in (mine, other):
        named.apply(each)
        named.apply(each)
    assert named.read_back(mine)
    assert named.read_back(other)
    (server,) = json.loads(state_of(named, mine).read_text())["named"].values()
    assert server["devices"] == DEVICE.uuid
    said = {(s["pinned-memory-limit"], s["active-thread-percentage"]) for s in server["namespaces"].values()}
    assert said == {("4096M", "50"), ("8192M", "34")}
    pipes = {named.environment(each)["CUDA_MPS_PIPE_DIRECTORY"] for each in (mine, other)}
    assert len(pipes) == 2
    assert all(Path(pipe, "control").is_file() for pipe in pipes)
    ((device, said_of_all),) = look_at(tmp_path / "named")
    assert device == DEVICE.uuid
    assert said_of_all.startswith("all tenants: servers: ")
    assert said_of_all.count("4096M, 50 %") == said_of_all.count("8192M, 34 %") == 1
    named.admit(mine, 1000)
    named.admit(other, 1001)
    named.clear(mine)
    assert named.read_back(other)
    assert len(json.loads(state_of(named, other).read_text())["named"]["aliquot"]["namespaces"]) == 1
    named.clear(other)
    assert not state_of(named, other).exists()


def test_a_namespace_that_nobody_holds_any_more_is_deleted_and_the_default_one_is_not(named: MpsEnforcer) -> None:
    """Also one that an agent before this one left."""
    mine, other = piece("l-1", 4), piece("l-2", 8)
    for each in (mine, other):
        named.apply(each)
    state = state_of(named, mine)
    document = json.loads(state.read_text())
    (server,) = document["named"].values()
    (one, _) = server["namespaces"].values()
    server["namespaces"] |= {"left": one, "default": one}
    state.write_text(json.dumps(document))
    named.clear(mine)
    (server,) = json.loads(state.read_text())["named"].values()
    assert len(server["namespaces"]) == 2
    assert "left" not in server["namespaces"]
    assert "default" in server["namespaces"]


def test_a_namespace_that_says_something_else_is_not_in_force(named: MpsEnforcer) -> None:
    mine = piece("l-1", 4)
    named.apply(mine)
    state = state_of(named, mine)
    state.write_text(state.read_text().replace('"4096M"', '"40G"'))
    assert not named.read_back(mine)
    named.apply(mine)
    assert named.read_back(mine)
    state.write_text(state.read_text().replace(DEVICE.uuid, "GPU-unknown"))
    assert not named.read_back(mine), "clients of a server for a device that is not there run without any limit"


def test_a_client_is_let_go_before_it_is_killed(mps: MpsEnforcer, named: MpsEnforcer) -> None:
    for each in (mps, named):
        mine, other = piece("l-1", 4), piece("l-2", 4)
        each.apply(mine)
        each.release(other.spec.holder, 99)
        each.release(mine.spec.holder, 100)
        assert json.loads(state_of(each, mine).read_text())["terminated"] == [100]


def test_what_a_slice_holds_together_is_limited_behind_where_it_can_be(tmp_path: Path, named: MpsEnforcer) -> None:
    mine, behind = piece("l-1", 4), Behind()
    named._behind = behind
    named.apply(mine)
    assert named.read_back(mine)
    assert behind.limits == {"l-1.1.0"}
    behind.limits.clear()
    assert not named.read_back(mine), "somebody lifted it"
    named.apply(mine)
    named.clear(mine)
    assert behind.limits == set()
    behind.why_not = "no root"
    named.apply(mine)
    assert named.read_back(mine)
    assert behind.limits == set()


class Behind(NothingSet):
    """A tier that limits all processes of a slice together."""

    tier = Tier.DRIVER

    def __init__(self) -> None:
        self.why_not = ""
        self.limits: set[str] = set()

    def available(self, limited: Limited) -> str:
        return self.why_not

    def apply(self, limited: Limited) -> None:
        self.limits.add(limited.spec.slice_id)

    def read_back(self, limited: Limited) -> bool:
        return limited.spec.slice_id in self.limits

    def clear(self, limited: Limited) -> None:
        self.limits.discard(limited.spec.slice_id)


BUSY = """
import json, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
from aliquot.simgpu.cuda import SPIN_KERNEL, Cuda
cuda = Cuda()
kernel = cuda.load_kernel(SPIN_KERNEL, "spin")
for _ in range(60):
    cuda.launch(kernel, 1_000_000_000)
print(json.dumps({"busy": True}), flush=True)
time.sleep(600)
"""


def busy(made: World) -> Program:
    program = made.python(BUSY)
    assert program.answer() is not None
    return program


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_server_that_is_wedged_is_seen_and_replaced(tmp_path: Path, protocol: int) -> None:
    """By a client that somebody has killed with work queued; not by one that the agent has ended."""
    with world(tmp_path / "world", Tier.MPS, mps_protocol=protocol) as made:
        first = busy(made)
        (state,) = (made.enforcement_dir / "mps").glob("*/pipe/daemon.json")
        until(lambda: str(first.pid) in str(clients_told(made, state)), "the daemon has a client")
        made.renew()
        assert first.pid in json.loads(state.read_text())["terminated"]
        assert verdict_of(made, made.probe()).kind is Kind.DENIED, "its server takes others as before"

        made.settle()
        killed, number = busy(made), number_of(state)
        until(lambda: killed.pid in clients_told(made, state), "the daemon has a client")
        os.kill(killed.pid, signal.SIGKILL)
        killed.process.wait()
        until(lambda: "it takes no new programs" in happened(made.node), "the wedge is told", 120)
        until(lambda: number_of(state) != number, "the daemon is a fresh one")
        until(lambda: made.tier_of(made.lease) is Tier.MPS, "the lease is held by it again", 120)
        assert verdict_of(made, made.probe()).kind is Kind.DENIED


def number_of(state: Path) -> int:
    """Which daemon it is; 0: there is none now."""
    return int(json.loads(state.read_text())["number"]) if state.exists() else 0


def clients_told(made: World, state: Path) -> list[int]:
    return [each.pid for each in made.node.scenario.devices()[0].processes if each.mps_server]
