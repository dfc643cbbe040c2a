"""The demonstration holds what it claims, says so when it doesn't, and replays a trace."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from aliquot.cli._out import Out
from aliquot.cli.demo import replay
from aliquot.cli.demo.story import StepFailed, Story
from aliquot.cli.localpool import LocalPool
from aliquot.client import LeaseState, Pool
from aliquot.common.errors import ConfigError
from tests.cli.conftest import PROGRAM


def test_the_whole_demonstration() -> None:
    done = subprocess.run(
        [*PROGRAM, "demo", "--json", "--no-replay"], capture_output=True, text=True, timeout=110, check=False
    )
    told = json.loads(done.stdout)
    assert [step["failure"] for step in told["steps"]] == [""] * 8
    assert (done.returncode, told["ok"]) == (0, True)
    usage = {item["name"]: item for item in told["usage"]}
    assert {item["tenant"] for item in usage.values()} == {"vision", "speech"}
    assert usage["greedy"]["outcome"] == "stopped by SIGTERM"
    assert usage["greedy"]["peak_bytes"] >= 3 << 30, "what it began with; the moment above its limit is over at once"
    assert usage["pretrain"]["share_milli_ms"] == 2000 * usage["pretrain"]["held_ms"]
    held = [item for item in usage.values() if item["name"] not in {"greedy", "hasty"}]
    assert all(0 < item["peak_bytes"] <= item["reserved_bytes"] for item in held)


def test_cards_of_four_vendors_in_one_pool() -> None:
    command = [*PROGRAM, "demo", "--vendors", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    told = json.loads(done.stdout)
    assert [step["failure"] for step in told["steps"]] == [""] * 6, done.stderr
    assert (done.returncode, told["ok"]) == (0, True)
    held = {item["vendor"]: item for item in told["held"]}
    assert set(held) == {"NVIDIA", "AMD", "Intel", "Ascend"}
    assert all(item["neighbour"].endswith("ran on") for item in held.values())
    assert (held["Ascend"]["tier"], held["Ascend"]["outcome"]) == ("mig", "denied: out of memory")


def test_a_claim_that_does_not_hold_ends_the_story() -> None:
    story = Story(Out(as_json=True))
    with story.step("first"):
        story.claim("the sky is above", holds=True)
    with pytest.raises(StepFailed, match="the moon is cheese"), story.step("second"):
        story.await_claim("the moon is cheese", lambda: False, 0.0)
    assert not story.ok
    assert [(step.ok, step.claims) for step in story.steps] == [(True, ["the sky is above"]), (False, [])]
    assert "moon" in story.steps[1].failure


NODES = "sn,cpu_milli,memory_mib,gpu,model\nt-1,64000,262144,2,T4\nt-2,64000,262144,2,G9\nt-3,64000,262144,0,\n"
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
p-2,1000,1024,1,500,T4|G9,LS,Running,5,600,5
p-1,1000,1024,2,1000,,BE,Running,1,500,1
p-3,1000,1024,0,0,,LS,Running,6,700,6
p-4,1000,1024,2,1000,T4,LS,Running,7,800,7
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three nodes, one without GPUs, and four pods that don't all fit."""
    (tmp_path / "openb").mkdir()
    (tmp_path / replay.NODES_FILE).write_text(NODES)
    (tmp_path / replay.PODS_FILE).write_text(PODS)
    return tmp_path


def test_a_trace_is_replayed_in_the_order_of_its_arrivals(local: LocalPool, trace: Path) -> None:
    advanced: list[int] = []
    with Pool(local.address, token_file=local.token_file, agent_sockets=[]) as pool:
        result = replay.run(pool, trace, advanced.append)
        leases = {lease.name: lease for lease in pool.leases() if lease.pool == replay.POOL}
        for lease in leases.values():
            pool.release(lease.lease_id, wait_gone=True)
        for name in ("t-1", "t-2"):
            pool.remove_node(name)
    assert (result.nodes, result.devices, result.pods, result.cpu_only) == (2, 4, 4, 1)
    assert (result.granted, result.refused, result.live, result.errors) == (len(leases), 3 - len(leases), 2, [])
    assert result.leased_share_milli == 2500
    assert sum(advanced) == 4
    assert leases["p-1"].state is LeaseState.GRANTED
    assert leases["p-2"].gpu == "0.5(G9|T4)"
    assert "p-4" not in leases


def test_pods_end_before_those_that_come_later(tmp_path: Path) -> None:
    pods = tmp_path / "pods.csv"
    pods.write_text(PODS)
    assert [pod.name for pod in replay.read_pods(pods, 3)] == ["p-1", "p-2", "p-3"]
    pods.write_text("who,what\n1,2\n")
    with pytest.raises(ConfigError, match="not a pod list"):
        replay.read_pods(pods, 3)
    with pytest.raises(ConfigError):
        replay.read_pods(tmp_path / "missing.csv", 3)


@pytest.mark.slow
def test_the_public_trace(local: LocalPool, traces_dir: Path) -> None:
    with Pool(local.address, token_file=local.token_file, agent_sockets=[]) as pool:
        result = replay.run(pool, traces_dir, lambda count: None)
        live = [lease for lease in pool.leases() if lease.pool == replay.POOL]
        assert (result.pods, result.errors, len(live)) == (replay.PODS, [], result.live)
        pool.release_batch([lease.lease_id for lease in live])
