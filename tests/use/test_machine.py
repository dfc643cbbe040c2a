"""A hostile month for lenders: looks, guests, preemption, lost nodes and restarts in any order; the books stay
exact, and whoever is active has its share back.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.tenancy.specs import QueueSpec
from aliquot.coordinator.core.books.use import QUIET, IdleAction, IdlePolicy
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.known.use_windows import Seen
from aliquot.coordinator.core.values.errors import DomainError
from aliquot.coordinator.core.values.types import NodeState
from tests.core.harness import GIB, node, request
from tests.core.machine import BooksMachine, walks
from tests.use.seeing import LOOK_MS, busy, quiet, unseen

pytestmark = pytest.mark.no_cover

SPECS = {
    "one": node("one", 2, lends=True),
    "two": node("two", 1, lends=True),
    "old": node("old", 1),
}
SEEN = {
    "quiet": quiet(),
    "held": quiet(processes=0),
    "busy": busy(300),
    "unseen": unseen(),
    "comes": quiet(started=True),
}


class UseMachine(BooksMachine):
    """Whatever programs, agents, launchers and administrators do."""

    def __init__(self) -> None:
        super().__init__(CoreConfig(idle_window_ms=2 * LOOK_MS, confirm_timeout_ms=600_000), SPECS.values())
        self.told = True
        self.declare("lend")
        # Nothing is free, most of it is idle, and somebody waits for that: walks alone rarely come so far.
        for share in (1000, 800, 800, 1000):
            self.allocate(share, 1, False, 0, 1)
        self.look(["quiet", "quiet", "held"], 6)
        for _ in range(3):
            self.allocate(500, 1, True, 0, 1)
        assert self.books.state.borrowers

    @rule(action=st.sampled_from(IdleAction))
    def declare(self, action: str) -> None:
        policy = IdlePolicy(IdleAction(action), 4 * LOOK_MS, (2 * LOOK_MS,))
        self.books.do(c.Apply(queues=((QueueSpec("default", idle=policy), c.ANY_VERSION),)))

    @rule(
        share=st.sampled_from([250, 500, 800, 1000]),
        memory_gib=st.sampled_from([1, 1, 5, 30]),
        opportunistic=st.booleans(),
        priority=st.integers(-1, 1),
        gang=st.sampled_from([1, 1, 1, 2]),
    )
    def allocate(self, share: int, memory_gib: int, opportunistic: bool, priority: int, gang: int) -> None:
        try:
            lease = self.books.allocate(
                request(
                    share, memory_gib * GIB, opportunistic=opportunistic, preemptible=opportunistic or priority < 0,
                    priority=priority, gang_size=gang, movable=memory_gib == 5,
                )
            )  # fmt: skip
        except DomainError as error:
            assert error.reason
            return
        self.books.settle()
        self.confirm_all()
        assert lease.lease_id in self.books.state.leases

    @rule()
    def confirm_all(self) -> None:
        for lease in list(self.books.state.leases.values()):
            if not lease.ended and not lease.ending and lease.slices and self.is_heard(lease):
                self.books.report(lease, c.ReportStatus.ACTIVE)

    @rule(
        kinds=st.lists(st.sampled_from([*sorted(SEEN), "quiet", "quiet"]), min_size=1, max_size=5),
        looks=st.sampled_from([1, 3, 6]),
    )
    def look(self, kinds: list[str], looks: int) -> None:
        """Each lease does one of these, in turns."""
        for _ in range(looks):
            self.books.now_ms += LOOK_MS
            seen = []
            for number, lease in enumerate(list(self.books.state.leases.values())):
                span = SEEN[kinds[number % len(kinds)]]
                spans = tuple(span._replace(slice_id=piece.slice_id) for piece in lease.current)
                seen.append(Seen(lease.lease_id, spans, lease.use.warned if self.told else 0))
            self.books.do(c.LookAtUse(tuple(seen)))
            for lease in list(self.books.state.leases.values()):
                if lease.use.lent:
                    assert lease.use.state in QUIET
            self.books.settle()

    @rule(told=st.booleans())
    def launchers_hear(self, told: bool) -> None:
        self.told = told

    @rule(pick=st.integers(0), for_ms=st.sampled_from([0, 60_000, 600_000]))
    def exempt(self, pick: int, for_ms: int) -> None:
        lease = self.some_lease(pick)
        if lease is not None:
            self.refused(c.ExemptLease(lease.lease_id, for_ms, "because", "ann"))

    @rule(pick=st.integers(0))
    def notifier(self, pick: int) -> None:
        lease = self.some_lease(pick)
        if lease is not None:
            self.refused(c.ConfirmNotice(lease.lease_id, 1, "notifier"))

    @rule()
    def agents_end_what_they_should(self) -> None:
        for lease in list(self.books.state.leases.values()):
            if lease.ending and self.is_heard(lease):
                self.books.report(lease, c.ReportStatus.GONE)
        self.books.settle()

    @rule(pick=st.integers(0), status=st.sampled_from(c.ReportStatus))
    def an_agent_says(self, pick: int, status: c.ReportStatus) -> None:
        lease = self.some_lease(pick)
        if lease is not None and self.is_heard(lease):
            self.books.report(lease, status)
            self.books.settle()

    @rule(pick=st.integers(0))
    def release(self, pick: int) -> None:
        lease = self.some_lease(pick)
        if lease is not None:
            self.books.do(c.Release(lease.lease_id))
            self.books.settle()

    @rule(name=st.sampled_from(sorted(SPECS)), back=st.booleans(), forget=st.booleans())
    def node_is_lost(self, name: str, back: bool, forget: bool) -> None:
        node_id = f"n-{name}"
        self.books.do(c.NodeSilent(node_id, self.books.sessions.get(node_id, 0), lost=True))
        self.books.settle()
        if back:
            held = () if forget else self.said(node_id, c.ReportStatus.ACTIVE)
            self.books.connect(SPECS[name], held)
            self.books.settle()

    @rule(name=st.sampled_from(sorted(SPECS)), cordoned=st.booleans())
    def drain(self, name: str, cordoned: bool) -> None:
        self.refused(c.Cordon(f"n-{name}", cordoned=cordoned, drain=cordoned))
        self.books.settle()

    @rule(name=st.sampled_from(sorted(SPECS)))
    def write_off(self, name: str) -> None:
        if not self.refused(c.RemoveNode(f"n-{name}", force=True)):
            self.books.do(c.DeclareNode(SPECS[name]))
            self.books.sessions.pop(f"n-{name}", None)
            self.books.connect(SPECS[name])

    @rule(milliseconds=st.sampled_from([1_000, 60_000, 3_600_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.books.advance(milliseconds)

    @invariant()
    def who_uses_anothers_share_goes_when_that_is_wanted_back(self) -> None:
        state = self.books.state
        for lender_slice, others in state.borrowers.items():
            lender = state.leases[lender_slice.partition(".")[0]]
            if lender.use.lent or lender.ending:
                continue
            for slice_id in others:
                borrower = state.leases[slice_id.partition(".")[0]]
                piece = borrower.find(slice_id)
                lost = state.nodes[lender.slices[0].plan.node_id].state is NodeState.LOST
                assert borrower.ending or lost or (piece is not None and piece.ending)


UseMachine.TestCase.settings = walks(12, 25)
TestLenders = UseMachine.TestCase
