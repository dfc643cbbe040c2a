"""Each caller's connection to the pool, with that caller's own token: the console can do nothing that they can't."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from aliquot.client import AsyncPool


@dataclass(slots=True)
class _Kept:
    pool: AsyncPool
    users: int = 0


class Pools:
    """Connections by token. Beyond `kept_max` those that were not used for longest are closed, if nobody uses them."""

    def __init__(self, connect: Callable[[str], AsyncPool], *, kept_max: int) -> None:
        self._connect = connect
        self._kept_max = kept_max
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        """The one that was used last is the last."""

    @contextlib.asynccontextmanager
    async def of(self, token: str) -> AsyncIterator[AsyncPool]:
        """The connection for a token; empty: for nobody in particular. Raises what `AsyncPool` raises."""
        kept = self._kept.get(token)
        if kept is None:
            kept = self._kept[token] = _Kept(self._connect(token))
        self._kept.move_to_end(token)
        kept.users += 1
        try:
            yield kept.pool
        finally:
            kept.users -= 1
            await self._close_surplus()

    async def close(self) -> None:
        """Drop all of them."""
        while self._kept:
            _, kept = self._kept.popitem()
            await kept.pool.close()

    async def _close_surplus(self) -> None:
        surplus = len(self._kept) - self._kept_max
        if surplus <= 0:
            return
        for token in [token for token, kept in self._kept.items() if not kept.users][:surplus]:
            await self._kept.pop(token).pool.close()
