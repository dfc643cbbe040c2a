"""Which nodes a request fits now, remembered by request and asked again only for nodes on which something changed.

Whether a node fits is only advice: what is granted, the coordinator decides again at the bind. So an answer that is a
moment old costs at most a refused bind, and the time that it may be old is bounded. A refused bind is dear all the same
(a stock scheduler lets the pod wait), and pods come faster than answers: binds that have begun since an answer are
counted against the members that it said a node could take.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from aliquot.client import AsyncPool, NodeFit, PoolError, Request
from aliquot.common.latest import Latest
from aliquot.common.limits import MAX_FITS_NODES

_REQUESTS_MAX: Final = 128
_SCORES_KEPT_S: Final = 0.1
"""In a storm of binds a dozen pods are placed by one comparison; which of the nodes fit is asked anew for each."""
_LAG_S: Final = 0.1
"""What changed so lately is asked beside the filter instead of before its answer: a bind may then be refused."""
_AGE_MAX_S: Final = 10.0
"""After that all is asked again: limits and holds change without telling."""
_TAKEN: Final = "aliquot: pods that are being bound there take what is left"
_NOT_OURS: Final = "aliquot: not a node of the pool"


@dataclass
class _Entry:
    asked_at: float
    members: dict[str, int] = field(default_factory=dict)
    """How many pods of this kind each node could take when it was asked about, less the binds begun since."""
    obstacles: dict[str, str] = field(default_factory=dict)
    """What stands against those of these nodes that can't take one."""
    binding: Counter[str] = field(default_factory=Counter)
    """Binds under way on each node: whether an answer counts them is not known, so that it is taken not to."""
    turned_away: bool = False
    """Whether a pod was told that binds under way take what is left."""
    stale: dict[str, float] = field(default_factory=dict)
    """Nodes on which something changed, since when."""
    refreshing: asyncio.Task[None] | None = None
    scored_at: float = 0.0
    scores: dict[str, int] = field(default_factory=dict)


