"""Leases that run, wait, give way and go, as tests of preemption ask for them."""

from __future__ import annotations

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import Lease, LeaseState
from tests.core.harness import Books, request


def run(books: Books, share: int = 1000, **more: object) -> Lease:
    """A lease that is granted and confirmed."""
    lease = books.allocate(request(share, **more))  # type: ignore[arg-type]
    books.settle()
    assert books.again(lease).state is LeaseState.GRANTED
    return books.activate(books.again(lease))


def ask(books: Books, share: int = 1000, **more: object) -> Lease:
    """A request, and what follows from it at once."""
    lease = books.allocate(request(share, **more))  # type: ignore[arg-type]
    books.settle()
    return books.again(lease)


def leave(books: Books, lease: Lease) -> None:
    """The agents say that the lease's processes are gone."""
    books.report(lease, c.ReportStatus.GONE)
    books.settle()


def state_of(books: Books, lease: Lease) -> LeaseState:
    return books.again(lease).state


def all_leave(books: Books, leases: list[Lease]) -> int:
    """Those of them that are told to go do so, and whoever gets their devices begins. How many preemptions there have
    been of them all.
    """
    for lease in leases:
        if state_of(books, lease) is LeaseState.PREEMPTING:
            leave(books, lease)
    for lease in tuple(books.state.leases.values()):
        if lease.state is LeaseState.GRANTED:
            books.activate(lease)
    return sum(books.again(lease).preemptions for lease in leases)
