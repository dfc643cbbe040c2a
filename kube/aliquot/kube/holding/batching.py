"""Grants that are asked for at the same time go in one message: a storm of binds is a few calls, one at a time.

Nobody waits for company: the first goes at once, and whoever comes while it is under way goes with the next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, NamedTuple

from aliquot.client import AsyncPool, Lease, PoolError, Request

_AT_ONCE: Final = 64
"""In one message: some milliseconds of the coordinator's time, behind which others wait."""


class _Asked(NamedTuple):
    request: Request
    node: str
    key: str
    answer: asyncio.Future[Lease]


class GrantBatches:
    """See the module's docstring. Use from one event loop."""

    def __init__(self, pool: AsyncPool) -> None:
        self._pool = pool
        self._waiting: deque[_Asked] = deque()
        self._sender: asyncio.Task[None] | None = None

    async def grant(self, request: Request, node: str, key: str) -> Lease:
        """As `AsyncPool.grant_on`, until GRANTED. One who is cancelled leaves a lease that nothing uses."""
        answer: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Asked(request, node, key, answer))
        if self._sender is None:
            self._sender = asyncio.create_task(self._send(), name="grants")
        return await answer

    async def close(self) -> None:
        """End what is under way; whoever waits is cancelled."""
        sender = self._sender
        if sender is not None:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
        for asked in self._waiting:
            asked.answer.cancel()
        self._waiting.clear()

    async def _send(self) -> None:
        some: list[_Asked] = []
        try:
            while self._waiting:
                some = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
                await self._send_some(some)
        finally:
            self._sender = None
            for asked in some:
                asked.answer.cancel()

    async def _send_some(self, some: list[_Asked]) -> None:
        try:
            answers = await self._pool.grant_on_batch(
                [asked.request for asked in some],
                [asked.node for asked in some],
                keys=[asked.key for asked in some],
            )
        except Exception as error:  # noqa: BLE001 - whoever asked is told, whatever it is
            for asked in some:
                if not asked.answer.done():
                    asked.answer.set_exception(error)
            return
        for asked, answer in zip(some, answers, strict=True):
            if asked.answer.done():
                continue
            if isinstance(answer, PoolError):
                asked.answer.set_exception(answer)
            else:
                asked.answer.set_result(answer)
