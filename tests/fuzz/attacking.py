"""Attack a coordinator over the loopback: every call of the contract, and agents' sessions.

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
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import grpc
import grpc.aio

from aliquot.v1 import (
    access_pb2,
    admin_pb2,
    admin_pb2_grpc,
    agent_pb2,
    enrolment_pb2,
    leases_pb2,
    leases_pb2_grpc,
    pool_pb2,
    pool_pb2_grpc,
    types_pb2,
)
from tests.coordinator.pool import declared
from tests.fuzz import bystander
from tests.fuzz.mutating import Vocabulary, changed, meant, spoilt
from tests.fuzz.victim import Victim
from tests.identity import insecure_channel
from tests.pretended_node import PretendedNode

METHODS = [
    method
    for module in (access_pb2, admin_pb2, enrolment_pb2, leases_pb2, pool_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
AGENTS = [f"f{number}" for number in range(4)]
"""Nodes whose agents misbehave; each worker means one of them well at times."""
SESSION = agent_pb2.DESCRIPTOR.services_by_name["AgentService"].methods_by_name["Session"]
WORKERS = len(AGENTS)
WAITS_S = 0.3
"""What a call that may wait is given: its deadline passes, which is an answer."""
ANSWERS_WITHIN_S = 60.0
"""What answers at once does so in this time on any machine; else the writer is stuck."""
READY_WITHIN_S = 10.0
TIDY_EVERY = 100
"""Turns of the first worker, after which what came to be is ended: a pool that is full of rubbish would only say so."""
_OURS = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.CANCELLED,
}
_BY_WHAT_THEY_BRING = {"/aliquot.v1.AccessService/Login", "/aliquot.v1.EnrolmentService/Join"}
"""Calls that find out themselves who makes them, and let nobody in who brings nothing that counts."""
_LIBRARYS = {"Internal error from Core", "Received RST_STREAM with error code 0"}
"""What the library on this side says by itself, where it wrote on to a stream that had ended."""


@dataclass
class Result:
    """What an attack came to."""

    calls: int = 0
    rpcs: set[str] = field(default_factory=set)
    """Those that were called."""
    answered: set[str] = field(default_factory=set)
    """Those of them that answered OK at least once: what is refused at the door attacks nothing behind it."""
    sessions_ready: int = 0
    """Of agents: those that got as far as being told what is desired."""
    seconds: float = 0.0
    codes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    quiet: dict[str, Any] = field(default_factory=dict)
    """What the bystander saw before, and meanwhile."""
    attacked: dict[str, Any] = field(default_factory=dict)
    spared: dict[str, Any] = field(default_factory=dict)
    """And what the same client saw meanwhile of a coordinator that nobody attacked, on the same machine."""
    rss_grew_bytes: int = 0

    def document(self) -> dict[str, Any]:
        """As `--json` prints it."""
        quiet_ms, attacked_ms = self.quiet["p99_ms"], self.attacked["p99_ms"]
        return {
            "calls": self.calls,
            "rpcs": len(self.rpcs),
            "rpcs_answered_ok": len(self.answered),
            "sessions_ready": self.sessions_ready,
            "minutes": round(self.seconds / 60, 2),
            "findings": len(self.findings),
            "bystander_p99_quiet_ms": round(quiet_ms, 2),
            "bystander_p99_ms": round(attacked_ms, 2),
            "bystander_p99_ratio": round(attacked_ms / quiet_ms, 2),
            "bystander_p50_ratio": round(self.attacked["p50_ms"] / self.quiet["p50_ms"], 2),
            "bystander_p99_elsewhere_ms": round(self.spared["p99_ms"], 2),
            "bystander_p99_ratio_to_elsewhere": round(attacked_ms / self.spared["p99_ms"], 2),
            "rss_grew_bytes": self.rss_grew_bytes,
            "codes": dict(self.codes.most_common()),
        }


def vocabulary() -> Vocabulary:
    """Nothing in it is the bystander's."""
    nodes, uuids = [*(f"node-{number}" for number in range(4)), *AGENTS], [f"GPU-{name}-0" for name in AGENTS]
    keys = {
        "principal": ["ann", "bob", "ci/nightly"],
        "scope": ["", "team", "other"],
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
        "policy": ["fifo", "priority", "fair_share", "capacity", "slowdown"],
        "period": ["hour", "day", "week", "month"],
        "start": ["2026-12-01T00:00"],
        "end": ["2026-12-01T01:00"],
        "zone": ["UTC", "Europe/Berlin"],
        "when": ["weekdays 08:00-18:00"],
        "keep": ["start", "least"],
        "lease_id": ["l-0000000000000"],
        "boot_id": ["boot-1", "boot-2"],
        "share_milli_ms": ["1", "-1"],
        "memory_byte_ms": ["1", "-1"],
    }
    keys["lease_ids"] = keys["lease_id"]
    keys["parent"], keys["default_queue"] = keys["queue"], keys["queue"]
    return Vocabulary(keys)


