"""Launchers: programs that ask for leases, keep them alive, run jobs in them, and sometimes just vanish."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Container
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2

from aliquot.common.errors import AliquotError
from aliquot.v1 import leases_pb2, types_pb2
from tests.simulation.sim.calls import CallFailed, Status
from tests.simulation.sim.jobs import Job
from tests.simulation.sim.loop import US_PER_S, Process
from tests.simulation.sim.network import Connection
from tests.simulation.sim.people import DENIED, TRESPASSES
from tests.simulation.sim.server import KEEP_ALIVE

if TYPE_CHECKING:
    from tests.simulation.sim.world import World

LEASES = "/aliquot.v1.LeaseService/"
HOPELESS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.NOT_FOUND,
)

PATIENCE_S = 90.0
CHANGES_ITS_MIND = 0.04
"""How often, of the times it hears that it still waits, a launcher takes its request back."""
FORGETS_TO_ADAPT = 0.25
"""How often, of the times its lease changes its shape, a launcher never says that it has adapted."""
ANSWERS = ("NO_CAPACITY", "QUOTA_EXCEEDED")
"""Reasons that are an answer, although their code also stands for "come back later"."""


def reason_of(failed: CallFailed | Status) -> str:
    """The stable reason in an error's details; empty where there is none."""
    for key, value in failed.metadata:
        if key == "grpc-status-details-bin":
            info = error_details_pb2.ErrorInfo()
            for detail in status_pb2.Status.FromString(value).details:
                if detail.Unpack(info):
                    return str(info.reason)
    return ""


@dataclass(slots=True)
class Asked:
    """One request of a launcher, from its first sending to its end."""

    key: str
    request: types_pb2.LeaseRequest
    run_s: float
    lease_id: str = ""
    secret: str = ""
    ended: bool = False
    outcome: str = ""
    jobs: list[Job] = field(default_factory=list)


