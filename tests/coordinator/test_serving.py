"""Leases that want to be served: granted where an agent can, refused with the reason elsewhere, told with endpoints."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import grpc
import pytest

from aliquot.common.ids import serving_credential
from aliquot.v1 import agent_pb2, pool_pb2, types_pb2
from tests.coordinator.pool import Agent, agents, eventually, fields_of, reason_of, running, settings_for, sqlite
from tests.coordinator.test_sessions import ACTIVE, ready

REMOTE, LOCAL = types_pb2.SERVE_REMOTE, types_pb2.SERVE_LOCAL


class Serving(Agent):
    """An agent with a host, which confirms with an endpoint what is to be served."""

    endpoint = "10.0.0.7:7099"

    def snapshot(self, seq: int) -> agent_pb2.AgentMessage:
        message = super().snapshot(seq)
        message.snapshot.node.serves.append(REMOTE)
        return message

    def obey(self, desired: agent_pb2.Desired) -> list[agent_pb2.SliceReport]:
        wanted = {piece.slice_id for piece in desired.slices if piece.serve == REMOTE}
        reports = super().obey(desired)
        for report in reports:
            if report.slice_id in wanted and report.status == agent_pb2.SLICE_STATUS_ACTIVE:
                report.endpoint = self.endpoint
        return reports


async def test_a_remote_lease_goes_where_it_can_be_served_and_names_its_endpoint() -> None:
    async with running() as pool, agents(Agent(pool.address, "n1"), Serving(pool.address, "n2")):
        await ready(pool, "n1")
        await ready(pool, "n2")
        for _ in range(4):
            lease = await pool.allocate("0.25", serve=REMOTE, wait_until=ACTIVE)
            (piece,) = lease.slices
            assert (piece.node_id, piece.endpoint) == ("n2", Serving.endpoint)
            assert lease.request.serve == REMOTE
            assert not lease.request.node_selector, "how it is selected by is not what was asked for"
        local = await pool.allocate("1", serve=LOCAL, wait_until=ACTIVE)
        assert (local.slices[0].node_id, local.slices[0].endpoint) == ("n1", "")
        node = await pool.node("n2")
        assert list(node.serves) == [REMOTE]
        assert not node.labels


async def test_agents_are_told_how_clients_prove_themselves_for_what_is_served_alone() -> None:
    async with running() as pool, agents(agent := Serving(pool.address, "n1")):
        await ready(pool)
        served = await pool.allocate("0.25", serve=REMOTE, wait_until=ACTIVE)
        local = await pool.allocate("0.25", wait_until=ACTIVE)
        told = {piece.lease_id: piece for desired in agent.desired for piece in desired.slices}
        credential = serving_credential(served.secret, served.lease_id, served.lease_epoch, served.request.tenant)
        assert told[served.lease_id].serving_credential_sha256 == sha256(credential.encode()).digest()
        assert told[local.lease_id].serving_credential_sha256 == b""


async def test_where_nobody_can_serve_it_it_is_refused_with_the_reason() -> None:
    async with running() as pool, agents(Agent(pool.address, "n1")):
        await ready(pool)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await pool.allocate("0.25", serve=REMOTE)
        assert reason_of(caught.value) == "NEVER_FITS"
        assert "no agent of these devices can serve remote leases" in str(caught.value.details())


async def test_a_new_endpoint_replaces_the_old_one() -> None:
    async with running() as pool:
        agent = Serving(pool.address, "n1")
        async with agents(agent):
            await ready(pool)
            lease = await pool.allocate("0.25", serve=REMOTE, wait_until=ACTIVE)
            (report,) = agent.reservations.values()
            for endpoint in ("10.0.0.7:8000", ""):
                again = agent_pb2.SliceReport()
                again.CopyFrom(report)
                again.endpoint = endpoint
                await agent.report(again)

            async def told() -> bool:
                found = await pool.get(lease.lease_id)
                return found.slices[0].endpoint == "10.0.0.7:8000"

            await eventually(told, "the new endpoint, which one that is silent about it does not take away")


async def test_an_endpoint_survives_the_coordinator(tmp_path: Path) -> None:
    settings = settings_for(sqlite(tmp_path / "journal"))
    async with running(settings) as pool, agents(Serving(pool.address, "n1")):
        await ready(pool)
        lease = await pool.allocate("0.25", serve=REMOTE, wait_until=ACTIVE, detached=True)
    async with running(settings) as pool:
        found = await pool.get(lease.lease_id)
        assert found.slices[0].endpoint == Serving.endpoint
        assert found.request.serve == REMOTE


async def test_nobody_claims_by_label_what_agents_say() -> None:
    forged = {"serve.aliquot.dev/remote": "true"}
    async with running() as pool:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await pool.allocate("0.25", node_selector=forged)
        assert fields_of(caught.value) == ["request.node_selector"]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await pool.allocate("0.25", serve=77)
        assert fields_of(caught.value) == ["request.serve"]
        node = types_pb2.Node(node_id="n9", agentless=True, labels=forged, devices=[types_pb2.Device(model="A100-80")])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await pool.nodes.DeclareNodes(pool_pb2.DeclareNodesRequest(nodes=[node]))
        assert fields_of(caught.value) == ["nodes[0].labels"]