class Worker:
    """One of those who attack, with chances of its own: what it sends depends on no other's turns."""

    def __init__(self, number: int, channel: grpc.aio.Channel, seed: int, words: Vocabulary, result: Result) -> None:
        self._number = number
        self._channel: Any = channel
        self._rng = Random(f"{seed}:{number}")
        self._words = words
        self._result = result

    async def run(self, until: float) -> None:
        """Each call of this worker's part and a session at least once; then until the time is over."""
        await self._session(as_meant=True)
        for method in METHODS[self._number :: WORKERS]:
            await self._call(method)
        turn = 0
        while time.monotonic() < until:
            turn += 1
            if self._number == 0 and turn % TIDY_EVERY == 0:
                async with self._judged("tidying", b"", waits=False):
                    await tidy(self._channel)
            if self._rng.random() < 0.25:
                await self._session(as_meant=self._rng.random() < 0.2)
            else:
                await self._call(self._rng.choice(METHODS))

    # -- one of each

    def _message(self, descriptor: Any) -> bytes:
        message = meant(descriptor, self._rng, self._words)
        for _ in range(self._rng.choice((0, 1, 1, 1, 2, 3))):
            message = changed(message, self._rng)
        raw = message.SerializeToString()
        return spoilt(raw, self._rng) if self._rng.random() < 0.15 else raw

    async def _call(self, method: Any) -> None:
        path = f"/{method.containing_service.full_name}/{method.name}"
        raw = self._message(method.input_type)
        waits = method.client_streaming or method.server_streaming
        waits = waits or "wait_timeout_ms" in method.input_type.fields_by_name
        timeout_s = WAITS_S if waits else ANSWERS_WITHIN_S
        self._result.rpcs.add(path)
        async with self._judged(path, raw, waits=waits):
            if method.client_streaming:
                call = self._channel.stream_stream(path)(timeout=timeout_s)
                await call.write(raw)
                await call.read()
                call.cancel()
            elif method.server_streaming:
                call = self._channel.unary_stream(path)(raw, timeout=timeout_s)
                await call.read()
                call.cancel()
            else:
                answer = method.output_type._concrete_class.FromString(
                    await self._channel.unary_unary(path)(raw, timeout=timeout_s)
                )
                self._learn(answer)
            self._result.answered.add(path)

    async def _session(self, *, as_meant: bool) -> None:
        """A session whose first messages are as an agent means them is told what is desired, before it misbehaves."""
        path = f"/{SESSION.containing_service.full_name}/{SESSION.name}"
        node = PretendedNode(AGENTS[self._number] if as_meant else self._rng.choice(AGENTS), ())
        node.uuids = (f"GPU-{node.node_id}-0", f"GPU-{node.node_id}-1")
        hello: Any = node.hello()
        first: Any = node.snapshot(1)
        if not as_meant and self._rng.random() < 0.5:
            hello.hello.CopyFrom(meant(agent_pb2.Hello.DESCRIPTOR, self._rng, self._words))
            changed(hello, self._rng)
        if not as_meant:
            first = changed(first, self._rng)
        more = [self._agents_message(seq) for seq in range(2, self._rng.randrange(3, 8))]
        self._result.rpcs.add(path)
        if as_meant:  # whoever may end invites and enrolments does so, too
            async with self._judged(path, b"joining", waits=False):
                await node.join(self._channel)
        async with self._judged(path, b"\n".join([first.SerializeToString(), *more]), waits=True):
            call = self._channel.stream_stream(path, response_deserializer=agent_pb2.CoordinatorMessage.FromString)(
                timeout=READY_WITHIN_S if as_meant else 1.0
            )
            await call.write(hello.SerializeToString())
            said = await call.read()
            if said is not grpc.aio.EOF and said.HasField("challenge"):
                proof: Any = agent_pb2.AgentMessage(proof=node.proof(hello.hello, said.challenge))
                if not as_meant:
                    proof = changed(proof, self._rng)
                await call.write(proof.SerializeToString())
                said = await call.read()
            await call.write(first.SerializeToString())
            while as_meant and said is not grpc.aio.EOF and not said.desired.full:
                said = await call.read()
            self._result.sessions_ready += as_meant and said is not grpc.aio.EOF
            for raw in more:
                await call.write(raw)
            await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                pass
            self._result.answered.add(path)

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

    @contextlib.asynccontextmanager
    async def _judged(self, path: str, raw: bytes, *, waits: bool) -> AsyncIterator[None]:
        self._result.calls += 1
        code = "OK"
        try:
            async with asyncio.timeout(ANSWERS_WITHIN_S + 10):
                yield
        except grpc.aio.AioRpcError as error:
            code = error.code().name
            if error.details() in _LIBRARYS:
                code = "ENDED"
            elif path in _BY_WHAT_THEY_BRING and error.code() is grpc.StatusCode.UNAUTHENTICATED:
                pass
            elif error.code() not in _OURS and not (waits and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED):
                self._found(f"{path} answered {code}: {error.details()}", raw)
        except asyncio.InvalidStateError:
            code = "ENDED"  # it was told before it had said everything
        except TimeoutError:
            self._found(f"{path} did not answer", raw)
        self._result.codes[code] += 1

    def _found(self, what: str, raw: bytes) -> None:
        self._result.findings.append(f"{what}; sent {raw[:500].hex()}")

    def _learn(self, answer: Any) -> None:
        lease = getattr(answer, "lease", answer)
        if isinstance(lease, types_pb2.Lease):
            self._words.learn("lease_id", lease.lease_id)
            for piece in lease.slices:
                self._words.learn("slice_id", piece.slice_id)


