"""The policy `clustering` in a coordinator: what sits on each node is counted as leases come and go."""

from __future__ import annotations

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.known.config import CoreConfig
from tests.core.harness import Books, node, request


def node_of(lease: Lease) -> str:
    return lease.slices[0].plan.node_id


def test_like_goes_with_like() -> None:
    books = Books(CoreConfig(policy="clustering"))
    for name in ("one", "two"):
        books.connect(node(name, 4))
    part = books.allocate(request(500))
    whole = books.allocate(request(1000))
    assert node_of(part) != node_of(whole), "an empty node is preferred to one with leases of another kind"

    assert node_of(books.allocate(request(300))) == node_of(part)
    assert node_of(books.allocate(request(1000))) == node_of(whole)


def test_kinds_are_counted_live_and_derived_from_the_books_alike() -> None:
    books = Books(CoreConfig(policy="clustering"))
    books.connect(node("one", 4))
    leases = [books.activate(books.allocate(request(share, gang_size=2))) for share in (500, 1000)]
    inventory = books.state.inventory
    assert inventory.node("n-one").kinds == {1: 2, 2: 2}
    assert inventory.table.kinds[0] == 0b110
    assert books.restored().inventory.canonical() == inventory.canonical()
    assert books.replayed().inventory.canonical() == inventory.canonical()

    for lease in leases:
        books.do(c.Release(lease.lease_id))
        books.report(books.again(lease), c.ReportStatus.GONE)

    assert inventory.node("n-one").kinds == {}
    assert inventory.table.kinds[0] == 0
