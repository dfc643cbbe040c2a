"""Lets the core see what leases do, look after look."""

from __future__ import annotations

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.known.use_windows import Seen, Span
from tests.core.harness import Books

LOOK_MS = 60_000


def quiet(*, processes: int = 1, started: bool = False, device_milli: int = 0, alone: bool = False) -> Span:
    """Nothing is done; the slice's id is filled in by who sees it."""
    return Span("", LOOK_MS, LOOK_MS, 0, 0, 0, processes, started, device_milli, -1, alone)


def busy(milli: int = 500, *, low_milli: int = 0, power_permille: int = -1, alone: bool = False) -> Span:
    """So much of the device is used."""
    return Span("", LOOK_MS, LOOK_MS, milli, low_milli, milli * LOOK_MS, 1, False, milli, power_permille, alone)


def unseen() -> Span:
    """Nothing is known."""
    return Span("", LOOK_MS, 0, 0, 0, 0, 0)


class Watcher:
    """What the coordinator sees of leases, a minute a look."""

    def __init__(self, books: Books) -> None:
        self._books = books

    def see(self, lease: Lease, span: Span, *, looks: int, told: bool = False) -> None:
        """All slices of a lease do the same for so many looks. `told`: its launcher is kept informed."""
        self.see_each(lease, [span] * len(lease.current), looks=looks, told=told)

    def see_each(self, lease: Lease, spans: list[Span] | list[Span | None], *, looks: int, told: bool = False) -> None:
        """Each slice does something else; of those with None nothing is said at all."""
        for _ in range(looks):
            now = self._books.again(lease)
            if now.ending or now.ended:
                return
            self._books.now_ms += LOOK_MS
            seen = tuple(
                span._replace(slice_id=piece.slice_id)
                for piece, span in zip(now.current, spans, strict=True)
                if span is not None
            )
            self._books.do(c.LookAtUse((Seen(lease.lease_id, seen, now.use.warned if told else 0),)))
            self._books.settle()

    def see_all(self, leases: list[tuple[Lease, Span]], *, looks: int) -> None:
        """Several leases in the same looks, with one slice each."""
        for _ in range(looks):
            self._books.now_ms += LOOK_MS
            seen = [
                Seen(lease.lease_id, (span._replace(slice_id=self._books.again(lease).current[0].slice_id),))
                for lease, span in leases
            ]
            self._books.do(c.LookAtUse(tuple(seen)))
            self._books.settle()


def released_by(books: Books, lease: Lease) -> str:
    """Why a lease ends."""
    return books.again(lease).end_reason