async def tidy(channel: grpc.aio.Channel) -> None:
    """End what has come to be, but for what is the bystander's."""
    leases: Any = leases_pb2_grpc.LeaseServiceStub(channel)
    admin: Any = admin_pb2_grpc.AdminServiceStub(channel)
    nodes: Any = pool_pb2_grpc.PoolServiceStub(channel)
    for window in (await admin.ListMaintenance(admin_pb2.ListMaintenanceRequest())).windows:
        with contextlib.suppress(grpc.aio.AioRpcError):
            await admin.EndMaintenance(admin_pb2.EndMaintenanceRequest(name=window.window.name))
    page = await leases.List(leases_pb2.ListRequest(page_size=1000))
    ids = [lease.lease_id for lease in page.leases if lease.request.tenant != bystander.NAME]
    for at in range(0, len(ids), 256):
        await leases.ReleaseBatch(leases_pb2.ReleaseBatchRequest(lease_ids=ids[at : at + 256]))
    for node in (await nodes.ListNodes(pool_pb2.ListNodesRequest(page_size=1000))).nodes:
        if node.pool != bystander.NAME:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await nodes.RemoveNode(pool_pb2.RemoveNodeRequest(node_id=node.node_id, force=True))
    with contextlib.suppress(grpc.aio.AioRpcError):
        await nodes.DeclareNodes(pool_pb2.DeclareNodesRequest(nodes=[declared("node-0", 2)]))


async def attack(seconds: float, seed: int, *, quiet_s: float) -> Result:
    """A coordinator, a client that behaves, and those who don't. Each call is made at least once, however long."""
    victim, spared = await Victim.begin(), await Victim.begin()
    result = Result()
    try:
        await _prepare(victim.address)
        await _prepare(spared.address)
        result.quiet = await _behave(victim.address, quiet_s)
        victim.settled()
        began = time.monotonic()
        behaving = [asyncio.create_task(_behave(each.address, seconds)) for each in (victim, spared)]
        await _all_workers(victim.address, seed, began + seconds, result)
        result.attacked, result.spared = await asyncio.gather(*behaving)
        result.seconds = time.monotonic() - began
        result.findings += [f"the bystander was told {problem}" for problem in result.attacked["problems"]]
        victim.judge()
        result.rss_grew_bytes = victim.grew_bytes
    finally:
        await asyncio.gather(victim.stop(), spared.stop())
    result.findings += victim.findings + spared.findings
    return result


async def _all_workers(address: str, seed: int, until: float, result: Result) -> None:
    words = vocabulary()
    async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        for number in range(WORKERS):
            options = [("grpc.use_local_subchannel_pool", 1)]
            channel = await stack.enter_async_context(insecure_channel(address, options))
            tasks.create_task(Worker(number, channel, seed, words, result).run(until))


async def _prepare(address: str) -> None:
    """What the bystander needs, and something to attack."""
    name = bystander.NAME
    node = declared(name, 4)
    node.pool = name
    spec = admin_pb2.QueueSpec(name=name, tenants=[name])
    async with insecure_channel(address) as channel:
        nodes = pool_pb2_grpc.PoolServiceStub(channel)
        await nodes.DeclareNodes(pool_pb2.DeclareNodesRequest(nodes=[node, declared("node-0", 2)]))
        apply = admin_pb2.ApplyRequest(queues=[admin_pb2.QueueItem(spec=spec)])
        await admin_pb2_grpc.AdminServiceStub(channel).Apply(apply)


async def _behave(address: str, seconds: float) -> dict[str, Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.fuzz.bystander", address, str(seconds), stdout=asyncio.subprocess.PIPE
    )
    told, _ = await process.communicate()
    seen: dict[str, Any] = json.loads(told.splitlines()[-1])
    return seen
