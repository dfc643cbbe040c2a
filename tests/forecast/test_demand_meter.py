"""What is held and what waits, added up to the millisecond."""

from __future__ import annotations

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.demand import HOUR_MS, WHOLE
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.values.types import RequestSpec
from aliquot.coordinator.reading.demand import DemandMeter
from aliquot.coordinator.writing.commits import whole_state
from tests.core.harness import Books, node, request


class Followed:
    """A core, and a meter that is told of each change of a lease, by a clock that is moved by hand."""

    def __init__(self) -> None:
        self.books = Books()
        self.books.now_ms = 100 * HOUR_MS
        self.books.connect(node("n", 2, model="A100-40", pool="a"))
        self.view = self.books.read()
        self.meter = DemandMeter(self, [], self.view.totals)
        self.known: dict[str, Lease] = {}

    def now_ms(self) -> int:
        return self.books.now_ms

    monotonic_ms = now_ms

    def follow(self) -> None:
        """As the outbox does."""
        for old, new in self.view.apply(whole_state(self.books.state)):
            self.meter.lease_changed(old, new)

    def ask(self, spec: RequestSpec) -> Lease:
        lease = self.books.allocate(spec)
        self.books.settle()
        self.follow()
        return self.books.again(lease)

    def take(self, hour: int) -> tuple[int, dict[str, int]]:
        found = self.meter.take(hour)
        return found.covered_permille, {name: milli for name, milli in found.milli if milli}


def test_what_is_held_and_what_waits_are_both_demand() -> None:
    pool = Followed()
    pool.ask(request(1000, count=2, tenant="a"))
    pool.ask(request(1000, tenant="b", models=(("A100-40",),)))  # it waits
    pool.books.now_ms += HOUR_MS // 2
    pool.ask(request(500, tenant="b"))  # it waits for half an hour
    assert pool.meter.milli == 3500
    pool.books.now_ms += HOUR_MS // 2
    covered, hour = pool.take(100)
    assert covered == 1000
    assert hour == {
        WHOLE: 3250,
        "pool/a": 2000,
        "model/A100-40": 3000,
        "class/a/A100-40": 3250,
        "tenant/a": 2000,
        "tenant/b": 1250,
    }


def test_what_ends_counts_no_more_and_a_new_hour_begins_from_nothing() -> None:
    pool = Followed()
    lease = pool.ask(request(1000, tenant="a"))
    pool.books.now_ms += HOUR_MS
    assert pool.take(100)[1]["tenant/a"] == 1000
    pool.books.now_ms += HOUR_MS // 4
    for piece in lease.holding:
        pool.books.do(_gone(pool, lease, piece.slice_id))
    pool.follow()
    assert pool.meter.milli == 0
    pool.books.now_ms += 3 * HOUR_MS // 4
    assert pool.take(101)[1] == {
        WHOLE: 250,
        "tenant/a": 250,
        "pool/a": 250,
        "model/A100-40": 250,
        "class/a/A100-40": 250,
    }
    pool.books.now_ms += HOUR_MS
    assert pool.take(102)[1] == {}


def _gone(pool: Followed, lease: Lease, slice_id: str) -> c.ReportSlices:
    pool.books.do(c.Release(lease.lease_id))
    piece = pool.books.again(lease).find(slice_id)
    assert piece is not None
    said = c.SliceReport(slice_id, piece.lease_epoch, c.ReportStatus.GONE, 2)
    return c.ReportSlices(piece.plan.node_id, pool.books.sessions[piece.plan.node_id], (said,))


def test_a_meter_that_begins_within_an_hour_says_how_much_of_it_was_seen() -> None:
    pool = Followed()
    pool.ask(request(1000, tenant="a"))
    pool.books.now_ms += HOUR_MS // 4
    late = DemandMeter(pool, pool.view.leases.values(), pool.view.totals)
    pool.books.now_ms += 3 * HOUR_MS // 4
    found = late.take(100)
    assert found.covered_permille == 750
    assert dict(found.milli)["tenant/a"] == 1000
