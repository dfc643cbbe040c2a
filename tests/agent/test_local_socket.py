"""The node-local socket: who may attach what, and what a peer that misbehaves gets."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.agent.local.server import MAX_CONNECTIONS_PER_UID, MAX_WITH_KEPT, has_room
from aliquot.v1 import agent_pb2, local_pb2
from tests.agent.coordinator import Coordinator
from tests.agent.harness import GIB, ROOT, SECRET, Node, auntil, desired
from tests.agent.localclient import ask_on
from tests.agent.test_enforcement_on_processes import grant

STRANGER_UID = 54_321
OTHER_UID = 54_322


SLICES_SEEN = """
import os, sys
from aliquot.v1 import local_pb2
from tests.agent.localclient import ask, become
become(sys.argv[2])
status = ask(sys.argv[1], local_pb2.LocalRequest(status=local_pb2.LocalStatusRequest())).status
print(*[piece.slice_id for piece in status.slices])
"""


def slices_seen_by(node: Node, uid: int) -> list[str]:
    command = [sys.executable, "-c", SLICES_SEEN, str(node.socket), str(uid or "")]
    done = subprocess.run(command, cwd=ROOT, env=node.base_environment(), capture_output=True, text=True, check=True)
    return done.stdout.split()


def attach(
    node: Node, secret: str = SECRET, *, lease_id: str = "l-1", member: int = 0, pid: int = 0
) -> local_pb2.LocalResponse:
    request = local_pb2.AttachRequest(lease_id=lease_id, secret=secret, member=member, pid=pid)
    return node.ask(local_pb2.LocalRequest(attach=request))


async def refused(
    node: Node, reason: str, secret: str = SECRET, *, lease_id: str = "l-1", member: int = 0, pid: int = 0
) -> None:
    response = await asyncio.to_thread(attach, node, secret, lease_id=lease_id, member=member, pid=pid)
    assert response.error.reason == reason, response
    assert response.error.message
    assert not node.status().slices[0].pids


@pytest.mark.root("to act as several users")
async def test_only_the_leases_user_may_attach(open_node: Node, coordinator: Coordinator) -> None:
    node = open_node
    await grant(node, coordinator, desired(node.uuids[0]))

    def as_user(uid: int, command: str) -> tuple[int, str]:
        job = node.job(command, TEST_UID=str(uid))
        output, _ = job.communicate(timeout=30)
        return job.returncode, output.decode()

    code, output = await asyncio.to_thread(as_user, STRANGER_UID, "env")
    assert code == 0, output
    assert f"CUDA_VISIBLE_DEVICES={node.uuids[0]}" in output
    assert (await asyncio.to_thread(as_user, STRANGER_UID, "true"))[0] == 0
    code, output = await asyncio.to_thread(as_user, OTHER_UID, "true")
    assert (code, output.split(":")[0]) == (9, "UID_MISMATCH")
    sleeper = node.sleeper()
    response = await asyncio.to_thread(attach, node, pid=sleeper.pid)
    assert response.HasField("attach"), "root may, also others' processes"
    node.kill9()
    await asyncio.to_thread(node.start, coordinator.address)
    code, output = await asyncio.to_thread(as_user, OTHER_UID, "true")
    assert output.startswith("UID_MISMATCH"), "who was first is remembered over a restart"


def test_few_users_keep_nobody_out_of_the_socket_and_no_number_of_them_root() -> None:
    connections: dict[int, int] = {}

    def connect(uid: int) -> bool:
        mine = connections.get(uid, 0)
        if not has_room(uid, mine, sum(connections.values())):
            return False
        connections[uid] = mine + 1
        return True

    taken = [sum(connect(uid) for _ in range(100)) for uid in range(1_000, 1_004)]
    assert taken == [MAX_CONNECTIONS_PER_UID] * 4
    assert [connect(2_000) for _ in range(5)] == [True, True, True, True, False], "a fifth user has what is kept for it"
    for uid in range(3_000, 4_000):
        connect(uid)
    assert sum(connections.values()) == MAX_WITH_KEPT, "and all that is bounded"
    assert connect(0)


@pytest.mark.root("to act as several users")
async def test_users_see_only_the_slices_of_their_own_leases(open_node: Node, coordinator: Coordinator) -> None:
    node = open_node
    await grant(node, coordinator, desired(node.uuids[0]))
    job = node.job("true", TEST_UID=str(STRANGER_UID))
    await asyncio.to_thread(job.communicate, timeout=30)
    assert await asyncio.to_thread(slices_seen_by, node, STRANGER_UID) == ["l-1.1.0"]
    assert await asyncio.to_thread(slices_seen_by, node, OTHER_UID) == []
    assert await asyncio.to_thread(slices_seen_by, node, 0) == ["l-1.1.0"]


@pytest.mark.root("to act as several users")
async def test_nobody_attaches_another_users_process(open_node: Node, coordinator: Coordinator) -> None:
    node = open_node
    await grant(node, coordinator, desired(node.uuids[0]))
    script = (
        "import sys\n"
        "from aliquot.v1 import local_pb2\n"
        "from tests.agent.localclient import ask, become\n"
        "become(sys.argv[4])\n"
        "r = local_pb2.AttachRequest(lease_id='l-1', secret=sys.argv[2], pid=int(sys.argv[3]))\n"
        "print(ask(sys.argv[1], local_pb2.LocalRequest(attach=r)).error.reason)"
    )
    result = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", script, str(node.socket), SECRET, str(os.getpid()), str(STRANGER_UID)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout.strip() == "PID_NOT_YOURS", result.stderr


async def test_the_secret_and_the_lease_must_be_right(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator, desired(node.uuids[0]))
    await refused(node, "WRONG_SECRET", secret="guessed")
    await refused(node, "WRONG_SECRET", secret="")
    await refused(node, "LEASE_NOT_HERE", lease_id="l-7")
    await refused(node, "LEASE_NOT_HERE", member=3)
    await refused(node, "PROCESS_GONE", pid=2**22 + 1)
    await refused(node, "PROCESS_GONE", pid=-5)
    assert SECRET not in node.log


@pytest.mark.root("to attach processes of others")
async def test_the_agent_and_init_are_never_attached(node: Node, coordinator: Coordinator) -> None:
    """Ending the lease would freeze them."""
    await grant(node, coordinator, desired(node.uuids[0]))
    assert node.agent is not None
    for pid in (node.agent.pid, 1):
        await refused(node, "PID_PROTECTED", pid=pid)
    threads = {int(name) for name in await asyncio.to_thread(os.listdir, f"/proc/{node.agent.pid}/task")}
    await refused(node, "PROCESS_GONE", pid=min(threads - {node.agent.pid}))


async def test_a_lease_without_a_known_secret_takes_nobody(node: Node, coordinator: Coordinator) -> None:
    piece = desired(node.uuids[0])
    piece.secret_sha256 = b""
    await grant(node, coordinator, piece)
    await refused(node, "WRONG_SECRET", secret="")


async def test_a_stopping_lease_takes_no_processes(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator, desired(node.uuids[0]))
    job = node.job("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
    assert job.stdout is not None
    await asyncio.to_thread(job.stdout.readline)
    coordinator.desire(desired(node.uuids[0], stop=True, grace_ms=60_000))
    await coordinator.until_status("l-1.1.0", agent_pb2.SLICE_STATUS_STOPPING)
    response = await asyncio.to_thread(attach, node)
    assert response.error.reason == "LEASE_NOT_HERE"
    assert "being ended" in response.error.message


async def test_a_lease_may_have_its_devices_named_by_number(node: Node, coordinator: Coordinator) -> None:
    second = node.uuids[1]
    await grant(node, coordinator, desired(second, cuda_ordinals=True))
    job = await asyncio.to_thread(node.burn, "1Gi")  # it would be held on the first device, were the number wrong
    await auntil(
        lambda: (piece := node.slice_of("l-1.1.0")) is not None and piece.observed_bytes >= GIB, "it holds that there"
    )
    environ = await asyncio.to_thread(Path(f"/proc/{job.pid}/environ").read_text)
    variables = dict(entry.split("=", 1) for entry in environ.split("\0") if entry)
    assert variables["CUDA_VISIBLE_DEVICES"] == "1"
    assert variables["NVIDIA_VISIBLE_DEVICES"] == second
    assert variables["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


async def test_the_environment_names_the_devices_and_what_is_held(node: Node, coordinator: Coordinator) -> None:
    first, second = node.uuids
    await grant(
        node,
        coordinator,
        desired(second, slice_id="l-1.1.0", memory_bytes=8 * GIB, share_milli=500),
        desired(first, slice_id="l-1.1.1", memory_bytes=4 * GIB),
    )
    sleeper = node.sleeper()
    request = local_pb2.AttachRequest(
        lease_id="l-1",
        secret=SECRET,
        pid=sleeper.pid,
        environment={"CUDA_VISIBLE_DEVICES": "0,1,2", "ALIQUOT_TORCH_VERSION": "2.9.1", "PYTORCH_ALLOC_CONF": "a:b"},
    )
    response = (await asyncio.to_thread(node.ask, local_pb2.LocalRequest(attach=request))).attach
    got = dict(response.environment)
    assert got["CUDA_VISIBLE_DEVICES"] == f"{first},{second}"
    assert got["NVIDIA_VISIBLE_DEVICES"] == got["CUDA_VISIBLE_DEVICES"]
    assert got["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert got["ALIQUOT_LEASE_ID"] == "l-1"
    assert got["ALIQUOT_MEMORY_BYTES"] == f"{4 * GIB},{8 * GIB}"
    assert got["ALIQUOT_SLICE_IDS"] == "l-1.1.1,l-1.1.0"
    assert got["PYTORCH_ALLOC_CONF"].startswith("a:b,per_process_memory_fraction:0.0")
    assert int(got["CUPY_GPU_MEMORY_LIMIT"]) < 4 * GIB
    assert list(response.slice_ids)


async def test_a_peer_that_misbehaves_is_answered_or_dropped_and_others_are_served(
    node: Node, coordinator: Coordinator
) -> None:
    await grant(node, coordinator, desired(node.uuids[0]))
    silent = socket.socket(socket.AF_UNIX)
    silent.connect(str(node.socket))
    half = socket.socket(socket.AF_UNIX)
    half.connect(str(node.socket))
    half.sendall(struct.pack(">I", 100) + b"only this much")
    cases = [struct.pack(">I", 2 << 20), struct.pack(">I", 5) + b"\xff\xff\xff\xff\xff", struct.pack(">I", 0)]
    for case in cases:
        with socket.socket(socket.AF_UNIX) as bad:
            bad.settimeout(10)
            bad.connect(str(node.socket))
            bad.sendall(case)
            (length,) = struct.unpack(">I", bad.recv(4))
            answer = local_pb2.LocalResponse.FromString(bad.recv(length))
            assert answer.error.reason == "MALFORMED"
    assert (await asyncio.to_thread(node.status)).slices
    half.settimeout(30)
    assert await asyncio.to_thread(half.recv, 4) is not None, "it is not waited for any longer than a few seconds"
    silent.close()
    half.close()


async def test_too_many_connections_of_one_user_are_refused(node: Node, coordinator: Coordinator) -> None:
    await asyncio.to_thread(node.start, coordinator.address)
    held: list[socket.socket] = []
    refusals = 0
    info = local_pb2.LocalRequest(info=local_pb2.LocalInfoRequest())

    def connect() -> str:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(10)
        connection.connect(str(node.socket))
        held.append(connection)
        try:
            return ask_on(connection, info).error.reason
        except ConnectionError:
            return "BUSY"

    for _ in range(70):
        refusals += await asyncio.to_thread(connect) == "BUSY"
    assert 70 - MAX_CONNECTIONS_PER_UID <= refusals < 70, "a refused connection gives nobody's room away"
    for connection in held:
        connection.close()
    await auntil(lambda: node.ask(info).HasField("info"), "served again")


async def test_a_process_leaves_its_lease_only_without_device_memory(node: Node, coordinator: Coordinator) -> None:
    await grant(node, coordinator, desired(node.uuids[0]))
    script = (
        "import sys; from aliquot.simgpu.cuda import Cuda\n"
        "from aliquot.v1 import local_pb2\n"
        "from tests.agent.localclient import ask\n"
        "def detach():\n"
        "    r = local_pb2.DetachRequest(lease_id='l-1', secret=sys.argv[2])\n"
        "    return ask(sys.argv[1], local_pb2.LocalRequest(detach=r)).error.reason or 'left'\n"
        "if sys.argv[3] == 'use': Cuda(0).allocate(1 << 30)\n"
        "print(detach(), open('/proc/self/cgroup').read().split('0::')[1].split()[0], flush=True)"
    )
    results = {}
    for mode in ("use", "idle"):
        job = node.job(sys.executable, "-c", script, str(node.socket), SECRET, mode, PYTHONPATH=str(ROOT))
        output, _ = await asyncio.to_thread(job.communicate, timeout=30)
        results[mode] = output.decode().split()
    assert results["use"][0] == "STILL_USING"
    assert results["idle"][0] == "left"
    assert "l-1" not in results["idle"][1]


async def test_a_stale_socket_is_replaced_and_a_live_one_is_not(node: Node, coordinator: Coordinator) -> None:
    await asyncio.to_thread(node.start, coordinator.address)
    node.kill9()
    assert node.socket.exists()
    await asyncio.to_thread(node.start, coordinator.address)
    node.kill9()
    node.socket.unlink()
    node.socket.write_text("somebody's file")
    node.spawn(coordinator.address)
    assert node.agent is not None
    assert await asyncio.to_thread(node.agent.wait, 30) == 1
    assert "is not a socket" in node.log
    assert node.socket.read_text() == "somebody's file"
    node.spawn(coordinator.address, "--socket", f"{node.directory}/{'x' * 120}")
    assert await asyncio.to_thread(node.agent.wait, 30) == 1
    assert "with --socket" in node.log
