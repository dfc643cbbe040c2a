"""Which requests a guarantee covers as they come, and how long those take to start."""

from __future__ import annotations

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import LeaseState
from aliquot.coordinator.core.evolve.snapshot import state_hash
from aliquot.coordinator.reading.metrics import Metrics
from aliquot.coordinator.reading.view import View
from tests.core.harness import Books, node, request
from tests.tenancy.declaring import declare, tenant


def observed(metrics: Metrics) -> tuple[float, float]:
    """How many guaranteed starts were seen, and how long they took."""
    (family,) = [each for each in metrics.collect() if each.name == "aliquot_guaranteed_start_seconds"]
    values = {sample.name.rpartition("_")[2]: sample.value for sample in family.samples}
    return values["count"], values["sum"]


def test_what_a_guarantee_covers_when_it_comes_counts_from_then_until_it_is_active() -> None:
    books = Books()
    books.connect(node("one", 2))
    declare(books, tenant("owner", 1), tenant("other"))
    borrowed = [books.activate(books.allocate(request(1000, tenant="other"))) for _ in range(2)]
    assert not any(lease.entitled for lease in borrowed)
    waits = books.allocate(request(1000, tenant="owner"))
    assert waits.entitled, "its guarantee covers it, although it has to wait"
    assert not books.allocate(request(1000, tenant="owner")).entitled, "the second is beyond the guarantee"
    books.advance(40_000)
    books.settle()
    going = next(lease for lease in map(books.again, borrowed) if lease.state is not LeaseState.ACTIVE)
    books.report(going, c.ReportStatus.GONE)
    books.settle()
    metrics = Metrics(View(), int)
    before = books.again(waits)
    after = books.activate(before)
    metrics.lease_changed(before, after)
    assert observed(metrics) == (1, (after.active_ms - after.created_ms) / 1000)
    metrics.lease_changed(after, after)
    for lease in borrowed:
        metrics.lease_changed(None, lease)
    assert observed(metrics)[0] == 1
    assert state_hash(books.replayed()) == state_hash(books.state) == state_hash(books.restored())
