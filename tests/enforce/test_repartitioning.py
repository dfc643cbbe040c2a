"""A card in MIG mode is cut for who waits: a real coordinator decides, a real agent cuts a simulated card.

Nothing is ever cut that is in use, nothing is cut on a node that did not opt in, and what fails is said.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aliquot import simgpu
from aliquot.agent.disk import durable
from aliquot.common.duration import DurationMs
from aliquot.coordinator.settings.config import MigSettings
from aliquot.v1 import leases_pb2, pool_pb2, types_pb2
from tests.agent.harness import Node, until
from tests.coordinator.pool import Pool, eventually, running, settings_for

pytestmark = pytest.mark.root("to cut a card")
INSUFFICIENT_RESOURCES = 23
CREATE = "nvmlDeviceCreateGpuInstanceWithPlacement"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """One A100-40 in MIG mode with no parts."""
    (tmp_path / "node").mkdir()
    path = tmp_path / "node" / "gpus"
    made = Node(tmp_path / "node", simgpu.create(path, ["A100-40"], host=str(tmp_path)), path)
    made.scenario.set_mig_mode(0, enabled=True)
    made.environment |= {
        "ALIQUOT_AGENT_ENFORCEMENT_TIERS": "mig,watchdog",
        "ALIQUOT_AGENT_MIG_REPARTITION": "true",
    }
    yield made
    made.close()


@asynccontextmanager
async def pool_with(node: Node, *, rest_ms: int = 100) -> AsyncIterator[Pool]:
    """A pool of this node, whose coordinator does not wait long before it has cards cut."""
    settings = settings_for(mig=MigSettings(patience=DurationMs(100), rest=DurationMs(rest_ms)))
    async with running(settings) as pool:
        await node.join(pool.address)
        await asyncio.to_thread(node.start, pool.address)
        await eventually(lambda: _ready(pool), "the node is ready")
        yield pool


def _ready(pool: Pool) -> bool:
    return any(node.state.name == "READY" for node in pool.coordinator.view.nodes.values())


def profiles(node: Node) -> list[str]:
    """How the agent sees the card cut."""
    return sorted(device.mig_profile for device in node.status().devices)


async def ask(pool: Pool, gpu: str) -> types_pb2.Lease:
    return await pool.allocate(gpu, wait_until=leases_pb2.WAIT_UNTIL_QUEUED, detached=True)


def command(pool: Pool, *words: str) -> str:
    """What the command line answers."""
    environment = os.environ | {"ALIQUOT_COORDINATOR": pool.address, "ALIQUOT_TENANT": "team"}
    program = [sys.executable, "-m", "aliquot.cli", *words]
    done = subprocess.run(program, capture_output=True, text=True, env=environment, check=False, timeout=60)
    return done.stdout + done.stderr


def state_is(pool: Pool, lease: types_pb2.Lease, state: int) -> Callable[[], Awaitable[types_pb2.Lease | None]]:
    async def look() -> types_pb2.Lease | None:
        found = await pool.get(lease.lease_id)
        return found if found.state == state else None

    return look


async def active(pool: Pool, lease: types_pb2.Lease) -> types_pb2.Lease:
    found: types_pb2.Lease = await eventually(
        state_is(pool, lease, types_pb2.LEASE_STATE_ACTIVE), f"{lease.request.gpu} is active"
    )
    return found


async def notes(pool: Pool, lease: types_pb2.Lease) -> str:
    explained = (await pool.leases.Explain(leases_pb2.ExplainRequest(lease_id=lease.lease_id))).explanation
    return "; ".join((explained.summary, *explained.notes))


async def explain(pool: Pool, gpu: str) -> types_pb2.Explanation:
    """What would become of a request."""
    request = leases_pb2.ExplainRequest(request=types_pb2.LeaseRequest(gpu=gpu, tenant="team"))
    return (await pool.leases.Explain(request)).explanation


async def test_a_card_is_cut_for_who_waits_and_cut_anew_when_it_is_free(node: Node) -> None:
    async with pool_with(node) as pool:
        assert profiles(node) == []
        small = await active(pool, await ask(pool, "1g.5gb"))
        assert small.slices[0].tier == types_pb2.TIER_MIG
        assert profiles(node) == ["1g.5gb"]

        half = await active(pool, await ask(pool, "3g.20gb"))
        assert profiles(node) == ["1g.5gb", "3g.20gb"]
        kept = (await pool.get(small.lease_id)).slices[0]
        before = small.slices[0]
        assert (kept.device_uuid, kept.state, kept.since_ms) == (before.device_uuid, before.state, before.since_ms)

        whole = await ask(pool, "7g.40gb")
        await eventually(lambda: _said(pool, whole, "beside what is in use"), "it says why it waits")
        assert profiles(node) == ["1g.5gb", "3g.20gb"]
        await pool.release(small.lease_id)
        await pool.release(half.lease_id)
        whole = await active(pool, whole)
        assert profiles(node) == ["7g.40gb"]
        assert whole.slices[0].device_uuid == node.status().devices[0].uuid


async def test_a_part_of_a_card_is_cut_held_and_charged_as_the_smallest_profile(node: Node) -> None:
    async with pool_with(node) as pool:
        asked = {"wait_until": leases_pb2.WAIT_UNTIL_QUEUED, "detached": True, "min_tier": types_pb2.TIER_MIG}
        lease = await active(pool, await pool.allocate("0.25(A100-40),8Gi", **asked))
        (held,) = lease.slices
        (device,) = (await pool.node("test-node")).devices
        assert (device.uuid, device.mig_profile, device.compute_milli) == (held.device_uuid, "2g.10gb", 285)
        assert device.mig_start == 4, "as far to the end of the card as may be"
        assert held.tier == types_pb2.TIER_MIG
        assert (held.share_milli, held.memory_bytes) == (285, device.memory_total_bytes - device.memory_reserved_bytes)
        assert (lease.request.spec.share_milli, lease.request.spec.memory_bytes) == (250, 8 << 30)
        assert list(device.lease_ids) == [lease.lease_id]
        (totals,) = (await pool.nodes.GetStatus(pool_pb2.GetStatusRequest())).pools
        assert (totals.capacity_share_milli, totals.leased_share_milli) == (285, 285)

        shown = await asyncio.to_thread(command, pool, "nodes", "test-node")
        assert re.search(rf"0–3 +– +not cut *\n.* 4–5 +2g.10gb .* 0.285 .* {lease.lease_id} *\n", shown), shown
        assert re.search(" 6–7 +– +not cut *\n", shown), shown
        document = json.loads(await asyncio.to_thread(command, pool, "nodes", "test-node", "--json"))
        assert [(part["profile"], part["start"]) for part in document["cards"][0]["parts"]] == [("2g.10gb", 4)]
        assert document["devices"][0]["lease_ids"] == [lease.lease_id]
        why = await asyncio.to_thread(command, pool, "why", "0.4(A100-40)", "--min-tier", "mig")
        assert "served by a 3g.20gb of A100-40, and charged for all of that: 0.428 of the compute and" in why
        assert "A100-40 2g.10gb" in await asyncio.to_thread(command, pool, "get", lease.lease_id)

        third = await active(pool, await pool.allocate("0.3(A100-40)", **asked))
        assert third.slices[0].share_milli == 428
        assert profiles(node) == ["2g.10gb", "3g.20gb"]
        assert "served by a 3g.20gb, and charged for all of it" in third.note
        await pool.release(lease.lease_id)
        del asked["min_tier"]  # there is nothing but parts of cards here
        again = await active(pool, await pool.allocate("9Gi", **asked))
        assert again.slices[0].share_milli == 142, "by memory alone: a double slice of memory and one of compute"


async def _said(pool: Pool, lease: types_pb2.Lease, words: str) -> bool:
    return words in await notes(pool, lease)


async def test_several_parts_for_one_request_are_cut_at_once(node: Node) -> None:
    async with pool_with(node, rest_ms=60_000) as pool:
        lease = await active(pool, await ask(pool, "3x2g.10gb"))
        assert len(lease.slices) == 3
        assert profiles(node) == ["2g.10gb"] * 3


async def test_what_can_never_be_cut_is_refused_at_once(node: Node) -> None:
    async with pool_with(node) as pool:
        for gpu in ("1g.99gb", "2x7g.40gb"):
            assert (await explain(pool, gpu)).impossible, gpu
        explained = await explain(pool, "2g.10gb")
        assert not explained.impossible
        assert "can be cut" in explained.summary


async def test_a_node_that_did_not_opt_in_is_left_as_it_is(node: Node) -> None:
    node.environment["ALIQUOT_AGENT_MIG_REPARTITION"] = "false"
    async with pool_with(node) as pool:
        assert (await explain(pool, "1g.5gb")).impossible
        assert not (await pool.nodes.GetNode(pool_pb2.GetNodeRequest(node_id="test-node"))).devices


async def test_a_cut_that_fails_is_put_back_told_and_tried_again(node: Node) -> None:
    async with pool_with(node) as pool:
        small = await active(pool, await ask(pool, "1g.5gb"))
        await pool.release(small.lease_id)
        await eventually(state_is(pool, small, types_pb2.LEASE_STATE_ENDED), "it has ended")
        node.scenario.fail(CREATE, INSUFFICIENT_RESOURCES)
        half = await ask(pool, "4g.20gb")
        await eventually(lambda: _said(pool, half, "could not be cut"), "the failure is told")
        assert "Insufficient" in await notes(pool, half)
        node.scenario.clear_faults()
        await active(pool, half)
        assert "4g.20gb" in profiles(node)


async def test_a_part_with_a_process_on_it_is_never_destroyed(node: Node) -> None:
    async with pool_with(node) as pool:
        small = await active(pool, await ask(pool, "1g.5gb"))
        await pool.release(small.lease_id)
        await eventually(state_is(pool, small, types_pb2.LEASE_STATE_ENDED), "it has ended")
        uuid = node.status().devices[0].uuid
        node.environment["CUDA_VISIBLE_DEVICES"] = uuid
        stranger = await asyncio.to_thread(node.foreign_burn, "64Mi", uuid)  # type: ignore[arg-type]
        whole = await ask(pool, "7g.40gb")
        # Either the coordinator knows of the stranger's memory by now, or the agent has refused.
        await eventually(lambda: _said(pool, whole, "in use"), "it says why it waits")
        assert profiles(node) == ["1g.5gb"]
        stranger.kill()
        stranger.wait()
        await active(pool, whole)
        assert profiles(node) == ["7g.40gb"]


async def test_after_a_restart_of_the_machine_a_card_is_cut_as_before(node: Node) -> None:
    async with pool_with(node) as pool:
        lease = await active(pool, await ask(pool, "2g.10gb"))
        node.terminate()
        record = node.state_dir / "cuts.record"
        stored = durable.read_record(record, "cuts", dict)
        durable.write_record(record, "cuts", stored | {"boot_id": "another start of the machine"})
        node.scenario.reset(0)
        assert not node.scenario.devices()[0].mig_uuids
        await asyncio.to_thread(node.start, pool.address)
        until(lambda: profiles(node) == ["2g.10gb"], "the card is cut again")
        await eventually(lambda: _ready(pool), "the node is ready again")
        found = await pool.get(lease.lease_id)
        assert found.slices[0].device_uuid == node.status().devices[0].uuid
