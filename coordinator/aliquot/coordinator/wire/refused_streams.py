"""Refusing a stream so that its caller sees why.

When a server ends a stream that its caller is still writing to, gRPC reports INTERNAL at the caller: the reason, the
leader's address and the time to come back are lost. So the first message is read before the stream is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc.aio

_WAIT_S = 1.0
"""A caller that sends nothing for so long is refused all the same."""


async def read_before_refusing(context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Read the first message of a stream that will be refused."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_WAIT_S):
            await context.read()
