"""Callers who hold streams open for as long as they are let: they open them again wherever somebody leads, and end when
their token is refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
import grpc.aio

from aliquot.common.addresses import Addresses
from aliquot.common.failures import LEADER, failure_of
from aliquot.v1 import leases_pb2, leases_pb2_grpc
from tests.coordinator.pool import reason_of
from tests.identity import insecure_channel

_AGAIN_S = 0.02
_BEAT_S = 0.2


class Held:
    """One stream of one token. It is over when `run` returns."""

    def __init__(self, addresses: Sequence[str], token: str, lease_id: str = "") -> None:
        """A Watch; with a lease's id, keep-alives for it."""
        self._addresses = Addresses(addresses)
        self._token = token
        self._lease_id = lease_id
        self.open = False
        self.heard_at = 0.0
        """When it last heard anything of the coordinator, monotonic."""
        self.ended_at = 0.0
        """When it last ended, for whatever reason."""
        self.refused = ""
        """Why it was not let in again."""

    async def run(self) -> None:
        while not self.refused:
            address = self._addresses.take()
            async with insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)], token=self._token) as channel:
                try:
                    async for _ in self._answers(channel):
                        self.open, self.heard_at = True, time.monotonic()
                        self._addresses.worked(address)
                except grpc.aio.AioRpcError as error:
                    if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                        self.refused = reason_of(error)
                    said = failure_of(error.code(), error.details(), error.trailing_metadata())
                    self._addresses.leader_is(said.metadata.get(LEADER, ""))
                except asyncio.InvalidStateError:
                    pass  # it ended while we wrote
                finally:
                    if self.open:
                        self.open, self.ended_at = False, time.monotonic()
            if not self.refused and not self._addresses.referred:
                await asyncio.sleep(_AGAIN_S)
                self._addresses.waited()

    async def _answers(self, channel: Any) -> AsyncIterator[Any]:
        stub: Any = leases_pb2_grpc.LeaseServiceStub(channel)
        if not self._lease_id:
            call = stub.Watch(leases_pb2.WatchRequest())
            async for event in call:
                yield event
            return
        call = stub.KeepAlive()
        beating = asyncio.create_task(self._beat(call))
        try:
            async for answer in call:
                yield answer
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
            call.cancel()

    async def _beat(self, call: Any) -> None:
        while True:
            await call.write(leases_pb2.KeepAliveRequest(lease_ids=[self._lease_id]))
            await asyncio.sleep(_BEAT_S)


async def until_open(streams: Sequence[Held], since: float = 0.0) -> None:
    """Until each is open and has heard something since that monotonic moment."""
    async with asyncio.timeout(60):
        while not all(stream.open and stream.heard_at > since for stream in streams):  # noqa: ASYNC110 - many, one look
            await asyncio.sleep(_AGAIN_S)
