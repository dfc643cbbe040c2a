"""Which nodes a request fits now, remembered by request and asked again only for nodes on which something changed.

Whether a node fits is only advice: what is granted, the coordinator decides again at the bind. So an answer that is a
moment old costs at most a refused bind, and the time that it may be old is bounded.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from aliquot.client import AsyncPool, NodeFit, Request
from aliquot.common.limits import MAX_FITS_NODES

_REQUESTS_MAX: Final = 128
_AGE_MAX_S: Final = 10.0
"""After that all is asked again: limits and holds change without telling."""


@dataclass
class _Entry:
    asked_at: float
    known: dict[str, str | None] = field(default_factory=dict)
    stale: set[str] = field(default_factory=set)


class FitsCache:
    """See the module's docstring."""

    def __init__(self, pool: AsyncPool, *, age_max_s: float = _AGE_MAX_S) -> None:
        self.asked = 0
        """Calls that were made."""
        self.hits = 0
        """Questions that needed none."""
        self._pool = pool
        self._age_max_s = age_max_s
        self._entries: OrderedDict[str, _Entry] = OrderedDict()

    def dirty(self, nodes: Iterable[str]) -> None:
        """Something changed on these nodes."""
        names = list(nodes)
        for entry in self._entries.values():
            entry.stale.update(names)

    def clear(self) -> None:
        """Anything may have changed."""
        self._entries.clear()

    async def obstacles(self, key: str, request: Request, nodes: Sequence[str]) -> Mapping[str, str | None]:
        """For each node None (it fits) or what stands against it. `key` stands for the request.

        Raises PoolError.
        """
        now = asyncio.get_running_loop().time()
        entry = self._entries.get(key)
        if entry is None or now - entry.asked_at > self._age_max_s:
            entry = self._entries[key] = _Entry(now)
        self._entries.move_to_end(key)
        while len(self._entries) > _REQUESTS_MAX:
            self._entries.popitem(last=False)
        known, stale = entry.known, entry.stale
        wanted = [node for node in nodes if node not in known or node in stale]
        if not wanted:
            self.hits += 1
            return known
        stale.difference_update(wanted)  # before asking: what changes meanwhile is stale again
        try:
            for fit in await self.ask(request, wanted):
                known[fit.node_id] = None if fit.fits else f"aliquot: {fit.detail or fit.reason}"
        except BaseException:
            stale.update(wanted)
            raise
        return known

    async def ask(self, request: Request, nodes: Sequence[str]) -> list[NodeFit]:
        """What the coordinator says of these nodes now, with scores. Raises PoolError."""
        found: list[NodeFit] = []
        for begin in range(0, len(nodes), MAX_FITS_NODES):
            self.asked += 1
            found += await self._pool.fits(request, nodes[begin : begin + MAX_FITS_NODES])
        return found
