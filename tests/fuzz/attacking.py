"""Attack a coordinator in a process of its own, over the loopback: every call of the contract, and agents' sessions.

What must hold: every answer is one of ours, no traceback is logged, deciding goes on, memory stays bounded, and a
client that behaves goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import grpc
import grpc.aio

from aliquot.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    agent_pb2,
    leases_pb2,
    leases_pb2_grpc,
    pool_pb2,
    pool_pb2_grpc,
    relay_pb2,
    types_pb2,
)
from tests.coordinator.pool import declared
from tests.coordinator.process import Running, start
from tests.fuzz import bystander
from tests.fuzz.mutating import Vocabulary, changed, meant, spoilt
from tests.pretended_node import PretendedNode

METHODS = [
    method
    for module in (admin_pb2, leases_pb2, pool_pb2, relay_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
SESSION = agent_pb2.DESCRIPTOR.services_by_name["AgentService"].methods_by_name["Session"]
WORKERS = 4
CALL_S = 0.3
"""What a call that may wait is given."""
TIDY_EVERY = 400
"""Calls, after which what came to be is ended: a pool that is full of rubbish would only say so."""
RSS_MAX_BYTES = 1 << 30
_OURS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
}
_LIBRARYS = {"Internal error from Core", "Received RST_STREAM with error code 0"}
"""What the library on this side says by itself, where it wrote on to a stream that had ended."""
_SIGNS = ("Traceback", " ERROR ", "SET ASIDE", '"level":"error"', '"level": "error"', "CRITICAL")


@dataclass
class Result:
    """What an attack came to."""

    calls: int = 0
    rpcs: set[str] = field(default_factory=set)
    seconds: float = 0.0
    codes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    bystander_p99_ratio: float = 0.0
    rss_bytes: int = 0

    def document(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "calls": self.calls,
            "rpcs": len(self.rpcs),
            "minutes": round(self.seconds / 60, 2),
            "findings": len(self.findings),
            "bystander_p99_ratio": round(self.bystander_p99_ratio, 2),
            "rss_bytes": self.rss_bytes,
            "codes": dict(self.codes.most_common()),
        }


def vocabulary() -> Vocabulary:
    """Nothing in it is the bystander's."""
    nodes, uuids = [f"node-{number}" for number in range(4)] + ["f1", "f2"], ["GPU-f1-0", "GPU-f2-0"]
    keys = {
        "gpu": ["1", "0.5", "0.25,1Gi", "2x0.5", "1(A100-80)"],
        "tenant": ["team", "other"],
        "queue": ["team", "main"],
        "pool": ["default", "fuzz"],
        "name": ["team", "main", "fuzz", "w1"],
        "node_id": nodes,
        "node_ids": nodes,
        "uuid": uuids,
        "device_uuid": uuids,
        "model": ["A100-80", "L4", "*"],
        "vendor": ["nvidia"],
        "kind": ["pool", "tenant", "queue"],
        "policy": ["fifo", "priority", "fair_share", "capacity"],
        "period": ["hour", "day", "week", "month"],
        "start": ["2026-12-01T00:00"],
        "end": ["2026-12-01T01:00"],
        "zone": ["UTC", "Europe/Berlin"],
        "cron": ["0 8 * * 1"],
        "keep": ["start", "least"],
        "lease_id": ["l-0000000000000"],
        "boot_id": ["boot-1", "boot-2"],
        "share_milli_ms": ["1", "-1"],
        "memory_byte_ms": ["1", "-1"],
    }
    keys["lease_ids"] = keys["lease_id"]
    keys["parent"], keys["default_queue"] = keys["queue"], keys["queue"]
    return Vocabulary(keys)


