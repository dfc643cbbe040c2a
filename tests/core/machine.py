"""What all random walks through the books have in common: a refusal and a restart change nothing, nor does a replay."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.commands.queries import DryRun, Explain, ExplainLease
from aliquot.coordinator.core.evolve.snapshot import state_hash
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.values.errors import DomainError
from aliquot.coordinator.core.values.types import NodeSpec
from tests.core.harness import Books, request


def walks(examples: int, steps: int) -> settings:
    """So many, of so many steps; ALIQUOT_MACHINE_EXAMPLES asks for another number."""
    return settings(
        max_examples=int(os.environ.get("ALIQUOT_MACHINE_EXAMPLES", str(examples))),
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


class BooksMachine(RuleBasedStateMachine):
    """A pool whose nodes are declared, and connected where they have agents."""

    def __init__(self, config: CoreConfig, specs: Iterable[NodeSpec]) -> None:
        super().__init__()
        self.books = Books(config)
        for spec in specs:
            self.books.do(c.DeclareNode(spec))
            if not spec.agentless:
                self.books.connect(spec)

    def refused(self, command: c.Command[Any]) -> bool:
        """Whether it was, with a reason and without a trace."""
        before = state_hash(self.books.state)
        try:
            self.books.do(command)
        except DomainError as error:
            assert error.reason
            assert str(error)
            assert state_hash(self.books.state) == before
            return True
        return False

    def some_lease(self, pick: int) -> Lease | None:
        leases = list(self.books.state.leases.values())
        return leases[pick % len(leases)] if leases else None

    def said(self, node_id: str, status: c.ReportStatus) -> tuple[c.SliceReport, ...]:
        """What the node's agent says when it says the same of all that it should hold."""
        found = []
        for slice_id in self.books.state.slice_ids_by_node.get(node_id, ()):
            piece = self.books.state.leases[slice_id.partition(".")[0]].find(slice_id)
            assert piece is not None
            found.append(c.SliceReport(slice_id, piece.lease_epoch, status, 2))
        return tuple(found)

    def is_heard(self, lease: Lease) -> bool:
        """Whether agents hold all of it."""
        return all(piece.plan.node_id in self.books.sessions for piece in lease.holding)

    def catch_up(self) -> None:
        """Every agent confirms what it should run, and what has ended."""
        for lease in list(self.books.state.leases.values()):
            if self.is_heard(lease):
                self.books.report(lease, c.ReportStatus.GONE if lease.ending else c.ReportStatus.ACTIVE)

    @rule(
        pick=st.integers(0),
        share=st.sampled_from([100, 500, 1000]),
        more=st.sampled_from([(1, 1), (1, 1), (2, 1), (9, 1), (1, 3), (2, 3)]),
        models=st.sampled_from([(), (("A100",),), (("B200",),), (("T4-16",),)]),
        tenant=st.sampled_from(["", "a", "nobody"]),
        mig=st.booleans(),
    )
    def why(self, pick: int, share: int, more: tuple[int, int], **asked: Any) -> None:
        """No question may fail, and none changes anything."""
        before = state_hash(self.books.state)
        lease = self.some_lease(pick)
        if lease is not None:
            assert self.books.ask(ExplainLease(lease.lease_id)).summary
        count, gang_size = more
        or_mig = asked.pop("mig") and count == 1
        spec = request(1000 if count > 1 else share, count=count, gang_size=gang_size, or_mig=or_mig, **asked)
        found = None
        with contextlib.suppress(DomainError):
            found = self.books.ask(Explain(spec))
            assert found.summary
            assert found.fits_now is (found.placement is not None)
        if found is not None and found.instead is not None:
            self.books.ask(DryRun(c.Allocate("l-0000000instead", found.instead, no_queue=True)))  # is not refused
        assert state_hash(self.books.state) == before

    @rule()
    def fail_over(self) -> None:
        self.books.do(c.StartLeading(self.books.state.leader_epoch + 1))

    @rule()
    def restart_from_a_snapshot(self) -> None:
        before = state_hash(self.books.state)
        self.books.start(self.books.restored())
        assert state_hash(self.books.state) == before

    def teardown(self) -> None:
        assert state_hash(self.books.restored()) == state_hash(self.books.state), "a snapshot gives other books"
        assert state_hash(self.books.replayed()) == state_hash(self.books.state), "replay gives other books"
