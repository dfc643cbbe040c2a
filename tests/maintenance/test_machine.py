"""Windows, leases and administrators in any order: nothing runs into a window, and what a hand closed stays closed.

What windows mean is worked out here from the facts alone, beside the product's own books.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.elastic import LeaseGrown
from aliquot.coordinator.core.books.leases.facts import LeaseGranted, LeaseQueued
from aliquot.coordinator.core.books.maintenance import (
    MaintenanceDeclared,
    MaintenanceEnded,
    MaintenanceMoved,
    Phase,
    WindowSpec,
)
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.values.types import RequestSpec
from tests.core.harness import node, request
from tests.core.machine import BooksMachine, walks

# Watching each line would more than double its time, and short tests reach the same ones.
pytestmark = pytest.mark.no_cover

RACK = (("rack", "r7"),)
SPECS = {
    spec.node_id: spec
    for spec in (node("one", 2), node("two", 2, labels=RACK), node("three", 2, labels=RACK, agentless=True))
}
COVERS = ({"node_ids": ("one",)}, {"labels": RACK}, {"pool": "default"}, {"node_ids": ("two",), "labels": RACK})


class MaintenanceMachine(BooksMachine):
    """A pool whose nodes are looked after."""

    def __init__(self) -> None:
        super().__init__(CoreConfig(confirm_timeout_ms=600_000), SPECS.values())
        self.read = 0
        self.requests: dict[str, RequestSpec] = {}
        self.windows: dict[str, tuple[WindowSpec, Phase, int]] = {}
        self.by_hand: dict[str, bool] = dict.fromkeys(SPECS, False)

    @initialize(begins_s=st.integers(5, 80))
    def a_window_is_coming(self, begins_s: int) -> None:
        self.declare("a", {"pool": "default"}, begins_s, 30, 300, weekly=True)

    @rule(
        share=st.sampled_from([100, 300, 1000]),
        limit_s=st.sampled_from([0, 5, 10, 55, 60]),
        grace_s=st.sampled_from([0, 5]),
        kind=st.sampled_from([{}, {"preemptible": True}, {"movable": True}, {"gang_size": 3}, {"count": 2}]),
        elastic=st.booleans(),
    )
    def allocate(self, share: int, limit_s: int, grace_s: int, kind: dict[str, object], elastic: bool) -> None:
        more = {"min_count": 1, "max_count": 4} if elastic and not kind else kind
        terms = {"time_limit_ms": limit_s * 1000, "grace_ms": grace_s * 1000, **more}
        if "gang_size" in terms or "count" in terms:
            share = 1000
        self.books.allocate(request(share, **terms))  # type: ignore[arg-type]
        self.books.settle()

    @rule(pick=st.integers(0))
    def release(self, pick: int) -> None:
        lease = self.some_lease(pick)
        if lease is not None:
            self.books.do(c.Release(lease.lease_id))

    @rule()
    def agents_catch_up(self) -> None:
        self.catch_up()

    @rule(
        name=st.sampled_from(["a", "b"]),
        covers=st.sampled_from((*COVERS, {"pool": "default"})),
        begins_s=st.sampled_from([-5, 10, 60, 60]),
        lasts_s=st.sampled_from([5, 30, 120]),
        lead_s=st.sampled_from([0, 15, 300, 300]),
        weekly=st.booleans(),
    )
    def declare_another(
        self, name: str, covers: dict[str, object], begins_s: int, lasts_s: int, lead_s: int, weekly: bool
    ) -> None:
        self.declare(name, covers, begins_s, lasts_s, lead_s, weekly=weekly)

    def declare(
        self, name: str, covers: dict[str, object], begins_s: int, lasts_s: int, lead_s: int, *, weekly: bool
    ) -> None:
        start = datetime(1970, 1, 1) + timedelta(seconds=self.books.now_ms // 1000 + begins_s)  # noqa: DTZ001
        end = start + timedelta(seconds=lasts_s)
        spec = WindowSpec(
            name,
            start.isoformat(),
            end.isoformat(),
            weekly=weekly,
            lead_ms=lead_s * 1000,
            **covers,  # type: ignore[arg-type]
        )
        self.refused(c.DeclareMaintenance(spec))

    @rule(name=st.sampled_from(["a", "b"]))
    def end(self, name: str) -> None:
        self.refused(c.EndMaintenance(name))

    @rule(node_id=st.sampled_from(sorted(SPECS)), cordoned=st.booleans(), drain=st.booleans())
    def by_an_administrator(self, node_id: str, cordoned: bool, drain: bool) -> None:
        self.books.do(c.Cordon(node_id, cordoned=cordoned, drain=cordoned and drain))
        self.by_hand[node_id] = cordoned

    @rule(seconds=st.sampled_from([1, 1, 5, 10, 30, 604_800]))
    def time_passes(self, seconds: int) -> None:
        self.books.advance(seconds * 1000)
        self.nothing_stays_that_was_to_go()

    def nothing_stays_that_was_to_go(self) -> None:
        """Once all that was due is done, whoever runs on a node under maintenance was told to go."""
        state = self.books.state
        for window in state.windows.values():
            if window.phase is not Phase.OPEN:
                continue
            for lease in state.leases.values():
                for piece in () if lease.ending else lease.current:
                    if window.spec.covers(SPECS[piece.plan.node_id]):
                        assert piece.ending or piece.shed, f"{piece.slice_id} runs on in window {window.spec.name}"

    @invariant()
    def nothing_is_placed_into_a_window(self) -> None:
        for fact in self.books.facts[self.read :]:
            match fact:
                case LeaseQueued():
                    self.requests[fact.lease_id] = fact.request
                case MaintenanceDeclared():
                    self.windows[fact.spec.name] = (fact.spec, fact.phase, fact.starts_ms)
                case MaintenanceMoved():
                    self.windows[fact.name] = (self.windows[fact.name][0], fact.phase, fact.starts_ms)
                case MaintenanceEnded():
                    del self.windows[fact.name]
                case LeaseGranted() | LeaseGrown():
                    for grant in fact.slices:
                        self.check(grant.plan.node_id, self.requests[fact.lease_id], fact.at_ms)
        self.read = len(self.books.facts)

    def check(self, node_id: str, wanted: RequestSpec, at_ms: int) -> None:
        """That a slice may be placed there now."""
        assert not self.by_hand[node_id], f"placed on {node_id}, which is closed by hand"
        for spec, phase, starts_ms in self.windows.values():
            if spec.covers(SPECS[node_id]) and phase is not Phase.PLANNED:
                assert phase is Phase.CLOSING, f"placed on {node_id} in window {spec.name}"
                assert wanted.time_limit_ms, f"nobody knows how long it runs, and {spec.name} comes"
                assert at_ms + wanted.time_limit_ms + wanted.grace_ms <= starts_ms

    @invariant()
    def what_a_hand_closed_stays_closed(self) -> None:
        for node_id, cordoned in self.by_hand.items():
            assert self.books.state.nodes[node_id].cordoned is cordoned


MaintenanceMachine.TestCase.settings = walks(60, 40)
TestMaintenance = MaintenanceMachine.TestCase
