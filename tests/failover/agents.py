"""Agents of the contract, many in one process: they follow the leader, and back off, with the real one's own code.

They keep reservations over connections, refuse an older leader, and notice when a device is given away twice, by what
they were told alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio

from aliquot.agent.connection import CHANNEL_OPTIONS, SessionEnded, connect, ending_of_status
from aliquot.common.addresses import Addresses
from aliquot.common.backoff import Backoff
from aliquot.v1 import agent_pb2, agent_pb2_grpc
from tests.identity import insecure_channel, with_token
from tests.pretended_node import PretendedNode, reports_message

WHOLE_MILLI = 1000
_HEARTBEAT_S = 2.0
_WELCOME_S = 5.0
# Those of the agent itself: a coordinator that froze is noticed by its silence on the connection.
_OPTIONS = (
    *CHANNEL_OPTIONS,
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
)


class Agent(PretendedNode):
    """One node."""

    def __init__(self, addresses: Sequence[str], number: int, devices: int = 4) -> None:
        super().__init__(f"node-{number:04d}", [f"GPU-{number:04d}-{index}" for index in range(devices)])
        self._addresses = Addresses(addresses)
        self._backoff = Backoff(random=random.Random(number))
        self._seq = 0
        self._unknown = False
        """It was refused because its node has not joined."""
        self.leader_epoch = 0
        self.welcomed_at = 0.0
        """When the leader of that epoch first answered, monotonic."""
        self.reconciled_epoch = 0
        """Of the leader that has last told this node what it should hold, after its snapshot."""
        self.reconciled_at = 0.0
        self.overcommitted: list[str] = []
        self.ca_pem = b""
        """Whom it trusts at the coordinators; empty: it talks in the clear."""

    def _channel(self, address: str) -> Any:
        if not self.ca_pem:
            return insecure_channel(address, options=_OPTIONS)
        credentials = grpc.ssl_channel_credentials(self.ca_pem)
        return with_token(grpc.aio.secure_channel(address, credentials, options=_OPTIONS))

    async def run(self) -> None:
        """Connect, talk, connect again, until cancelled."""
        while True:
            address = self._addresses.take()
            ended = SessionEnded("")
            try:
                async with self._channel(address) as channel:
                    await connect(channel)
                    if self._unknown:
                        await self.join(channel)
                    await self._session(channel, address)
            except SessionEnded as error:
                ended = error
            except grpc.aio.AioRpcError as error:
                ended = ending_of_status(error.code(), error.details(), error.trailing_metadata())
            except (TimeoutError, asyncio.InvalidStateError):
                pass
            self._unknown = ended.word == "NOT_ENROLLED"
            self._addresses.leader_is(ended.leader)
            if not self._addresses.referred:
                await asyncio.sleep(self._backoff.next_s(ended.wait_s))
                self._addresses.waited()

    async def _session(self, channel: grpc.aio.Channel, address: str) -> None:
        call: Any = agent_pb2_grpc.AgentServiceStub(channel).Session()
        beating: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(_WELCOME_S):
                answer = await self.shake_hands(call, self.leader_epoch)
            if not isinstance(answer, agent_pb2.CoordinatorMessage) or not answer.HasField("welcome"):
                raise ending_of_status(await call.code(), await call.details(), await call.trailing_metadata())
            if answer.welcome.leader_epoch < self.leader_epoch:
                return
            if answer.welcome.leader_epoch > self.leader_epoch:
                self.leader_epoch, self.welcomed_at = answer.welcome.leader_epoch, time.monotonic()
            self._addresses.worked(address)
            self._backoff.succeeded()
            await self._describe(call)
            beating = asyncio.create_task(self._beat(call))
            await self._read(call, answer.welcome)
        finally:
            if beating is not None:
                beating.cancel()
                await asyncio.gather(beating, return_exceptions=True)
            call.cancel()

    async def _read(self, call: Any, welcome: agent_pb2.Welcome) -> None:
        while True:
            message = await call.read()
            if not isinstance(message, agent_pb2.CoordinatorMessage):
                raise ending_of_status(await call.code(), await call.details(), await call.trailing_metadata())
            kind = message.WhichOneof("message")
            if kind == "desired" and self.leader_epoch == welcome.leader_epoch:
                if reports := self.obey(message.desired):
                    await call.write(reports_message(welcome.session_epoch, reports))
                if self.reconciled_epoch != welcome.leader_epoch:
                    self.reconciled_epoch, self.reconciled_at = welcome.leader_epoch, time.monotonic()
            elif kind == "snapshot_request":
                await self._describe(call)
            elif kind == "goodbye":
                return

    async def _describe(self, call: Any) -> None:
        self._seq += 1
        await call.write(self.snapshot(self._seq))

    async def _beat(self, call: Any) -> None:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while True:
                await asyncio.sleep(_HEARTBEAT_S)
                await call.write(agent_pb2.AgentMessage(heartbeat=agent_pb2.Heartbeat(seq=self._seq)))

    def obey(self, desired: agent_pb2.Desired) -> list[agent_pb2.SliceReport]:
        """And notice what was given away twice."""
        reports = super().obey(desired)
        shares: Counter[str] = Counter()
        for report in self.reservations.values():
            if report.status == agent_pb2.SLICE_STATUS_ACTIVE:
                shares[report.device_uuid] += report.share_milli
        self.overcommitted += [f"{uuid}: {share}" for uuid, share in shares.items() if share > WHOLE_MILLI]
        return reports
