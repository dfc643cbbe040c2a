"""The connection to the coordinator: handshake, order, gaps, referrals, refusals."""

from __future__ import annotations

import asyncio

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from aliquot.v1 import agent_pb2
from tests.agent.coordinator import Coordinator
from tests.agent.harness import GIB, Node, auntil, desired
from tests.agent.test_enforcement_on_processes import grant
from tests.certificates import Authority


async def test_the_snapshot_describes_the_node(node: Node, coordinator: Coordinator) -> None:
    flags = ("--pool", "training", "--label", "zone=a", "--label", "team=x", "--failure-domain", "rack-7")
    await asyncio.to_thread(node.start, coordinator.address, *flags)
    await coordinator.until(lambda: bool(coordinator.snapshots), "a snapshot")
    told = coordinator.snapshots[0].node
    assert (told.name, told.pool, dict(told.labels), told.failure_domain) == (
        "test-node",
        "training",
        {"zone": "a", "team": "x"},
        "rack-7",
    )
    assert [device.model for device in told.devices] == ["A100-40", "A100-40"]
    assert [device.uuid for device in told.devices] == node.uuids
    first = told.devices[0]
    assert first.memory_total_bytes == 40 * GIB
    assert 0 < first.memory_reserved_bytes < GIB
    assert first.fabric_island == told.devices[1].fabric_island
    assert first.healthy
    assert told.driver_version
    assert told.host_memory_bytes > 0
    assert told.cpu_milli >= 1000
    hello = coordinator.hellos[0]
    assert hello.node_id == told.node_id
    assert hello.boot_id


async def test_sequence_numbers_have_no_gaps_and_heartbeats_name_the_last(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator)
    for percent in (20, 60, 90):
        node.scenario.set(0, gpu_percent=percent)
        await coordinator.until(
            lambda wanted=percent: any(  # type: ignore[misc]
                entry.telemetry.gpu_utilisation_percent == wanted
                for delta in coordinator.deltas
                for entry in delta.devices
            ),
            f"a delta with {percent}",
        )
    assert [delta.seq for delta in coordinator.deltas] == list(range(2, 2 + len(coordinator.deltas)))
    await coordinator.until(
        lambda: bool(coordinator.heartbeats) and coordinator.heartbeats[-1].seq == coordinator.deltas[-1].seq,
        "a heartbeat with the last number",
    )
    coordinator.send(agent_pb2.CoordinatorMessage(snapshot_request=agent_pb2.SnapshotRequest(reason="gap")))
    await coordinator.until(lambda: len(coordinator.snapshots) == 2, "a snapshot")
    assert coordinator.snapshots[-1].seq == 1


async def test_the_coordinator_sets_how_often_it_hears(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator)
    slower = agent_pb2.Intervals(heartbeat_ms=60_000, delta_min_ms=60_000)
    coordinator.send(agent_pb2.CoordinatorMessage(intervals=slower))
    await asyncio.sleep(0.5)
    before = len(coordinator.heartbeats) + len(coordinator.deltas)
    node.scenario.set(0, gpu_percent=77)
    sampled = node.status().devices[0].telemetry.sampled_ms
    await auntil(lambda: node.status().devices[0].telemetry.sampled_ms > sampled + 1000, "it goes on looking")
    assert len(coordinator.heartbeats) + len(coordinator.deltas) - before <= 1
    # Confirmations are not telemetry: they never wait.
    coordinator.desire(desired(node.uuids[0]))
    await coordinator.until_status("l-1.1.0", agent_pb2.SLICE_STATUS_ACTIVE)


async def test_a_follower_names_the_leader(node: Node, coordinator: Coordinator) -> None:
    follower = await Coordinator().start()
    follower.refuse = (grpc.StatusCode.UNAVAILABLE, "this one does not lead", (("leader", coordinator.address),))
    await asyncio.to_thread(node.start, follower.address)
    await coordinator.until(lambda: bool(coordinator.snapshots), "the leader is found")
    assert follower.hellos
    await follower.stop()


async def test_of_several_coordinators_the_one_that_answers_is_used(node: Node, coordinator: Coordinator) -> None:
    await asyncio.to_thread(node.start, f"127.0.0.1:1,{coordinator.address}")
    await coordinator.until(lambda: bool(coordinator.snapshots), "it is found")


