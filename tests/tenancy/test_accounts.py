"""Accounts: questions open none, and those of names that nobody declared go when nothing is left of their use."""

from __future__ import annotations

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.tenancy.specs import QueuePolicy
from aliquot.coordinator.core.commands.queries import DryRun, Explain
from aliquot.coordinator.core.evolve.snapshot import state_hash
from aliquot.coordinator.core.known.config import CoreConfig
from tests.core.harness import Books, node, request
from tests.tenancy.declaring import declare, root, tenant

HOUR_MS = 3_600_000


def pool() -> Books:
    books = Books(CoreConfig(retain_ended_ms=1_000))
    books.do(c.DeclareNode(node("one", 4, agentless=True)))
    declare(books, root(QueuePolicy.FAIR_SHARE, half_life_ms=HOUR_MS), tenant("declared", 1))
    return books


def runs(books: Books, name: str, *, queue: str = "") -> None:
    """A lease of this tenant, for an hour."""
    lease = books.allocate(request(500, tenant=name, queue=queue))
    books.advance(HOUR_MS)
    books.do(c.Release(lease.lease_id))
    books.settle()


def test_questions_about_tenants_that_nobody_knows_leave_nothing() -> None:
    books = pool()
    before = set(books.state.tenancy.accounts)
    for number in range(100):
        assert books.ask(Explain(request(500, tenant=f"t{number}", queue=f"q{number}"))).fits_now
        books.ask(DryRun(c.Allocate("l-dry", request(500, tenant=f"u{number}"))))
    assert set(books.state.tenancy.accounts) == before


def test_an_account_that_is_opened_meanwhile_counts_in_what_was_remembered() -> None:
    books = pool()
    declare(books, tenant("limited", 0, 1))
    assert books.ask(Explain(request(1000, tenant="limited"))).fits_now
    books.allocate(request(500, tenant="limited"))
    assert not books.ask(Explain(request(1000, tenant="limited"))).fits_now


def test_accounts_of_names_that_nobody_declared_go_when_their_use_has_faded() -> None:
    books = pool()
    for number in range(5):
        runs(books, f"t{number}", queue=f"q{number}")
    runs(books, "declared")
    held = {("t", f"t{number}") for number in range(5)} | {("q", f"q{number}") for number in range(5)}
    assert held <= set(books.state.tenancy.accounts)
    left = len(books.restored().tenancy.accounts)
    assert left >= len(held), "a snapshot has them"
    snapshot = books.restored()

    books.advance(60 * HOUR_MS)
    books.advance(1_000)
    for _ in range(6):
        runs(books, "declared")
        books.advance(2_000)

    assert not held & set(books.state.tenancy.accounts)
    assert ("t", "declared") in books.state.tenancy.accounts
    assert not held & set(books.read().books._tenancy.accounts)
    assert state_hash(books.restored()) == state_hash(books.state) == state_hash(books.replayed())
    assert snapshot.tenancy.averages(books.now_ms) == (), "and a snapshot from before is no different by now"

    runs(books, "t1", queue="q1")
    assert ("t", "t1") in books.state.tenancy.accounts
    assert state_hash(books.restored()) == state_hash(books.state) == state_hash(books.replayed())


def test_whoever_still_holds_something_keeps_the_account() -> None:
    books = pool()
    holding = books.allocate(request(500, tenant="guest"))
    books.advance(100 * HOUR_MS)
    runs(books, "declared")
    books.advance(2_000)
    assert books.state.tenancy.accounts["t", "guest"].slices == len(holding.holding)