class FitsCache:
    """See the module's docstring."""

    def __init__(self, pool: AsyncPool, *, age_max_s: float = _AGE_MAX_S, lag_s: float = _LAG_S) -> None:
        self.asked = 0
        """Calls that were made."""
        self.hits = 0
        """Questions that needed none."""
        self.on_given_back: list[Callable[[], None]] = []
        """Told that a bind failed which others had been turned away for."""
        self._pool = pool
        self._age_max_s = age_max_s
        self._lag_s = lag_s
        self._entries: Latest[str, _Entry] = Latest(_REQUESTS_MAX)

    def dirty(self, nodes: Iterable[str]) -> None:
        """Something changed on these nodes."""
        now = asyncio.get_running_loop().time()
        for entry in self._entries.values():
            for node in nodes:
                entry.stale.setdefault(node, now)

    def clear(self) -> None:
        """Anything may have changed."""
        self._entries.clear()

    async def close(self) -> None:
        """End what is asked beside."""
        tasks = [entry.refreshing for entry in self._entries.values() if entry.refreshing is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def obstacles(self, key: str, request: Request, nodes: Sequence[str]) -> Mapping[str, str]:
        """What stands against nodes, of these and others; who is not in it fits. `key` stands for the request.

        Raises PoolError.
        """
        now = asyncio.get_running_loop().time()
        entry = self._entries.get(key)
        if entry is None:
            entry = _Entry(now)
        elif now - entry.asked_at > self._age_max_s:
            entry = _Entry(now, binding=entry.binding)
        self._entries[key] = entry  # as the one that was asked about last
        late = now - self._lag_s
        wanted = set(nodes).difference(entry.members)
        wanted |= {node for node, since in entry.stale.items() if since <= late and node in entry.members}
        if not wanted and entry.stale and all(node in entry.obstacles for node in nodes):
            # Who is told that nothing fits is not tried again soon: what changed is asked before that.
            wanted = entry.stale.keys() & entry.members.keys()
        if wanted:
            await self._learn(entry, request, sorted(wanted))
            return entry.obstacles
        self.hits += 1
        if entry.stale and (entry.refreshing is None or entry.refreshing.done()):
            # The next filter finds it asked.
            entry.refreshing = asyncio.create_task(self._refresh(entry, request))
        return entry.obstacles

    async def _refresh(self, entry: _Entry, request: Request) -> None:
        await asyncio.sleep(self._lag_s / 4)  # what changes meanwhile is asked along
        for node in entry.stale.keys() - entry.members.keys():
            del entry.stale[node]  # of another cluster, or not asked about for pods of this kind
        with contextlib.suppress(PoolError):  # who needs it asks again
            await self._learn(entry, request, [node for node in entry.stale if node in entry.members])

    async def _learn(self, entry: _Entry, request: Request, nodes: Sequence[str]) -> None:
        before = {node: entry.stale.pop(node) for node in nodes if node in entry.stale}
        try:  # what changes while it is asked is stale again
            found = {fit.node_id: fit for fit in await self.ask(request, nodes)}
            for node in nodes:
                fit = found.get(node)
                entry.members[node] = fit.members if fit is not None else 0
                if fit is not None and fit.fits:
                    entry.obstacles.pop(node, None)
                else:
                    entry.obstacles[node] = _NOT_OURS if fit is None else f"aliquot: {fit.detail or fit.reason}"
                if entry.members[node] and entry.binding[node]:
                    _count(entry, node, -entry.binding[node])
        except BaseException:
            entry.stale.update(before)
            raise

    def turned_away(self, key: str) -> bool:
        """Whether a pod for which no node was left would fit somewhere, were it not for binds under way."""
        entry = self._entries.get(key)
        if entry is None or _TAKEN not in entry.obstacles.values():
            return False
        entry.turned_away = True
        return True

    @contextlib.contextmanager
    def binding(self, key: str, node: str) -> Iterator[None]:
        """A pod of this kind is being bound to the node meanwhile; it stays counted unless this raises."""
        entry = self._entries.get(key)
        if entry is None or not entry.members.get(node):
            yield  # nothing is known that could be counted
            return
        entry.binding[node] += 1
        _count(entry, node, -1)
        try:
            yield
        except BaseException:
            _count(entry, node, 1)
            entry.stale.setdefault(node, asyncio.get_running_loop().time())
            if entry.turned_away:
                entry.turned_away = False
                for tell in self.on_given_back:
                    tell()
            raise
        finally:
            entry.binding[node] -= 1
            if not entry.binding[node]:
                del entry.binding[node]

    async def scores(self, key: str, request: Request, nodes: Sequence[str]) -> dict[str, int]:
        """How good nodes are, to be compared with one another: they are scored together, and that again soon.

        Raises PoolError.
        """
        now = asyncio.get_running_loop().time()
        entry = self._entries.get(key) or _Entry(now)
        if now - entry.scored_at > _SCORES_KEPT_S or not entry.scores.keys() >= set(nodes):
            entry.scores = {fit.node_id: fit.score for fit in await self.ask(request, nodes)}
            entry.scored_at = now
        return {node: entry.scores.get(node, 0) for node in nodes}

    async def ask(self, request: Request, nodes: Sequence[str]) -> list[NodeFit]:
        """What the coordinator says of these nodes now, with scores. Raises PoolError."""
        found: list[NodeFit] = []
        for begin in range(0, len(nodes), MAX_FITS_NODES):
            self.asked += 1
            found += await self._pool.fits(request, nodes[begin : begin + MAX_FITS_NODES])
        return found


def _count(entry: _Entry, node: str, more: int) -> None:
    """So many more pods of this kind fit there."""
    entry.members[node] += more
    if entry.members[node] <= 0:
        entry.obstacles.setdefault(node, _TAKEN)
    elif entry.obstacles.get(node) == _TAKEN:
        del entry.obstacles[node]
