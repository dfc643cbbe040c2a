"""Rules that hold elastic leases back: by the time of day, by who waits, by how busy they are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import Lease, SliceState
from aliquot.coordinator.core.books.tenancy.scaling import Keep, ScaleRule, in_window
from aliquot.coordinator.core.books.tenancy.specs import QueueSpec
from aliquot.coordinator.core.known.use_windows import Seen, Span
from aliquot.coordinator.core.values.errors import InvalidField
from tests.core.harness import Books, node, request
from tests.tenancy.declaring import declare

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MONDAY = datetime(2026, 11, 23, tzinfo=UTC)
HOUR_MS = 3_600_000


def ms(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(milliseconds=1)


def test_a_window_is_open_from_its_beginning_until_it_is_over() -> None:
    rule = ScaleRule(when="mon 08:00-18:00")
    begins = ms(MONDAY) + 8 * HOUR_MS
    moments = (begins - 1, begins, begins + 10 * HOUR_MS - 1, begins + 10 * HOUR_MS)
    assert [in_window(rule, moment) for moment in moments] == [False, True, True, False]


def test_a_window_of_a_zone_that_is_not_known_any_more_is_closed() -> None:
    assert not in_window(ScaleRule(when="daily Nowhere/Town"), ms(MONDAY))


@pytest.mark.parametrize(
    "rule",
    [
        ScaleRule(),
        ScaleRule(when="someday"),
        ScaleRule(when="08:00-08:00"),
        ScaleRule(when="daily 08:00-09:00 Nowhere/Town"),
        ScaleRule(waiting_at_least=-1),
        ScaleRule(busy_below_permille=1001),
    ],
)
def test_rules_that_say_nothing_sensible_are_refused(rule: ScaleRule) -> None:
    with pytest.raises(InvalidField, match="scaling"):
        declare(Books(), QueueSpec("q", scaling=(rule,)))


def grown(*rules: ScaleRule, least: int = 0, gang: int = 1) -> tuple[Books, Lease]:
    """An elastic lease that has grown to four devices, in a queue that gets these rules then."""
    books = Books()
    books.now_ms = ms(MONDAY)
    books.connect(node("one", 4))
    lease = books.allocate(request(queue="q", min_count=least, max_count=4, gang_size=gang))
    books.settle()
    books.activate(lease)
    books.advance(5_000)
    lease = books.activate(lease)
    books.do(c.AcknowledgeShape(lease.lease_id, lease.shape))
    assert len(lease.current) == 4
    declare(books, QueueSpec("above"), QueueSpec("q", parent="above", scaling=rules))
    return books, lease


def staying(books: Books, lease: Lease) -> int:
    return len(books.again(lease).current)


def test_in_a_window_it_gives_back_what_is_extra_and_grows_again_afterwards() -> None:
    books, lease = grown(ScaleRule(when="weekdays 08:00-09:00"))
    books.advance(8 * HOUR_MS - 60_000)
    assert staying(books, lease) == 4
    books.advance(120_000)
    assert staying(books, lease) == 1
    leaving = [piece for piece in books.again(lease).slices if piece.shed]
    assert {piece.state for piece in leaving} == {SliceState.PREEMPTING}, "with notice"
    assert leaving[0].reason == "rule 1 of queue q"
    books.do(c.AcknowledgeShape(lease.lease_id, books.again(lease).shape))
    for piece in leaving:
        said = c.SliceReport(piece.slice_id, piece.lease_epoch, c.ReportStatus.GONE)
        books.do(c.ReportSlices("n-one", books.sessions["n-one"], (said,)))
    books.advance(30 * 60_000)
    assert staying(books, lease) == 1
    books.advance(30 * 60_000)
    assert staying(books, lease) == 4


def test_while_many_wait_it_keeps_its_least() -> None:
    books, lease = grown(ScaleRule(Keep.LEAST, waiting_at_least=2), least=1, gang=2)
    books.advance(60_000)
    assert staying(books, lease) == 4
    for _ in range(2):
        books.allocate(request(count=4, queue="q", tenant="b"))
    books.settle()
    books.advance(60_000)
    books.advance(1_000)
    assert staying(books, lease) == 1


def look(books: Books, lease: Lease, milli: int | None) -> None:
    """Its devices were so busy in the minute that ends now; None: nobody knows."""
    books.advance(60_000)
    known_ms, busy = (60_000, milli) if milli is not None else (0, 0)
    spans = tuple(
        Span(piece.slice_id, 60_000, known_ms, busy, busy, busy * known_ms, 1) for piece in books.again(lease).current
    )
    books.do(c.LookAtUse((Seen(lease.lease_id, spans),)))
    books.advance(60_000)


def test_who_does_not_use_what_it_has_goes_back_to_its_start() -> None:
    books, lease = grown(ScaleRule(busy_below_permille=200))
    books.advance(60_000)
    assert staying(books, lease) == 4, "nobody has measured it"
    look(books, lease, None)
    assert staying(books, lease) == 4, "unknown is not idle"
    look(books, lease, 200)
    assert staying(books, lease) == 4
    look(books, lease, 194)
    assert staying(books, lease) == 1