async def test_a_refusal_that_trying_again_does_not_change_is_explained(node: Node, coordinator: Coordinator) -> None:
    packed = any_pb2.Any()
    packed.Pack(error_details_pb2.ErrorInfo(reason="NODE_NAME_TAKEN", domain="aliquot.dev"))
    status = status_pb2.Status(code=9, message="taken", details=[packed])
    coordinator.refuse = (
        grpc.StatusCode.FAILED_PRECONDITION,
        "taken",
        (("grpc-status-details-bin", status.SerializeToString()),),
    )
    await asyncio.to_thread(node.start, coordinator.address)
    await auntil(lambda: "give this one another with --node-name" in node.log, "it says what to do")
    assert len(coordinator.hellos) == 1, "and does not hammer"
    assert not node.ask_info().connected


async def test_a_goodbye_is_heeded(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator, desired(node.uuids[0]))
    goodbye = agent_pb2.Goodbye(reason="SHUTTING_DOWN", reconnect_after_ms=10)
    coordinator.send(agent_pb2.CoordinatorMessage(goodbye=goodbye))
    await coordinator.until(lambda: len(coordinator.snapshots) == 2, "it came back")
    assert coordinator.snapshots[-1].slices[0].status == agent_pb2.SLICE_STATUS_ACTIVE
    assert "SHUTTING_DOWN" in node.log


async def test_another_machine_is_not_obeyed_in_the_clear(node: Node) -> None:
    await asyncio.to_thread(node.start, "192.0.2.1:7878")
    await auntil(lambda: "without TLS" in node.log, "it refuses")


async def test_over_tls_both_sides_show_who_they_are(node: Node, authority: Authority) -> None:
    server_pem, server_key = authority.certify("server")
    agent_pem, agent_key = authority.certify("agent")
    tls = grpc.ssl_server_credentials(
        [(server_key.read_bytes(), server_pem.read_bytes())], authority.ca.read_bytes(), require_client_auth=True
    )
    coordinator = await Coordinator().start(tls=tls)
    trusted = ("--tls-ca", str(authority.ca), "--tls-cert", str(agent_pem), "--tls-key", str(agent_key))
    await asyncio.to_thread(node.start, coordinator.address, *trusted)
    await coordinator.until(lambda: bool(coordinator.snapshots), "a snapshot")
    node.kill9()
    await asyncio.to_thread(node.start, coordinator.address, "--tls-ca", str(authority.ca))
    await auntil(lambda: node.log.count("no session with") >= 1, "without its certificate it is not let in")
    assert len(coordinator.snapshots) == 1
    await coordinator.stop()


async def test_entries_that_cannot_be_read_are_left_out_and_the_others_obeyed(
    node: Node, coordinator: Coordinator
) -> None:
    await grant(node, coordinator)
    nameless = desired(node.uuids[0], slice_id="")
    stateless = desired(node.uuids[0], slice_id="l-2.1.0", lease_id="l-2")
    stateless.state = agent_pb2.DESIRED_STATE_UNSPECIFIED
    coordinator.desire(nameless, stateless, desired(node.uuids[0]))
    await coordinator.until_status("l-1.1.0", agent_pb2.SLICE_STATUS_ACTIVE)
    assert [piece.slice_id for piece in node.status().slices] == ["l-1.1.0"]
    assert "can't be read" in node.log


async def test_strange_names_are_safe_on_disk_or_refused(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator)
    fine = ("a/b/../../c", "l-1.1.0", "x" * 128, "y" + "/" * 126 + "y")
    bad = ("..", "x\0y", "ü", "x" * 129, "with blanks", "../up")

    def piece(name: str, lease_id: str = "l-1") -> agent_pb2.DesiredSlice:
        return desired(node.uuids[0], slice_id=name, lease_id=lease_id, share_milli=10, memory_bytes=GIB)

    coordinator.desire(*(piece(name) for name in (*bad, *fine)), piece("s", "../../etc"), piece("t", "l" * 65))
    for name in fine:
        await coordinator.until_status(name, agent_pb2.SLICE_STATUS_ACTIVE)
    assert node.log.count("an order can't be read") == len(bad) + 2
    assert len(list((node.state_dir / "slices").iterdir())) == len(fine)
    node.kill9()
    await asyncio.to_thread(node.start, coordinator.address)
    await coordinator.until(lambda: len(coordinator.snapshots) == 2, "a snapshot after the restart")
    assert {piece.slice_id for piece in coordinator.snapshots[-1].slices} == set(fine)
