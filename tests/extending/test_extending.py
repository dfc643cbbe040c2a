"""A lease's time limit is made longer: how far, for whom, and who is not to lose by it."""

from __future__ import annotations

import pytest

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import Lease, LeaseState
from aliquot.coordinator.core.books.maintenance import WindowSpec, shown
from aliquot.coordinator.core.books.tenancy.specs import Budget, QueuePolicy
from aliquot.coordinator.core.evolve.snapshot import state_hash
from aliquot.coordinator.core.values.errors import (
    DomainError,
    ExtensionRefused,
    InvalidField,
    LeaseEndedError,
    LeaseNotFound,
    QuotaExceeded,
)
from aliquot.coordinator.core.values.types import EndReason
from tests.core.harness import Books, node
from tests.preemption.asking import ask, run, state_of
from tests.tenancy.declaring import declare, queue, root, tenant

MINUTE, HOUR = 60_000, 3_600_000


@pytest.fixture
def books() -> Books:
    books = Books()
    books.connect(node("one"))
    return books


def extend(books: Books, lease: Lease, limit_ms: int) -> Lease:
    books.do(c.ExtendLease(lease.lease_id, limit_ms, "it converges", "ann"))
    return books.again(lease)


def test_it_ends_at_its_new_time_and_not_at_the_old_one(books: Books) -> None:
    lease = run(books, time_limit_ms=HOUR)
    lease = extend(books, lease, 2 * HOUR)
    assert lease.request.time_limit_ms == 2 * HOUR
    books.advance(HOUR + MINUTE)
    assert state_of(books, lease) is LeaseState.ACTIVE
    assert state_hash(books.replayed()) == state_hash(books.restored()) == state_hash(books.state)
    books.advance(HOUR)
    assert books.again(lease).end_reason == EndReason.TIME_LIMIT


def test_the_same_limit_again_changes_nothing_and_a_shorter_one_is_refused(books: Books) -> None:
    lease = extend(books, run(books, time_limit_ms=HOUR), 2 * HOUR)
    assert books.do(c.ExtendLease(lease.lease_id, 2 * HOUR)).facts == ()
    with pytest.raises(InvalidField, match="3600 s is less than the 7200 s"):
        extend(books, lease, HOUR)


def test_what_has_no_limit_or_is_over_is_not_extended(books: Books) -> None:
    with pytest.raises(InvalidField, match="no time limit"):
        extend(books, run(books), HOUR)
    ended = run(books, time_limit_ms=HOUR)
    books.do(c.Release(ended.lease_id))
    with pytest.raises(LeaseEndedError):
        extend(books, ended, 2 * HOUR)
    with pytest.raises(LeaseNotFound):
        books.do(c.ExtendLease("l-nobody", HOUR))


def test_what_waits_has_the_longer_limit_once_it_is_granted(books: Books) -> None:
    running = [run(books) for _ in range(len(list(books.state.inventory.device_uuids())))]
    lease = extend(books, ask(books, time_limit_ms=HOUR), 3 * HOUR)
    books.do(c.Release(running[0].lease_id))
    books.report(books.again(running[0]), c.ReportStatus.GONE)
    books.settle()
    lease = books.activate(books.again(lease))
    books.advance(2 * HOUR)
    assert state_of(books, lease) is LeaseState.ACTIVE
    books.advance(HOUR)
    assert books.again(lease).end_reason == EndReason.TIME_LIMIT


def test_a_lease_that_comes_back_from_its_queue_keeps_it(books: Books) -> None:
    lease = extend(books, run(books, time_limit_ms=HOUR, preemptible=True), 2 * HOUR)
    books.do(c.Cordon("n-one", drain=True))
    books.report(books.again(lease), c.ReportStatus.GONE)
    books.connect(node("two"))
    books.settle()
    lease = books.activate(books.again(lease))
    books.advance(HOUR + MINUTE)
    assert state_of(books, lease) is LeaseState.ACTIVE


@pytest.mark.parametrize(("said", "wanted", "refused"), [(2, 3, True), (2, 2, False), (0, 2, True), (None, 9, False)])
def test_its_queue_says_how_far(books: Books, said: int | None, wanted: int, refused: bool) -> None:
    declare(books, root(QueuePolicy.PRIORITY, extend_to_ms=None if said is None else said * HOUR))
    declare(books, queue("short"))
    lease = run(books, time_limit_ms=HOUR, queue="short")
    if not refused:
        assert extend(books, lease, wanted * HOUR).request.time_limit_ms == wanted * HOUR
        return
    with pytest.raises(ExtensionRefused, match="queue short") as refusal:
        extend(books, lease, wanted * HOUR)
    assert refusal.value.until_ms == lease.granted_ms + (said or 0) * HOUR


def test_whose_budget_is_used_up_is_not_extended(books: Books) -> None:
    declare(books, tenant("a", budget=Budget(share_milli_ms=1000 * HOUR)))
    lease = run(books, time_limit_ms=3 * HOUR)
    books.advance(HOUR + MINUTE)
    with pytest.raises(QuotaExceeded):
        extend(books, lease, 4 * HOUR)
    assert state_of(books, lease) is LeaseState.ACTIVE


def test_maintenance_that_it_would_have_ended_before_is_not_disturbed(books: Books) -> None:
    lease = run(books, time_limit_ms=HOUR, grace_ms=MINUTE)
    starts_ms = books.now_ms + 2 * HOUR
    starts_ms -= starts_ms % MINUTE
    span = WindowSpec("w", start=wall(starts_ms), end=wall(starts_ms + HOUR), lead_ms=6 * HOUR, node_ids=("n-one",))
    books.do(c.DeclareMaintenance(span))
    books.settle()
    with pytest.raises(ExtensionRefused, match="node one is maintained from") as refusal:
        extend(books, lease, 3 * HOUR)
    until_ms = refusal.value.until_ms
    assert until_ms == starts_ms - MINUTE
    assert extend(books, lease, until_ms - lease.granted_ms).request.time_limit_ms == until_ms - lease.granted_ms


def test_who_waits_for_its_end_with_devices_reserved_is_not_kept_waiting(books: Books) -> None:
    devices = len(list(books.state.inventory.device_uuids()))
    leases = [run(books, time_limit_ms=2 * HOUR) for _ in range(devices)]
    waits = ask(books, count=devices)
    books.advance(10 * MINUTE)
    books.settle()
    hold = books.state.holds[waits.lease_id]
    assert hold.start_ms
    with pytest.raises(ExtensionRefused, match="a lease that waits is to start there"):
        extend(books, leases[0], 3 * HOUR)
    # Whose reserved start has passed already loses nothing: it waits for others.
    assert state_of(books, waits) is LeaseState.QUEUED


def test_an_extension_is_whole_or_not_at_all(books: Books) -> None:
    lease = run(books, time_limit_ms=HOUR)
    before = state_hash(books.state)
    for command in (c.ExtendLease(lease.lease_id, HOUR - 1), c.ExtendLease("l-nobody", HOUR)):
        with pytest.raises(DomainError):
            books.do(command)
    assert state_hash(books.state) == before


def wall(at_ms: int) -> str:
    """As windows are written."""
    return shown(at_ms).removesuffix(" UTC").replace(" ", "T")
