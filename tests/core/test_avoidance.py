"""A device that failed a lease is avoided while there is another, and no longer: found by the simulation (seed 19)."""

from __future__ import annotations

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import LeaseState
from aliquot.coordinator.core.commands.queries import ExplainLease
from tests.core.harness import Books, node, request


def test_the_only_device_there_is_is_tried_again_after_the_back_off() -> None:
    books = Books()
    books.connect(node("one", 1))
    lease = books.allocate(request(500))
    books.report(lease, c.ReportStatus.FAILED)
    assert books.again(lease).waiting
    books.settle()
    assert books.again(lease).waiting, "it rests first"

    books.advance(books.config.requeue_backoff_ms)

    assert books.again(lease).state is LeaseState.GRANTED


def test_another_device_is_preferred_to_the_one_that_failed() -> None:
    books = Books()
    books.connect(node("one", 2))
    lease = books.allocate(request(500))
    (failed,) = lease.holding
    books.report(lease, c.ReportStatus.FAILED)

    books.advance(books.config.requeue_backoff_ms)

    (piece,) = books.again(lease).holding
    assert piece.plan.device_uuid != failed.plan.device_uuid


def test_the_explanation_says_that_the_failed_device_will_be_tried_again() -> None:
    books = Books()
    books.connect(node("one", 1))
    lease = books.allocate(request(500))
    books.report(lease, c.ReportStatus.FAILED)

    explained = books.ask(ExplainLease(lease.lease_id))

    assert explained.fits_now
    assert "in back-off" in explained.summary
