"""Programs that follow all leases with Watch, and list them again when they are told to."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from aliquot.v1 import leases_pb2, types_pb2
from tests.identity import ADMIN_TOKEN
from tests.simulation.sim.calls import CallFailed
from tests.simulation.sim.people import Person
from tests.simulation.sim.server import WATCH

if TYPE_CHECKING:
    from tests.simulation.sim.world import World

LIST = "/aliquot.v1.LeaseService/List"


class Follower:
    """One of them. What it has been told is what the auditor looks at."""

    def __init__(self, world: World, number: int, random: Random, person: Person | None) -> None:
        """`person`: who it is; None: the administrator."""
        self.person = person
        self.host = f"follower-{number}"
        self.seq = 0
        """Everything up to there has been told."""
        self.began_seq = 0
        """What was before, it has listed."""
        self.ended: set[str] = set()
        """Leases of which it was told that they have ended."""
        self._world = world
        self._random = random
        self._address = 0
        self._shown = ""
        self.process = world.loop.spawn(self.host)
        self.process.host = self

    def start(self) -> None:
        """Begin to follow."""
        self._world.loop.start(self.process, self._follow(), "follows")

    async def _follow(self) -> None:
        while True:
            addresses = self._world.cluster.addresses
            address = addresses[self._address % len(addresses)]
            try:
                if not self.seq:
                    await self._list(address)
                await self._watch(address)
            except CallFailed as failed:
                self._refused(failed.code)
                self._address += 1
            except grpc.aio.AioRpcError as error:
                self._refused(error.code())
                if error.code() is grpc.StatusCode.OUT_OF_RANGE or "list again" in (error.details() or ""):
                    self.seq = 0
                self._address += 1
            await asyncio.sleep(0.5 + self._random.random())

    @property
    def tenant(self) -> str:
        """Whose leases it sees; empty: everybody's."""
        return self.person.roles[0][1] if self.person is not None else ""

    def _token(self) -> str:
        """Kept in mind, to say later which one was refused."""
        self._shown = self.person.token if self.person is not None else ADMIN_TOKEN
        return self._shown

    def _refused(self, code: grpc.StatusCode) -> None:
        if self.person is not None and code is grpc.StatusCode.UNAUTHENTICATED:
            self.person.refused(self._shown)

    async def _list(self, address: str) -> None:
        request = leases_pb2.ListRequest()
        data = await self._world.network.call(self.host, address, LIST, request.SerializeToString(), 5.0, self._token())
        self.seq = self.began_seq = leases_pb2.ListResponse.FromString(data).seq
        self.ended.clear()

    async def _watch(self, address: str) -> None:
        connection = self._world.network.connect(self.host, address, WATCH, self.process, self._token())
        if connection is None:
            self._address += 1
            return
        request = leases_pb2.WatchRequest(after_seq=self.seq, nodes=self._random.random() < 0.5)
        request.batches = self._random.random() < 0.5
        await connection.client_write(request.SerializeToString())
        while isinstance(data := await connection.client_read(), bytes):
            event = leases_pb2.WatchEvent.FromString(data)
            for each in (event, *event.more):
                self._told(each)

    def _told(self, event: leases_pb2.WatchEvent) -> None:
        if event.WhichOneof("event") == "lease" and event.lease.state == types_pb2.LEASE_STATE_ENDED:
            self.ended.add(event.lease.lease_id)
        if event.seq > self.seq:
            self.seq = event.seq
            self._world.auditor.followers.told(self)