class Attack:
    """See the module's docstring."""

    def __init__(self, address: str, seed: int, until: float, result: Result) -> None:
        self._address = address
        self._rng = Random(seed)
        self._until = until
        self._words = vocabulary()
        self._turn = 0
        self.result = result

    async def run(self, worker: int) -> None:
        """Until the time is over."""
        options = [("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(self._address, options) as channel:
            while time.monotonic() < self._until:
                self._turn += 1
                if worker == 0 and self._turn % TIDY_EVERY < WORKERS:
                    await self._tidy(channel)
                if self._rng.random() < 0.25:
                    await self._session(channel)
                else:
                    await self._call(channel, METHODS[self._turn % len(METHODS)])

    # -- one of each

    def _message(self, descriptor: Any) -> bytes:
        message = meant(descriptor, self._rng, self._words)
        for _ in range(self._rng.choice((0, 1, 1, 1, 2, 3))):
            message = changed(message, self._rng)
        raw = message.SerializeToString()
        return spoilt(raw, self._rng) if self._rng.random() < 0.15 else raw

    async def _call(self, channel: Any, method: Any) -> None:
        path = f"/{method.containing_service.full_name}/{method.name}"
        raw = self._message(method.input_type)
        with self._judged(path, raw):
            async with asyncio.timeout(60):
                if method.client_streaming:
                    call = channel.stream_stream(path)(timeout=CALL_S)
                    await call.write(raw)
                    await call.read()
                    call.cancel()
                elif method.server_streaming:
                    call = channel.unary_stream(path)(raw, timeout=CALL_S)
                    await call.read()
                    call.cancel()
                else:
                    answer = method.output_type._concrete_class.FromString(
                        await channel.unary_unary(path)(raw, timeout=CALL_S)
                    )
                    self._learn(answer)

    async def _session(self, channel: Any) -> None:
        path = f"/{SESSION.containing_service.full_name}/{SESSION.name}"
        node = PretendedNode(self._rng.choice(("f1", "f2")), ())
        node.uuids = (f"GPU-{node.node_id}-0", f"GPU-{node.node_id}-1")
        hello = node.hello()
        if self._rng.random() < 0.3:
            hello.hello.CopyFrom(meant(agent_pb2.Hello.DESCRIPTOR, self._rng, self._words))
            changed(hello, self._rng)
        sent = [hello.SerializeToString()]
        first = node.snapshot(1)
        sent.append((changed(first, self._rng) if self._rng.random() < 0.5 else first).SerializeToString())
        sent += [self._agents_message(seq) for seq in range(2, self._rng.randrange(3, 8))]
        with self._judged(path, b"\n".join(sent)):
            async with asyncio.timeout(60):
                call = channel.stream_stream(path)(timeout=1.0)
                for raw in sent:
                    await call.write(raw)
                    if raw is sent[0]:
                        await call.read()
                await call.done_writing()
                while await call.read() is not grpc.aio.EOF:
                    pass

    def _agents_message(self, seq: int) -> bytes:
        message: Any = agent_pb2.AgentMessage()
        kind = self._rng.choice(("delta", "delta", "reports", "heartbeat", "snapshot"))
        target = getattr(message, kind)
        target.CopyFrom(meant(target.DESCRIPTOR, self._rng, self._words))
        if kind == "delta":
            target.seq = seq
        for _ in range(self._rng.choice((0, 1, 2, 8))):
            message = changed(message, self._rng)
        raw: bytes = message.SerializeToString()
        return spoilt(raw, self._rng) if self._rng.random() < 0.2 else raw

    # -- what came of it

    @contextlib.contextmanager
    def _judged(self, path: str, raw: bytes) -> Any:
        self.result.calls += 1
        self.result.rpcs.add(path)
        code = "OK"
        try:
            yield
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            if error.details() in _LIBRARYS:
                code = "ENDED"
            elif error.code() not in _OURS:
                self._found(f"{path} answered {code}: {error.details()}", raw)
        except asyncio.InvalidStateError:
            code = "ENDED"  # it was told before it had said everything
        except TimeoutError:
            self._found(f"{path} did not answer", raw)
        self.result.codes[code] += 1

    def _found(self, what: str, raw: bytes) -> None:
        self.result.findings.append(f"{what}; sent {raw[:500].hex()}")

    def _learn(self, answer: Any) -> None:
        lease = getattr(answer, "lease", answer)
        if isinstance(lease, types_pb2.Lease):
            self._words.learn("lease_id", lease.lease_id)
            for piece in lease.slices:
                self._words.learn("slice_id", piece.slice_id)

    async def _tidy(self, channel: Any) -> None:
        """End what has come to be, but for what is the bystander's."""
        leases, admin = leases_pb2_grpc.LeaseServiceStub(channel), admin_pb2_grpc.AdminServiceStub(channel)
        nodes: Any = pool_pb2_grpc.PoolServiceStub(channel)
        with contextlib.suppress(grpc.aio.AioRpcError):
            for window in (await admin.ListMaintenance(admin_pb2.ListMaintenanceRequest())).windows:
                await admin.EndMaintenance(admin_pb2.EndMaintenanceRequest(name=window.window.name))
            page = await leases.List(leases_pb2.ListRequest(page_size=1000))
            ids = [lease.lease_id for lease in page.leases if lease.request.tenant != bystander.NAME]
            for at in range(0, len(ids), 256):
                await leases.ReleaseBatch(leases_pb2.ReleaseBatchRequest(lease_ids=ids[at : at + 256]))
            for node in (await nodes.ListNodes(pool_pb2.ListNodesRequest(page_size=1000))).nodes:
                if node.pool != bystander.NAME:
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        await nodes.RemoveNode(pool_pb2.RemoveNodeRequest(node_id=node.node_id, force=True))
            await nodes.DeclareNodes(pool_pb2.DeclareNodesRequest(nodes=[declared("node-0", 2)]))


async def attack(seconds: float, seed: int, *, quiet_s: float) -> Result:
    """A coordinator, a client that behaves, and those who don't."""
    running = await start("--listen", "127.0.0.1:0", "--metrics-port", "0", "--journal", "memory:", "--relays")
    assert isinstance(running, Running), running
    said: list[str] = []
    listening = asyncio.create_task(_listen(running, said))
    result = Result()
    try:
        await _prepare(running.address)
        quiet = await _behave(running.address, quiet_s)
        began = time.monotonic()
        attacker = Attack(running.address, seed, began + seconds, result)
        behaving = asyncio.create_task(_behave(running.address, seconds))
        await asyncio.gather(*(attacker.run(worker) for worker in range(WORKERS)))
        busy = await behaving
        result.seconds = time.monotonic() - began
        result.bystander_p99_ratio = busy["p99_ms"] / quiet["p99_ms"]
        result.findings += [f"the bystander was told {problem}" for problem in busy["problems"]]
        result.rss_bytes = _rss_bytes(running.process.pid)
        if result.rss_bytes > RSS_MAX_BYTES:
            result.findings.append(f"{result.rss_bytes} bytes are held")
        if running.process.returncode is not None:
            result.findings.append(f"the coordinator ended with {running.process.returncode}")
    finally:
        if running.process.returncode is None:
            running.process.terminate()
        await listening
        await running.process.wait()
    text = "".join(said)
    signs = [line for line in text.splitlines() if any(sign in line for sign in _SIGNS)]
    if signs:
        result.findings += [f"logged: {line[:1000]}" for line in signs[:20]]
        sys.stderr.write(text[-20_000:])
    return result


async def _listen(running: Running, said: list[str]) -> None:
    assert running.process.stderr is not None
    while line := await running.process.stderr.readline():
        said.append(line.decode(errors="replace"))
        del said[:-20_000]


async def _prepare(address: str) -> None:
    """What the bystander needs, and something to attack."""
    name = bystander.NAME
    node = declared(name, 4)
    node.pool = name
    spec = admin_pb2.QueueSpec(name=name, tenants=[name])
    async with grpc.aio.insecure_channel(address) as channel:
        nodes = pool_pb2_grpc.PoolServiceStub(channel)
        await nodes.DeclareNodes(pool_pb2.DeclareNodesRequest(nodes=[node, declared("node-0", 2)]))
        apply = admin_pb2.ApplyRequest(queues=[admin_pb2.QueueItem(spec=spec)])
        await admin_pb2_grpc.AdminServiceStub(channel).Apply(apply)


async def _behave(address: str, seconds: float) -> Any:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.fuzz.bystander", address, str(seconds), stdout=asyncio.subprocess.PIPE
    )
    told, _ = await process.communicate()
    return json.loads(told.splitlines()[-1])


def _rss_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096
