"""Elastic leases under random events: whoever waits comes first, enough always stays, and the bill is exact."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.elastic import bounds_of, members_of
from aliquot.coordinator.core.books.leases.records import Lease, SliceState
from aliquot.coordinator.core.books.ledger.ledger import CHARGED, open_entries
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.values.errors import DomainError
from tests.core.harness import node, request
from tests.core.machine import BooksMachine, walks
from tests.tenancy.declaring import declare, tenant
from tests.tenancy.test_machine import Judge

# Watching each line would more than double its time, and short tests reach the same ones.
pytestmark = pytest.mark.no_cover

SPECS = {"one": node("one", 4), "two": node("two", 3), "bare": node("bare", 2, agentless=True)}
CONFIG = CoreConfig(confirm_timeout_ms=20_000, growth_rest_ms=10_000, requeues_max=3, preemptions_max=2)


class ElasticMachine(BooksMachine):
    """Two tenants, one of them with a guarantee, a third without anything declared."""

    def __init__(self) -> None:
        super().__init__(CONFIG, SPECS.values())
        self.judge = Judge(CONFIG)
        self.charged: Counter[str] = Counter()
        """share_milli·ms by tenant, integrated here from the slices' states alone."""
        self.charged_to_ms = self.books.now_ms
        declare(self.books, tenant("a", guaranteed=3), tenant("b", limit=6))

    def leases(self) -> list[Lease]:
        return [lease for lease in self.books.state.leases.values() if not lease.ended]

    def pass_time(self, milliseconds: int) -> None:
        """In steps, so that what is due in between is done when it is due, and charged by the states of then."""
        left = milliseconds
        while left > 0:
            due_ms = self.books.decider.next_due_ms(self.books.now_ms)
            now_ms = self.books.now_ms
            step = min(left, max(1, (due_ms or now_ms + left) - now_ms))
            for lease in self.books.state.leases.values():
                for piece in lease.slices:
                    bare = piece.state is SliceState.GRANTED and piece.plan.node_id == "n-bare"
                    if bare or (piece.state in CHARGED and piece.billing):
                        self.charged[lease.request.tenant] += piece.plan.share_milli * step
            self.books.advance(step)
            left -= step

    @rule(
        share=st.sampled_from([500, 1000, 1000]),
        count=st.sampled_from([1, 1, 2]),
        gang=st.sampled_from([1, 2]),
        fewer=st.sampled_from([0, 0, 1]),
        more=st.sampled_from([0, 1, 3, 8]),
        owner=st.sampled_from(["a", "b", "c"]),
        priority=st.integers(-1, 1),
    )
    def ask(self, share: int, count: int, gang: int, fewer: int, more: int, owner: str, priority: int) -> None:  # noqa: PLR0917
        spec = request(
            share,
            count=count,
            gang_size=gang,
            tenant=owner,
            priority=priority,
            min_count=max(1, gang - fewer) * count if fewer else 0,
            max_count=(gang + more) * count if more else 0,
            grace_ms=10_000,
            preemptible=priority < 0,
        )
        try:
            self.books.allocate(spec)
        except DomainError as error:
            assert error.reason
        self.books.settle()

    @rule()
    def everybody_keeps_up(self) -> None:
        """Agents confirm, launchers acknowledge, and time passes until something may grow."""
        self.agents()
        for lease_id in list(self.books.state.elastic):
            self.refused(c.AcknowledgeShape(lease_id, self.books.state.leases[lease_id].shape))
        self.agents()
        self.pass_time(11_000)
        self.agents()

    @rule()
    def agents(self) -> None:
        for lease in self.leases():
            for piece in lease.holding:
                if piece.plan.node_id in self.books.sessions:
                    stops = piece.ending and not (piece.shed and piece.state is SliceState.PREEMPTING)
                    status = c.ReportStatus.GONE if stops else c.ReportStatus.ACTIVE
                    said = c.SliceReport(piece.slice_id, piece.lease_epoch, status, 2)
                    self.books.do(c.ReportSlices(piece.plan.node_id, self.books.sessions[piece.plan.node_id], (said,)))

    @rule(pick=st.integers(0), older=st.booleans())
    def acknowledge(self, pick: int, older: bool) -> None:
        if found := self.leases():
            lease = found[pick % len(found)]
            self.refused(c.AcknowledgeShape(lease.lease_id, lease.shape - older))

    @rule(pick=st.integers(0), status=st.sampled_from([c.ReportStatus.FAILED, c.ReportStatus.GONE]))
    def a_slice_is_lost(self, pick: int, status: c.ReportStatus) -> None:
        pieces = [p for lease in self.leases() for p in lease.holding if p.plan.node_id in self.books.sessions]
        if pieces:
            piece = pieces[pick % len(pieces)]
            said = c.SliceReport(piece.slice_id, piece.lease_epoch, status)
            self.books.do(c.ReportSlices(piece.plan.node_id, self.books.sessions[piece.plan.node_id], (said,)))

    @rule(pick=st.integers(0))
    def release(self, pick: int) -> None:
        if found := self.leases():
            self.books.do(c.Release(found[pick % len(found)].lease_id))

    @rule(name=st.sampled_from(["one", "two"]), back=st.booleans(), forget=st.booleans())
    def a_node_is_lost(self, name: str, back: bool, forget: bool) -> None:
        node_id = f"n-{name}"
        self.books.do(c.NodeSilent(node_id, self.books.sessions[node_id], lost=True))
        if back:
            self.books.connect(SPECS[name], () if forget else self.said(node_id, c.ReportStatus.ACTIVE))

    @rule(name=st.sampled_from(sorted(SPECS)), drain=st.booleans(), seldom=st.integers(0, 3))
    def a_node_is_closed_or_opened(self, name: str, drain: bool, seldom: int) -> None:
        if seldom and drain:
            return
        self.books.do(c.Cordon(f"n-{name}", cordoned=drain, drain=drain))

    @rule(name=st.sampled_from(["one", "two"]), seldom=st.integers(0, 5))
    def a_node_is_removed_and_comes_anew(self, name: str, seldom: int) -> None:
        if seldom:
            return
        node_id = f"n-{name}"
        self.books.do(c.NodeSilent(node_id, self.books.sessions[node_id], lost=True))
        self.refused(c.RemoveNode(node_id, force=True))
        self.books.connect(SPECS[name])

    @rule(milliseconds=st.sampled_from([1, 900, 5_000, 10_000, 31_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.pass_time(milliseconds)

    @invariant()
    def enough_stays_and_nobody_has_more_than_is_of_use(self) -> None:
        for lease_id in self.books.state.elastic:
            lease = self.books.state.leases[lease_id]
            least, _, most = bounds_of(lease.request)
            assert least <= len(members_of(lease)) <= most

    @invariant()
    def what_happened_was_right_when_it_happened(self) -> None:
        self.judge.hear(self.books.facts)

    @invariant()
    def billed_time_is_the_integral_of_the_states(self) -> None:
        state = self.books.state
        billed: Counter[str] = Counter()
        for entry in (*state.ledger.entries, *open_entries(state.leases.values(), lambda _: "", self.books.now_ms)):
            billed[entry.tenant] += entry.share_milli_ms
        assert +billed == +self.charged


ElasticMachine.TestCase.settings = walks(40, 40)
TestElastic = ElasticMachine.TestCase
