"""Where tasks differ from threads. Its twin in `_sync` has the same names."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections.abc import Callable, Coroutine
from typing import Any, Generic, ParamSpec, TypeVar, cast

import grpc.aio

from aliquot.client._grpc_status import to_failure
from aliquot.client._held_base import HeldBase
from aliquot.client._methods import Answer, Request
from aliquot.client._token import Metadata
from aliquot.common.failures import RpcFailure

P = ParamSpec("P")
T = TypeVar("T")

Flag = asyncio.Event
Lock = contextlib.nullcontext
"""Tasks of one loop switch only where they await."""
HeldLeaseBase = HeldBase[Flag]
closing = contextlib.aclosing
sleep = asyncio.sleep


async def wait_for(flag: Flag, seconds: float | None) -> None:
    """Wait until the flag is set or the time is over (None: no limit)."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await flag.wait()


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function that blocks."""
    return await asyncio.to_thread(function, *args, **kwargs)


async def exit_code(process: subprocess.Popen[Any]) -> int:
    """Wait for a program's end. A task that is cancelled meanwhile terminates it."""
    try:
        return await asyncio.to_thread(process.wait)
    except asyncio.CancelledError:
        process.terminate()
        raise


class Worker:
    """Work beside the program."""

    def __init__(self, work: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._task = asyncio.get_running_loop().create_task(work(), name=name)

    async def end(self) -> None:
        """Wait for its end; it has been told to stop."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


class GrpcExchange(Generic[Request, Answer]):
    """Both directions of a gRPC call."""

    def __init__(
        self, method: grpc.aio.StreamStreamMultiCallable[Request, Answer], address: str, metadata: Metadata | None
    ) -> None:
        self._call = method(metadata=metadata)
        self._address = address

    async def send(self, request: Request) -> None:
        """Send one message. Raises `RpcFailure`."""
        try:
            await self._call.write(request)
        except grpc.aio.AioRpcError as error:
            raise to_failure(error, error.trailing_metadata(), self._address) from None
        except (grpc.aio.UsageError, asyncio.InvalidStateError):
            # grpc raises this instead of the call's status when the other side has already ended it.
            code = await self._call.code()
            raise RpcFailure(code.name, "the stream has ended", self._address) from None

    async def receive(self, timeout_s: float) -> Answer | None:
        """The next answer; None when the server ended the call normally. Raises `RpcFailure`, `TimeoutError`."""
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise to_failure(error, error.trailing_metadata(), self._address) from None
        return None if answer is grpc.aio.EOF else cast("Answer", answer)

    def cancel(self) -> None:
        """End it."""
        self._call.cancel()
