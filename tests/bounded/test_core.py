"""What comes and goes leaves nothing behind in the books: many leases leave what few leases do."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TypeVar

import pytest

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.ledger.entries import EntryKind
from aliquot.coordinator.core.books.ledger.folding import DAY_MS, HOUR_MS
from aliquot.coordinator.core.books.ledger.rates import ModelRate, RateCard
from aliquot.coordinator.core.books.tenancy.specs import Budget, Period, TenantSpec
from aliquot.coordinator.core.decider import Decider
from aliquot.coordinator.core.known import memory
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.known.known import FOLDED_AT_ONCE
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.errors import DomainError
from aliquot.coordinator.core.values.types import RequestSpec
from tests.bounded.counting import everything_in
from tests.core.harness import GIB, node, request

T = TypeVar("T")

# Watching each line would more than double its time, and short tests reach the same ones.
pytestmark = pytest.mark.no_cover

BEGAN_MS = 1_790_000_000_000
CONFIG = CoreConfig(retain_ended_ms=60_000, retain_ended_max=1_000, ledger_entries_max=64)
USAGE_MAX = 64 + FOLDED_AT_ONCE


@pytest.fixture(autouse=True)
def _little_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a short day would not come to the bound of what is remembered of equal questions."""
    monkeypatch.setattr(memory, "_REMEMBERED_MAX", 64)


class Pool:
    """A core under load, without the checks after each command that would make a long day longer."""

    def __init__(self) -> None:
        self.decider = Decider(State.fresh(), CONFIG)
        self.state = self.decider.state
        self.now_ms = BEGAN_MS
        self._ids = itertools.count(1)
        self.do(c.StartLeading(1))
        spec = node("one", 4)
        self.node_id = spec.node_id
        self.do(c.RegisterNode(spec, 1))
        self.do(c.ReconcileNode(spec.node_id, 1, ()))
        self.do(c.Apply(rates=RateCard("EUR", (ModelRate("*", 2_000_000),))))
        budget = Budget(share_milli_ms=1 << 50, period=Period.MONTH)
        self.do(c.Apply(tenants=((TenantSpec("rich", budget=budget), -1),)))

    def new_id(self) -> str:
        return f"l-{next(self._ids):013d}"

    def do(self, command: c.Command[T]) -> T:
        decision = self.decider.decide(command, self.now_ms)
        self.decider.carry_out(decision, self.now_ms)
        self.state.take_touched()
        return decision.outcome

    def advance(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        while True:
            if not self.do(c.Tick()).more:
                break
        for _ in range(100):
            if not self.decider.wants_admission():
                break
            self.do(c.Admit())

    def lease(self, spec: RequestSpec, *, key: str = "") -> None:
        """One that is granted, runs for a minute and ends."""
        lease_id = self.new_id()
        self.do(c.Allocate(lease_id, spec, key=key, body_sha256=b"x" * 32))
        self.advance(1_000)
        for status in (c.ReportStatus.ACTIVE, c.ReportStatus.GONE):
            lease = self.state.leases[lease_id]
            reports = tuple(c.SliceReport(piece.slice_id, piece.lease_epoch, status, 2) for piece in lease.holding)
            if reports:
                self.do(c.ReportSlices(self.node_id, 1, reports))
            self.advance(60_000 if status is c.ReportStatus.ACTIVE else 1_000)
            if status is c.ReportStatus.ACTIVE:
                self.do(c.Release(lease_id))

    def some(self, number: int) -> None:
        """Leases of all kinds."""
        for turn in range(number):
            self.lease(request(250, GIB, tenant="a", time_limit_ms=DAY_MS), key=f"k-{turn}-{self.now_ms}")
            self.lease(request(1000, tenant="rich", queue="night", ttl_ms=60_000))
            lease_id = self.new_id()
            self.do(c.Allocate(lease_id, request(1000, count=4, gang_size=1, tenant="b", priority=turn % 3)))
            waiting = self.new_id()
            self.do(c.Allocate(waiting, request(1000, tenant="c", priority=1 + turn % 3)))  # waits, and gives up
            self.advance(100)
            self.do(c.Release(waiting))
            self.do(c.Release(lease_id))
            lease = self.state.leases[lease_id]
            for piece in lease.holding:
                self.do(
                    c.ReportSlices(
                        self.node_id, 1, (c.SliceReport(piece.slice_id, piece.lease_epoch, c.ReportStatus.GONE),)
                    )
                )
            try:
                self.do(c.Allocate(self.new_id(), request(1000, models=((f"no-{turn % 7}",),))))
            except DomainError:
                continue
        self.advance(120_000)


def kept(pool: Pool) -> Counter[str]:
    """What a decider holds, by type; but for the latest usage and its sums by the hour, which have their own bounds,
    and a log that is cut at a fixed length.
    """
    found = everything_in(pool.decider)
    usage = sum(entry.kind is EntryKind.USAGE for entry in pool.state.ledger.entries)
    assert found["Entry"] == len(pool.state.ledger.entries)
    assert usage < USAGE_MAX
    hours = (pool.now_ms - BEGAN_MS) // HOUR_MS + 1
    assert found.pop("Sums", 0) <= 2 * hours, "of two tenants that were charged"
    del found["items of Sums"]
    found["Entry"] -= usage
    found["items of list"] -= 2 * usage + len(pool.state.inventory.changes)
    return found


def assert_no_more(few: Counter[str], many: Counter[str]) -> None:
    grown = {name: (few[name], count) for name, count in many.items() if count > few[name] * 1.1 + 20}
    assert not grown, f"(before, after) of what has grown: {grown}"


def test_many_leases_leave_what_few_leases_leave() -> None:
    pool = Pool()
    pool.some(60)
    few = kept(pool)
    assert not pool.state.leases
    assert not pool.state.keys
    assert not pool.state.ended
    timers = len(pool.state.timers)
    pool.some(180)
    assert len(pool.state.timers) <= timers
    assert_no_more(few, kept(pool))


def test_many_nodes_that_come_and_go_leave_what_few_leave() -> None:
    pool = Pool()
    pool.do(c.RegisterNode(node("two", 4), 1))
    pool.do(c.ReconcileNode("n-two", 1, ()))
    staying = [pool.new_id() for _ in range(9)]
    for lease_id in staying[1:]:
        pool.do(c.Allocate(lease_id, request(1000)))
    pool.do(c.Allocate(staying[0], request(1000, gang_size=6, priority=9, tenant="c")))
    nodes = itertools.count(1)

    def come_and_go(times: int) -> None:
        for number in range(times):
            spec = node(f"passing-{next(nodes)}", 1)
            pool.do(c.RegisterNode(spec, 1))
            pool.do(c.ReconcileNode(spec.node_id, 1, ()))
            lease_id = pool.new_id()
            there = request(1000, tenant="b", preemptible=True, node_ids=(spec.node_id,))
            pool.do(c.Allocate(lease_id, there))
            pool.advance(120_000)  # whoever waits looks at whom it could end there
            pool.do(c.Allocate(pool.new_id(), request(1000, gang_size=6, priority=9, tenant=f"d{number % 9}")))
            pool.do(c.NodeSilent(spec.node_id, 1, lost=True))
            pool.do(c.RemoveNode(spec.node_id, force=True))
            pool.advance(1_000)
            for lease_id in pool.state.leases.keys() - set(staying):
                pool.do(c.Release(lease_id))
        pool.advance(120_000)

    come_and_go(120)
    few = kept(pool)
    come_and_go(240)
    assert_no_more(few, kept(pool))
