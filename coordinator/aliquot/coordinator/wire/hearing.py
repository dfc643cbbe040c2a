"""Refusing a stream so that the refusal is heard.

A stream that ends while its caller is still writing to it fails at the caller as INTERNAL, by gRPC's own doing: why it
was refused, who leads and when to come back are lost. So what is being written is read first.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc.aio

_WAIT_S = 1.0
"""Those who write nothing are refused all the same."""


async def hear_first(context: grpc.aio.ServicerContext[Any, Any]) -> None:
    """Read the first message of a stream that will be refused."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_WAIT_S):
            await context.read()
