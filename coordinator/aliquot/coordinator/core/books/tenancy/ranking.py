"""What the leases of one account hold, in the order in which its guarantee covers them: by priority, then by arrival.

A skip list whose links know the sums between them: a lease is added, changed or dropped, and "how much do those before
it hold" is answered, in O(log n) steps. The height of a link follows from the arrival number alone, so the same leases
make the same list, whatever order they came in.

Amounts are exact integers. Share and memory of a lease, in all and for each kind of devices that the quota names, are
packed into one integer, 64 bits each, so that one addition adds them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from aliquot.common.catalog import covers

Part = tuple[str, int, int]
"""(device model, share_milli, memory_bytes) of one slice."""

Rank = tuple[int, int]
"""(-priority, arrival): smaller is covered earlier. Arrivals are unique, so ranks are."""

HEIGHT_MAX = 20
"""Each link is in the next layer with a chance of one half: enough for a million leases."""
_BITS = 64
_MASK = (1 << _BITS) - 1
_FIRST: Rank = (-(1 << 62), -1)


class Sums(NamedTuple):
    """What some leases hold together."""

    share_milli: int
    memory_bytes: int
    by_model: Mapping[str, Sequence[int]]
    """(share_milli, memory_bytes) of each kind of devices that the quota names."""


NOTHING = Sums(0, 0, {})


class _Link:
    __slots__ = ("amounts", "lease_id", "nexts", "parts", "rank")

    def __init__(self, rank: Rank, lease_id: str, parts: tuple[Part, ...], height: int) -> None:
        self.rank = rank
        self.lease_id = lease_id
        self.parts = parts
        self.nexts: list[_Link | None] = [None] * height
        self.amounts = [0] * height
        """By layer: what is held from here up to, and without, the next link of the layer."""


class RankedHoldings:
    """See the module's docstring."""

    __slots__ = ("_columns", "_columns_of", "_head", "_layers", "_ranks", "version")

    def __init__(self, models: Iterable[str] = ()) -> None:
        """`models`: those that are counted by themselves, too, or kinds of them."""
        self._columns = {model: 2 * _BITS * number for number, model in enumerate(models, 1)}
        self._columns_of: dict[str, tuple[int, ...]] = {}
        self._head = _Link(_FIRST, "", (), HEIGHT_MAX)
        self._layers: tuple[int, ...] = (0,)
        """Those that have been in use, from the top."""
        self._ranks: dict[str, Rank] = {}
        self.version = 0
        """Moves with every change."""

    def __len__(self) -> int:
        return len(self._ranks)

    def __contains__(self, lease_id: object) -> bool:
        return lease_id in self._ranks

    def __iter__(self) -> Iterator[tuple[str, tuple[Part, ...]]]:
        """Every lease and its parts, by rank."""
        link = self._head.nexts[0]
        while link is not None:
            yield link.lease_id, link.parts
            link = link.nexts[0]

    def put(self, lease_id: str, rank: Rank, parts: Iterable[Part]) -> bool:
        """Let a lease, whose rank never changes, hold exactly these parts. False: it did already."""
        parts = tuple(parts)
        path, sums = self._find(rank)
        link = path[0].nexts[0]
        if link is not None and link.rank == rank:
            if link.parts == parts:
                return False
            more = self._packed(parts) - link.amounts[0]
            link.parts = parts
            for layer, before in enumerate(path):
                (link if layer < len(link.nexts) else before).amounts[layer] += more
        else:
            self._insert(_Link(rank, lease_id, parts, _height(rank[1])), path, sums)
            self._ranks[lease_id] = rank
        self.version += 1
        return True

    def drop(self, lease_id: str) -> bool:
        """Forget a lease. False: it was not there."""
        rank = self._ranks.pop(lease_id, None)
        if rank is None:
            return False
        path, _ = self._find(rank)
        link = path[0].nexts[0]
        assert link is not None
        own = link.amounts[0]
        for layer, before in enumerate(path):
            if layer < len(link.nexts):
                before.nexts[layer] = link.nexts[layer]
                before.amounts[layer] += link.amounts[layer]
            before.amounts[layer] -= own
        self.version += 1
        return True

    def before(self, rank: Rank) -> Sums:
        """What those hold that are covered earlier."""
        if not self._ranks:
            return NOTHING
        link, held = self._head, 0
        for layer in self._layers:
            following = link.nexts[layer]
            while following is not None and following.rank < rank:
                held += link.amounts[layer]
                link, following = following, following.nexts[layer]
        return self._unpacked(held + link.amounts[0])

    def sums(self, *, but_for: str = "") -> Sums:
        """What all hold together, or all but one."""
        if not self._ranks:
            return NOTHING
        held, link = 0, self._head
        while True:
            held += link.amounts[HEIGHT_MAX - 1]
            following = link.nexts[HEIGHT_MAX - 1]
            if following is None:
                break
            link = following
        rank = self._ranks.get(but_for)
        if rank is not None:
            own = self._find(rank)[0][0].nexts[0]
            assert own is not None
            held -= own.amounts[0]
        return self._unpacked(held)

    def _find(self, rank: Rank) -> tuple[list[_Link], list[int]]:
        """(by layer, the last link before this rank; by layer, what is held before that link, and last of all what is
        held before the rank): for changes.
        """
        path, sums = [self._head] * HEIGHT_MAX, [0] * (HEIGHT_MAX + 1)
        link, held = self._head, 0
        for layer in range(HEIGHT_MAX - 1, -1, -1):
            following = link.nexts[layer]
            while following is not None and following.rank < rank:
                held += link.amounts[layer]
                link, following = following, following.nexts[layer]
            path[layer], sums[layer] = link, held
        sums[HEIGHT_MAX] = held + link.amounts[0]
        return path, sums

    def _insert(self, link: _Link, path: list[_Link], sums: list[int]) -> None:
        own = self._packed(link.parts)
        if len(link.nexts) > len(self._layers):
            self._layers = tuple(reversed(range(len(link.nexts))))
        for layer, before in enumerate(path):
            if layer >= len(link.nexts):
                before.amounts[layer] += own
                continue
            held = sums[HEIGHT_MAX] - sums[layer]
            link.nexts[layer], before.nexts[layer] = before.nexts[layer], link
            link.amounts[layer], before.amounts[layer] = before.amounts[layer] - held + own, held

    def _packed(self, parts: Iterable[Part]) -> int:
        packed = 0
        for model, share_milli, memory_bytes in parts:
            amount = share_milli << _BITS | memory_bytes
            packed += amount
            if self._columns:
                for column in self._of(model):
                    packed += amount << column
        return packed

    def _of(self, model: str) -> tuple[int, ...]:
        """Where slices of a model are counted by themselves: as the kinds that it is of."""
        found = self._columns_of.get(model)
        if found is None:
            found = tuple(column for kind, column in self._columns.items() if covers(kind, model))
            self._columns_of[model] = found
        return found

    def _unpacked(self, packed: int) -> Sums:
        if not self._columns:
            return Sums(packed >> _BITS, packed & _MASK, NOTHING.by_model)
        by_model = {
            model: (packed >> column + _BITS & _MASK, packed >> column & _MASK)
            for model, column in self._columns.items()
        }
        return Sums(packed >> _BITS & _MASK, packed & _MASK, by_model)


def _height(arrival: int) -> int:
    """1, or with a chance of one half each time one more: from the bits of the arrival number, well mixed."""
    mixed = (arrival + 0x9E3779B97F4A7C15) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    mixed ^= mixed >> 31
    return min(HEIGHT_MAX, (mixed & -mixed).bit_length() or HEIGHT_MAX)
