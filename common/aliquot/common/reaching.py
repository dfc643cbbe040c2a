"""Connecting to a coordinator over gRPC, for processes that keep a stream to the leader open, such as agents. The SDK's
calls have their own rules.
"""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio

CONNECT_TIMEOUT_S = 4.0
"""A machine that is gone or a process that is frozen does not answer: then the next coordinator is tried."""
_SETTLED = (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE)


async def reach(channel: grpc.aio.Channel) -> None:
    """Waits until the channel is connected or has failed; the next call then says why. Raises `TimeoutError` when there
    is no answer at all.
    """
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        while (state := channel.get_state(try_to_connect=True)) not in _SETTLED:
            await channel.wait_for_state_change(state)
