"""The SDK against a real coordinator and real agents: environment, attaching, enforcement, restarts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from aliquot.cli.localpool import LocalPool
from aliquot.client import (
    AgentUnreachable,
    AttachRefused,
    Lease,
    LeaseChanged,
    LeaseLost,
    LeaseState,
    NeverFits,
    NoCapacity,
    Pool,
    Request,
    Tier,
    WaitUntil,
    fresh_key,
)
from aliquot.client.local import LocalAgent
from tests.client.conftest import FAST
from tests.client.real_pool import real_pool
from tests.polling import eventually

BURN = [sys.executable, "-m", "aliquot.simgpu.burn", "--bytes", "1Gi"]


def held(lease: Lease) -> list[tuple[object, ...]]:
    """What a lease holds, without what is measured in it now and then."""
    return [
        (piece.slice_id, piece.device_uuid, piece.share_milli, piece.memory_bytes, piece.state, piece.tier)
        for piece in lease.slices
    ]


@pytest.fixture(scope="module")
def local() -> Iterator[LocalPool]:
    with real_pool() as pool:
        yield pool


def test_a_program_runs_in_its_lease_and_nowhere_else(real: Any) -> None:
    with real.lease("0.25(A100),4Gi") as lease:
        (part,) = lease.slices
        assert (part.share_milli, part.memory_bytes, part.tier) == (250, 4 << 30, Tier.WATCHDOG)
        said = subprocess.PIPE
        with lease.popen([sys.executable, "-c", _SHOW], stdout=said) as process:
            seen = dict(line.split("=", 1) for line in process.stdout.read().decode().splitlines())
        assert seen["CUDA_VISIBLE_DEVICES"] == part.device_uuid
        assert seen["ALIQUOT_LEASE_ID"] == lease.lease_id
        assert lease.run([*BURN, "--seconds", "0.2"], stdout=subprocess.DEVNULL).returncode == 0


_SHOW = "import os\nfor k in ('CUDA_VISIBLE_DEVICES', 'ALIQUOT_LEASE_ID'): print(f'{k}={os.environ[k]}')"


def test_a_program_is_attached_before_it_runs(real: Any) -> None:
    admitted: list[int] = []
    with real.lease("0.25,4Gi") as lease, lease.popen(["sleep", "30"], admitted=admitted.append) as process:
        assert admitted == [process.pid]
        assert os.getpgid(process.pid) == process.pid
        process.kill()


def test_a_program_that_cannot_be_started(real: Any) -> None:
    with real.lease("0.25,4Gi") as lease:
        assert lease.run(["/nonexistent"], stderr=subprocess.DEVNULL).returncode == 127
        with pytest.raises(subprocess.CalledProcessError):
            lease.run(["false"], check=True)
        lease.run(["sh", "-c", "exit 9"])
        lease.release()
    assert real.get(lease.lease_id).exit_code == 9, "that of the last one"


def test_a_program_over_its_part_is_stopped_and_the_agent_says_why(real: Any, local: LocalPool) -> None:
    with real.lease("0.25,1Gi") as lease:
        code = lease.run(
            [*BURN, "--grow", "1Gi", "--step-seconds", "0.2", "--seconds", "60"], stdout=subprocess.DEVNULL
        )
        assert code.returncode == -signal.SIGTERM
        acts = [act for node in local.nodes for act in LocalAgent(node.socket).status().acts]
        assert any(act.lease_id == lease.lease_id and act.act == "terminate" for act in acts)


def test_releasing_ends_what_runs_in_the_lease(real: Any) -> None:
    lease = real.lease("0.25,4Gi", grace_s=1)
    process = lease.popen(["sleep", "60"])
    assert lease.release(wait_gone=True).state is LeaseState.ENDED
    assert process.wait(10) < 0


def test_this_process_joins_for_the_environment_and_leaves_at_the_end(real: Any, local: LocalPool) -> None:
    with real.lease("0.25,4Gi") as lease:
        env = lease.env
        assert env["CUDA_VISIBLE_DEVICES"] == lease.slices[0].device_uuid
        assert env["ALIQUOT_TENANT"] == "vision"
        assert lease.joined
        subprocess.run(["true"], env=os.environ | env, check=True)
    assert not lease.joined
    # Ended with this process still alive, which the agent would otherwise have stopped.
    eventually(lambda: real.get(lease.lease_id).state is LeaseState.ENDED)


def test_attaching_a_running_process(real: Any, local: LocalPool) -> None:
    with subprocess.Popen(["sleep", "60"]) as process, real.lease("0.25,4Gi", grace_s=1) as lease:
        attachment = lease.attach(process.pid)
        assert attachment.containment in {"CGROUP", "PROCESS_GROUP"}
        lease.release(wait_gone=True)
        assert process.wait(10) < 0


def test_the_agent_refuses_a_wrong_secret(real: Any, local: LocalPool) -> None:
    with real.lease("0.25,4Gi") as lease:
        node = local.node(lease.slices[0].node_name)
        with pytest.raises(AttachRefused, match="secret"):
            LocalAgent(node.socket).attach(lease.lease_id, "guessed")


def test_no_agent_on_this_machine(local: LocalPool) -> None:
    with (
        Pool(local.address, token_file=local.token_file, agent_sockets=[], retry=FAST) as pool,
        pool.lease("0.25,4Gi") as lease,
    ):
        assert lease.env["CUDA_VISIBLE_DEVICES"] == lease.slices[0].device_uuid
        with pytest.raises(AgentUnreachable, match=lease.slices[0].node_name):
            lease.run(["true"])


def test_refusals_are_explained(real: Any) -> None:
    with pytest.raises(NeverFits) as caught:
        real.lease("1(H200)")
    assert caught.value.explanation is not None
    assert caught.value.explanation.missing[0].smallest_change
    with real.lease("2"), real.lease("2"), pytest.raises(NoCapacity):
        real.lease("0.1", no_queue=True)


def test_what_would_start_instead_is_asked_for_as_it_is_told(real: Any) -> None:
    with real.lease("2x0.75,1Gi"), real.lease("2"):
        told = real.explain("1", priority=2, labels={"port": "8888"}, grace_s=7).instead
        assert told == Request("0.25", "vision", priority=2, labels={"port": "8888"}, grace_s=7, queue=told.queue)
        with real.lease(told, until=WaitUntil.GRANTED) as lease:
            assert lease.slices[0].share_milli == 250
        assert real.explain("0.1").instead is None, "it fits"


def test_a_queued_request_gets_what_is_given_back(real: Any) -> None:
    first, second = real.lease("2"), real.lease("2")
    key = fresh_key()
    waiting = real.allocate("2", wait_s=0.2, key=key)
    assert waiting.state is LeaseState.QUEUED
    assert waiting.waiting.queue_position == 1
    first.release(wait_gone=True)
    with real.lease("2", key=key) as lease:
        assert lease.lease_id == waiting.lease_id
    second.release(wait_gone=True)


def test_watching_a_lease(real: Any) -> None:
    events = real.watch(tenant="vision", after_seq=real.status().seq)
    with real.lease("0.25,4Gi") as lease:
        seen = next(event for event in events if isinstance(event, LeaseChanged) and event.lease.running)
        assert seen.lease.lease_id == lease.lease_id
    assert next(event for event in events if event.lease.end_reason).lease.end_reason == "RELEASED"
    events.close()


def test_a_killed_coordinator_costs_nobody_a_lease(real: Any, local: LocalPool) -> None:
    with real.lease("0.25,4Gi", ttl_s=5) as lease, lease.popen(["sleep", "60"]) as process:
        before = lease.refresh()
        local.coordinator.kill()
        local.start_coordinator()
        local.wait_ready()
        after = lease.refresh()
        assert (held(after), after.state, after.lease_epoch) == (held(before), before.state, before.lease_epoch)
        assert process.poll() is None
        assert not lease.lost.is_set()
        process.kill()


def test_cordon_drain_and_back(real: Any) -> None:
    lease = real.lease("0.25,4Gi", grace_s=1)
    node_id = lease.slices[0].node_id
    assert real.cordon(node_id, reason="broken fan").cordoned
    assert lease.refresh().running
    with pytest.raises(LeaseLost, match="DRAINED"):  # noqa: PT012, SIM117 - the block is what raises
        with lease:
            real.drain(node_id, grace_s=1)
            eventually(lambda: real.get(lease.lease_id).state is LeaseState.ENDED)
    assert not real.uncordon(node_id).cordoned
    assert {node.cordoned for node in real.nodes()} == {False}