class Launcher:
    """One launcher. Its process may be killed at any time."""

    def __init__(self, world: World, number: int, random: Random) -> None:
        self.world = world
        self.host = f"launcher-{number:03d}"
        self.number = number
        self.random = random
        self.process: Process = world.loop.spawn(self.host)
        self.process.host = self
        self.person = world.people.launcher(number)
        self.asked: list[Asked] = []
        self.vanished = False
        self.last_failure = ""
        self._trespasses = Random(random.getrandbits(32))
        self._numbers = itertools.count(1)
        self._address = 0
        self._live: dict[str, Asked] = {}

    def start(self) -> None:
        """Begin to ask."""
        self.world.loop.start(self.process, self._ask_for_ever(), "asks")
        self.world.loop.start(self.process, self._keep_alive(), "keeps")

    def vanish(self) -> None:
        """SIGKILL: nobody releases what it had."""
        self.vanished = True
        self.world.loop.kill(self.process)

    # -- calls

    def tenant_of(self, drawn: str) -> str:
        """The tenant for which it asks: mostly one in which it may."""
        own = self.person.tenants
        if drawn in own or self._trespasses.random() < TRESPASSES:
            return drawn
        return self._trespasses.choice(own)

    async def call(self, method: str, request: Any, response: Any, timeout_s: float, asked: Asked | None = None) -> Any:
        """One call, to whoever leads, again and again until it is answered. Raises CallFailed for a real answer; that
        its caller is not known, or may not, is none where it is known, and may, at other times.
        """
        network = self.world.network
        wait_s = 0.2
        odd = self.world.people.odd(self.person, method, asked)
        while True:
            token = self.person.token if odd is None else odd
            address = self.world.cluster.addresses[self._address % len(self.world.cluster.addresses)]
            try:
                data = await network.call(
                    self.host, address, LEASES + method, request.SerializeToString(), timeout_s, token
                )
                answer = response.FromString(data)
                if not (response is types_pb2.Lease and answer.redacted):
                    return answer
            except CallFailed as failed:
                if failed.code in HOPELESS or reason_of(failed) in ANSWERS:
                    raise
                if failed.code in DENIED:
                    self._denied(failed, token, asked)
                else:
                    self._address += 1
                self.last_failure = str(failed)
            odd = None
            await asyncio.sleep(wait_s + self.random.random() * wait_s)
            wait_s = min(wait_s * 2, 5.0)

    def _denied(self, failed: CallFailed, token: str, asked: Asked | None) -> None:
        """Come back with another token, or when the role is given back. Raises CallFailed where there never was one."""
        if token != self.person.token:
            return
        if failed.code is grpc.StatusCode.UNAUTHENTICATED:
            self.person.refused(token)
        elif asked is not None and asked.request.tenant not in self.person.tenants:
            raise failed

    # -- life

    async def _ask_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self.random.expovariate(1 / self.world.config.think_s))
            if self.world.issuing and len(self._live) < self.world.config.leases_per_launcher:
                asked = self.world.workload.next(self, next(self._numbers))
                self.asked.append(asked)
                asyncio.create_task(self._hold(asked))  # noqa: RUF006 - the loop keeps it

    def ask_now(self, key: str, copy_of: str = "") -> None:
        """One more request at once; `copy_of`: with the body that this key had before, if it had one."""
        if not self.process.alive or not self.world.issuing:
            return
        asked = self.world.workload.next(self, next(self._numbers))
        asked.key = key
        if copy_of:
            known = next((other for other in self.asked if other.key == copy_of), None)
            if known is not None:
                asked.request = known.request
        self.asked.append(asked)
        self.world.loop.start(self.process, self._hold(asked), "holds")

    def ask_otherwise(self, key: str) -> None:
        """The same key twice, for two requests that are not the same: only one of them may ever be accepted."""
        if self.process.alive and self.world.issuing:
            for share_milli in (100, 200):
                asked = self.world.workload.next(self, next(self._numbers))
                asked.key, asked.request.tenant = key, "dev"
                asked.request.spec.share_milli = share_milli
                self.asked.append(asked)
                self.world.loop.start(self.process, self._hold(asked), "holds")

    async def _hold(self, asked: Asked) -> None:
        """A lease from beginning to end."""
        try:
            lease = await self._allocate(asked)
        except CallFailed as failed:
            asked.outcome, asked.ended = failed.code.name, True
            return
        asked.lease_id, asked.secret = lease.lease_id, lease.secret
        self._live[lease.lease_id] = asked
        try:
            await self._use(asked, lease)
        finally:
            self._live.pop(lease.lease_id, None)
            asked.ended = True

    async def _allocate(self, asked: Asked) -> types_pb2.Lease:
        wait_s = 40 if self.random.random() < 0.1 else 8
        request = leases_pb2.AllocateRequest(
            request=asked.request,
            idempotency_key=asked.key,
            wait_until=self.random.choice((leases_pb2.WAIT_UNTIL_QUEUED, leases_pb2.WAIT_UNTIL_ACTIVE)),
            wait_timeout_ms=wait_s * 1000,
        )
        response = await self.call("Allocate", request, leases_pb2.AllocateResponse, wait_s + 2.0, asked)
        lease: types_pb2.Lease = response.lease
        return lease

    async def _use(self, asked: Asked, lease: types_pb2.Lease) -> None:
        """Wait until it is active, run, release. What ends meanwhile is simply over."""
        running_epoch = shape = 0
        deadline_s = unconfirmed_since_s = 0.0
        loop = self.world.loop
        while True:
            if lease.state == types_pb2.LEASE_STATE_ENDED:
                asked.outcome = lease.end_reason
                return
            if lease.state == types_pb2.LEASE_STATE_ACTIVE and lease.lease_epoch != running_epoch:
                running_epoch = lease.lease_epoch
                deadline_s = loop.time() + asked.run_s
                asked.jobs += self._start_jobs(asked, lease)
                shape = lease.shape
            elif running_epoch == lease.lease_epoch and shape != lease.shape:
                shape = lease.shape
                await self._adapt(asked, lease)
            if deadline_s and loop.time() >= deadline_s:
                break
            if lease.state == types_pb2.LEASE_STATE_QUEUED and lease.waiting.impossible and self.random.random() < 0.3:
                asked.outcome = "GAVE_UP"  # what it was meant for has left the pool
                break
            if lease.state == types_pb2.LEASE_STATE_QUEUED and self.random.random() < CHANGES_ITS_MIND:
                asked.outcome = "CANCELLED"
                break
            if lease.state == types_pb2.LEASE_STATE_GRANTED and lease.granted_ms:
                unconfirmed_since_s = unconfirmed_since_s or loop.time()
                if loop.time() - unconfirmed_since_s > PATIENCE_S:
                    break  # on a node without an agent it never becomes active
            wait_s = 4.0 if not deadline_s else min(8.0, max(0.1, deadline_s - loop.time()))
            await asyncio.sleep(wait_s * (0.5 + self.random.random() / 2))
            try:
                request = leases_pb2.GetRequest(lease_id=asked.lease_id)
                lease = await self.call("Get", request, types_pb2.Lease, 5.0, asked)
            except CallFailed as failed:
                asked.outcome = failed.code.name
                return
        for job in asked.jobs:
            job.finish()
        release = leases_pb2.ReleaseRequest(
            lease_id=asked.lease_id, wait_gone=self.random.random() < 0.5, wait_timeout_ms=5_000
        )
        try:
            await self.call("Release", release, leases_pb2.ReleaseResponse, 8.0, asked)
        except CallFailed as failed:
            asked.outcome = failed.code.name
        asked.outcome = asked.outcome or "RELEASED"

    async def _adapt(self, asked: Asked, lease: types_pb2.Lease) -> None:
        """An elastic lease has changed: work with what it has now, and mostly say so."""
        known = {piece.slice_id for job in asked.jobs for piece in job.pieces}
        leaving = {piece.slice_id for piece in lease.slices if piece.shed}
        for job in asked.jobs:
            if any(piece.slice_id in leaving for piece in job.pieces):
                job.finish()
        asked.jobs += self._start_jobs(asked, lease, known | leaving)
        if self.random.random() < FORGETS_TO_ADAPT:
            return
        await asyncio.sleep(self.random.random() * 2)
        for shape in (lease.shape - 1, lease.shape) if self.random.random() < 0.1 else (lease.shape,):
            request = leases_pb2.AcknowledgeShapeRequest(lease_id=lease.lease_id, shape=shape)
            with contextlib.suppress(CallFailed):  # it has ended meanwhile
                await self.call("AcknowledgeShape", request, types_pb2.Lease, 5.0, asked)

    def _start_jobs(self, asked: Asked, lease: types_pb2.Lease, known: Container[str] = frozenset()) -> list[Job]:
        jobs = []
        members: dict[int, list[types_pb2.Slice]] = {}
        for piece in lease.slices:
            if piece.lease_epoch == lease.lease_epoch and piece.slice_id not in known:
                members.setdefault(piece.member, []).append(piece)
        for member, pieces in sorted(members.items()):
            node = self.world.node(pieces[0].node_id)
            if node is not None and self.random.random() < 0.85:
                job = Job(self.world, node, asked, member, pieces, Random(self.random.getrandbits(32)))
                jobs.append(job)
                self.world.loop.call_in(node.os, int(self.random.random() * US_PER_S // 2), job.start)
        return jobs

    async def _keep_alive(self) -> None:
        """One stream, named again every few seconds, reopened when it breaks."""
        connection: Connection | None = None
        address = 0
        token = ""
        while True:
            await asyncio.sleep(6.0 + self.random.random() * 4)
            if not self._live:
                continue
            addresses = self.world.cluster.addresses
            try:
                if connection is None or not connection.client_open:
                    target = addresses[address % len(addresses)]
                    odd = self.world.people.odd(self.person, "KeepAlive", None)
                    token = self.person.token if odd is None else odd
                    connection = self.world.network.connect(self.host, target, KEEP_ALIVE, self.process, token)
                    if connection is None:
                        address += 1
                        continue
                request = leases_pb2.KeepAliveRequest(lease_ids=list(self._live))
                with contextlib.suppress(asyncio.InvalidStateError):  # it has ended: what is read says why
                    await connection.client_write(request.SerializeToString())
                async with asyncio.timeout(8.0):
                    data = await connection.client_read()
                if isinstance(data, bytes):
                    leases_pb2.KeepAliveResponse.FromString(data)
            except (TimeoutError, grpc.aio.AioRpcError, AliquotError) as error:
                if isinstance(error, grpc.aio.AioRpcError) and error.code() in DENIED:
                    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                        self.person.refused(token)
                else:
                    address += 1
                if connection is not None:
                    connection.client_cancel()
                connection = None
