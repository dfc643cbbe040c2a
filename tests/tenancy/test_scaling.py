"""Rules that hold elastic leases back: by the time of day, by who waits, by how busy they are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import Lease, SliceState
from aliquot.coordinator.core.books.tenancy.scaling import Keep, ScaleRule, civil, in_window, read_cron
from aliquot.coordinator.core.books.tenancy.specs import QueueSpec
from aliquot.coordinator.core.values.errors import InvalidField
from tests.core.harness import Books, node, request
from tests.tenancy.declaring import declare

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MONDAY = datetime(2026, 11, 23, tzinfo=UTC)
HOUR_MS = 3_600_000


def ms(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(milliseconds=1)


@given(day=st.integers(-200_000, 200_000))
def test_days_are_those_of_the_calendar(day: int) -> None:
    found = EPOCH + timedelta(days=day)
    assert civil(day) == (found.year, found.month, found.day)


@pytest.mark.parametrize(
    ("text", "now", "last"),
    [
        ("* * * * *", "2026-11-21T12:34:56", "2026-11-21T12:34"),
        ("0 8 * * mon-fri", "2026-11-21T12:00", "2026-11-20T08:00"),  # a Saturday
        ("0 8 * * 1-5", "2026-11-23T07:59", "2026-11-20T08:00"),
        ("*/15 22-23 * * *", "2026-11-21T00:10", "2026-11-20T23:45"),
        ("30 6 1 * *", "2026-11-03T00:00", "2026-11-01T06:30"),
        ("0 0 * feb,nov sun", "2026-11-21T00:00", "2026-11-15T00:00"),
        ("0 0 * * 7", "2026-11-21T00:00", "2026-11-15T00:00"),
        ("0 0 20 * mon", "2026-11-21T00:00", "2026-11-20T00:00"),  # either of the two
        ("5/20 * * * *", "2026-11-21T12:44", "2026-11-21T12:25"),
        ("0 0 1 1 *", "2026-11-21T00:00", None),  # longer ago than a window can last
    ],
)
def test_the_last_beginning_of_a_window(text: str, now: str, last: str | None) -> None:
    moment = datetime.fromisoformat(now).replace(tzinfo=UTC)
    expected = ms(datetime.fromisoformat(last).replace(tzinfo=UTC)) if last else None
    assert read_cron(text).last_before(ms(moment)) == expected


def test_a_window_is_open_from_its_beginning_until_it_is_over() -> None:
    rule = ScaleRule(cron="0 8 * * mon", lasting_ms=10 * HOUR_MS)
    begins = ms(MONDAY) + 8 * HOUR_MS
    moments = (begins - 1, begins, begins + 10 * HOUR_MS - 1, begins + 10 * HOUR_MS)
    assert [in_window(rule, moment) for moment in moments] == [False, True, True, False]


@pytest.mark.parametrize(
    "rule",
    [
        ScaleRule(),
        ScaleRule(cron="0 8 * *", lasting_ms=HOUR_MS),
        ScaleRule(cron="60 8 * * *", lasting_ms=HOUR_MS),
        ScaleRule(cron="0 8-5 * * *", lasting_ms=HOUR_MS),
        ScaleRule(cron="0 8 * * someday", lasting_ms=HOUR_MS),
        ScaleRule(cron="*/0 * * * *", lasting_ms=HOUR_MS),
        ScaleRule(cron="0 8 * * *"),
        ScaleRule(cron="0 8 * * *", lasting_ms=8 * 24 * HOUR_MS),
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
    books, lease = grown(ScaleRule(cron="0 8 * * mon-fri", lasting_ms=HOUR_MS))
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


def test_who_does_not_use_what_it_has_goes_back_to_its_start() -> None:
    books, lease = grown(ScaleRule(busy_below_permille=200))
    books.advance(60_000)
    assert staying(books, lease) == 4, "nobody has measured it"
    books.planner.measured({lease.lease_id: 200})
    books.advance(60_000)
    assert staying(books, lease) == 4
    books.planner.measured({lease.lease_id: 199})
    books.advance(60_000)
    assert staying(books, lease) == 1
