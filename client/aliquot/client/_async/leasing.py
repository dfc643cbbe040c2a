"""What `AsyncPool.lease` returns: nothing is asked for until it is awaited or entered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any

from aliquot.client._async.held import AsyncHeldLease


class Leasing:
    """A lease being asked for: `await` it, or enter it with `async with`."""

    def __init__(self, obtain: Callable[[], Awaitable[AsyncHeldLease]]) -> None:
        self._obtain = obtain
        self._held: AsyncHeldLease | None = None

    def __await__(self) -> Generator[Any, None, AsyncHeldLease]:
        return self._obtain().__await__()

    async def __aenter__(self) -> AsyncHeldLease:
        self._held = await self._obtain()
        return self._held

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._held is not None:
            await self._held.__aexit__(kind, raised, trace)


start = Leasing
