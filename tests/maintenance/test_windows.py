"""What windows do to nodes and leases, decided by the core alone: closing, emptying, opening, and who stays closed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import Lease, LeaseState, SliceState
from aliquot.coordinator.core.books.maintenance import Phase, WindowSpec, wall_time
from aliquot.coordinator.core.commands.outcomes import Explained
from aliquot.coordinator.core.commands.queries import Explain
from aliquot.coordinator.core.evolve.snapshot import state_hash
from aliquot.coordinator.core.rules import closing
from aliquot.coordinator.core.rules.closing import OPENED_MAX
from aliquot.coordinator.core.values.errors import (
    DomainError,
    InvalidField,
    MaintenanceExists,
    MaintenanceNotFound,
    NoCapacity,
)
from aliquot.coordinator.core.values.types import DeviceSpec, EndReason, NodeSpec, RequestSpec
from aliquot.coordinator.reading.books import WindowView
from tests.core.harness import GIB, Books, node, request

S = 1000
MINUTE, HOUR, DAY = 60 * S, 3600 * S, 86_400 * S
NOON = "2026-11-28T12:00"
TWO = "2026-11-28T14:00"
NOON_MS = 1_795_867_200_000


def window(name: str = "w", **more: Any) -> WindowSpec:
    """Two hours on node one."""
    fields: dict[str, Any] = {"start": NOON, "end": TWO, "lead_ms": HOUR, "node_ids": ("n-one",), **more}
    return WindowSpec(name, **fields)


@dataclass
class Stage:
    """A pool with an agent on node one, and no other capacity unless it is asked for."""

    books: Books

    def at(self, now_ms: int) -> None:
        """It is that time."""
        self.books.now_ms = now_ms
        self.books.settle()

    def declare(self, spec: WindowSpec) -> None:
        self.books.do(c.DeclareMaintenance(spec))
        self.books.settle()

    def ask(self, spec: RequestSpec) -> Lease:
        """The lease as it is once everybody had his turn."""
        lease = self.books.allocate(spec)
        self.books.settle()
        return self.books.again(lease)

    def phase(self, name: str = "w") -> Phase:
        return self.books.state.windows[name].phase

    def explain(self, **more: object) -> Explained:
        return self.books.ask(Explain(request(**more)))  # type: ignore[arg-type]

    def read(self) -> tuple[WindowView, ...]:
        return self.books.read().windows()

    def same_after_a_restart(self) -> None:
        """The journal and a snapshot alone lead to the same books, and to the same work that is due."""
        books = self.books
        assert state_hash(books.replayed()) == state_hash(books.state)
        restored = books.restored()
        assert state_hash(restored) == state_hash(books.state)
        assert restored.closed == books.state.closed


def stage(*more: NodeSpec, devices: int = 2) -> Stage:
    books = Books()
    books.now_ms = NOON_MS - DAY
    for spec in (node("one", devices), *more):
        books.connect(spec)
    return Stage(books)


def test_times_are_as_this_file_says() -> None:
    assert (wall_time(NOON) - wall_time("1970-01-01T00:00")).total_seconds() * 1000 == NOON_MS


def test_before_the_lead_time_nothing_follows_then_only_what_ends_in_time_is_placed() -> None:
    s = stage()
    s.declare(window())
    assert s.phase() is Phase.PLANNED
    assert s.ask(request(500)).state is LeaseState.GRANTED
    s.at(NOON_MS - HOUR)
    assert s.phase() is Phase.CLOSING
    assert s.ask(request(100)).waiting
    assert s.ask(request(100, time_limit_ms=HOUR)).waiting, "its grace would run into the window"
    fitting = s.ask(request(100, time_limit_ms=HOUR - 30 * S))
    assert fitting.state is LeaseState.GRANTED
    assert s.ask(request(100, time_limit_ms=30 * MINUTE, grace_ms=1 * S)).state is LeaseState.GRANTED
    s.at(NOON_MS - 30 * MINUTE)
    assert s.ask(request(100, time_limit_ms=30 * MINUTE, grace_ms=1 * S)).waiting
    s.same_after_a_restart()


def test_what_did_not_fit_last_is_remembered_however_much_else_did_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closing, "FULL_BEFORE_MAX", 2)
    s = stage()
    s.declare(window())
    s.at(NOON_MS - HOUR)
    assert s.ask(request(1000, count=2, time_limit_ms=30 * MINUTE)).state is LeaseState.GRANTED
    for share in (100, 200, 300):
        assert s.ask(request(share, time_limit_ms=30 * MINUTE)).waiting
    remembered = s.books.decider.known.memory.full_before
    assert request(300).demand in remembered
    assert len(remembered) <= 2


def test_one_that_ends_in_time_is_not_kept_behind_its_equals_that_do_not() -> None:
    s = stage()
    s.declare(window())
    full = s.books.activate(s.ask(request(count=2)))
    s.at(NOON_MS - HOUR)
    long = [s.ask(request()) for _ in range(3)]
    short = s.ask(request(time_limit_ms=10 * MINUTE))
    assert short.waiting
    s.books.do(c.Release(full.lease_id))
    s.books.report(full, c.ReportStatus.GONE)
    s.books.settle()
    assert s.books.again(short).state is LeaseState.GRANTED
    assert all(s.books.again(lease).waiting for lease in long)


def test_what_ends_in_time_takes_other_places_first_and_a_gang_may_use_both() -> None:
    s = stage(node("two", 1))
    s.declare(window())
    s.at(NOON_MS - HOUR)
    short = {"time_limit_ms": 10 * MINUTE}
    assert s.ask(request(**short)).slices[0].plan.node_id == "n-two"  # type: ignore[arg-type]
    s.books.do(c.Release(next(iter(s.books.state.leases))))
    s.books.report(next(iter(s.books.state.leases.values())), c.ReportStatus.GONE)
    gang = s.ask(request(gang_size=3, **short))  # type: ignore[arg-type]
    assert {piece.plan.node_id for piece in gang.slices} == {"n-one", "n-two"}


def test_at_the_start_leases_go_as_a_drain_has_it_and_the_node_is_closed_until_the_end() -> None:
    s = stage()
    s.declare(window(grace_ms=7 * S))
    firm = s.books.activate(s.books.allocate(request(1000, grace_ms=20 * S)))
    soft = s.books.activate(s.books.allocate(request(1000, preemptible=True)))
    s.at(NOON_MS)
    assert s.phase() is Phase.OPEN
    firm, soft = s.books.again(firm), s.books.again(soft)
    assert (firm.end_reason, firm.requeue) == (EndReason.DRAINED, False)
    assert firm.holding[0].deadline_ms == NOON_MS + 7 * S
    assert "maintenance until 2026-11-28 14:00 UTC (window w)" in firm.end_detail
    assert soft.requeue
    for lease in (firm, soft):
        s.books.report(lease, c.ReportStatus.GONE)
    assert s.books.again(firm).ended
    s.at(NOON_MS + HOUR)
    assert s.books.again(soft).waiting
    assert s.books.allocate(request(100, time_limit_ms=S, grace_ms=S)).waiting, "nothing is placed while it lasts"
    s.same_after_a_restart()
    s.at(NOON_MS + 2 * HOUR)
    assert not s.books.state.windows
    assert s.books.again(soft).state is LeaseState.GRANTED, "it was waiting for that"
    s.same_after_a_restart()


def test_a_movable_lease_is_granted_elsewhere_and_an_elastic_one_goes_on_with_less() -> None:
    s = stage(node("two", 4))
    s.declare(window())
    moved = s.books.activate(s.books.allocate(request(movable=True, node_selector=(), node_ids=())))
    if moved.slices[0].plan.node_id != "n-one":
        s.books.do(c.Cordon("n-two"))
        s.books.do(c.Release(moved.lease_id))
        s.books.report(moved, c.ReportStatus.GONE)
        moved = s.books.activate(s.books.allocate(request(movable=True)))
        s.books.do(c.Cordon("n-two", cordoned=False))
    s.at(NOON_MS)
    moved = s.books.again(moved)
    assert [piece.plan.node_id for piece in moved.current] == ["n-two"]
    assert moved.state is LeaseState.GRANTED
    assert not moved.end_reason
    assert "maintenance" in moved.note


def test_a_movable_gang_moves_whole_or_not_at_all() -> None:
    for free in (2, 1):
        s = stage(*(node(f"spare{number}", 1) for number in range(free)), devices=1)
        s.books.connect(node("two", 1))
        for number in range(free):
            s.books.do(c.Cordon(f"n-spare{number}"))
        gang = s.books.activate(s.books.allocate(request(1000, gang_size=2, movable=True)))
        for number in range(free):
            s.books.do(c.Cordon(f"n-spare{number}", cordoned=False))
        s.declare(window())
        s.at(NOON_MS)
        gang = s.books.again(gang)
        if free == 2:
            assert {piece.plan.node_id for piece in gang.current} == {"n-spare0", "n-spare1"}
            assert {piece.plan.node_id for piece in gang.holding} == {"n-one", "n-two", "n-spare0", "n-spare1"}
            assert gang.state is LeaseState.GRANTED
        else:
            assert {piece.plan.node_id for piece in gang.holding} == {"n-one", "n-two"}, "half a gang is none"
        s.same_after_a_restart()


def test_a_movable_elastic_lease_moves_the_members_that_must_go_and_keeps_the_others() -> None:
    s = stage(node("spare", 1), devices=1)
    s.books.connect(node("two", 1))
    s.books.do(c.Cordon("n-spare"))
    lease = s.books.activate(s.books.allocate(request(1000, gang_size=2, min_count=1, max_count=2, movable=True)))
    s.books.do(c.Cordon("n-spare", cordoned=False))
    s.declare(window())
    s.at(NOON_MS)
    lease = s.books.again(lease)
    states = {piece.plan.node_id: (piece.state, piece.shed) for piece in lease.slices}
    assert states == {
        "n-one": (SliceState.PREEMPTING, True),
        "n-two": (SliceState.ACTIVE, False),
        "n-spare": (SliceState.GRANTED, False),
    }
    assert lease.shape > lease.acknowledged_shape
    s.same_after_a_restart()


def test_a_node_that_an_administrator_drained_stays_drained() -> None:
    s = stage()
    s.declare(window())
    s.books.do(c.Cordon("n-one", drain=True, reason="a broken fan"))
    s.at(NOON_MS)
    s.at(NOON_MS + 2 * HOUR)
    left = s.books.state.nodes["n-one"]
    assert (left.cordoned, left.draining, left.reason, left.closure) == (True, True, "a broken fan", None)
    assert not left.grantable
    s.books.do(c.Cordon("n-one", cordoned=False))
    assert s.books.state.nodes["n-one"].grantable


def test_an_administrator_who_uncordons_a_node_does_not_end_its_maintenance() -> None:
    s = stage()
    s.declare(window())
    s.at(NOON_MS)
    s.books.do(c.Cordon("n-one", cordoned=False))
    assert "n-one" in s.books.state.closed
    s.books.do(c.EndMaintenance("w"))
    assert s.books.state.nodes["n-one"].grantable
    with pytest.raises(MaintenanceNotFound):
        s.books.do(c.EndMaintenance("w"))


def test_a_weekly_window_is_held_every_week_and_passed_by_where_nobody_led() -> None:
    s = stage()
    s.declare(window(weekly=True))
    for week in range(3):
        s.at(NOON_MS + week * 7 * DAY - HOUR)
        assert s.phase() is Phase.CLOSING
        s.at(NOON_MS + week * 7 * DAY)
        assert s.phase() is Phase.OPEN
        s.at(NOON_MS + week * 7 * DAY + 2 * HOUR)
        assert s.phase() is Phase.PLANNED
        assert s.books.state.nodes["n-one"].grantable
    lease = s.books.activate(s.books.allocate(request()))
    s.at(NOON_MS + 40 * 7 * DAY + 3 * HOUR)  # nobody led for months: what was held meanwhile is over
    assert not s.books.again(lease).end_reason
    assert s.books.state.windows["w"].starts_ms == NOON_MS + 41 * 7 * DAY
    s.same_after_a_restart()


def test_windows_may_overlap_and_the_last_one_to_end_opens_the_node() -> None:
    s = stage()
    s.declare(window("a"))
    s.declare(window("b", start="2026-11-28T13:00", end="2026-11-28T15:00", lead_ms=0))
    for hours, expected in ((0, "a"), (1, "b"), (2, "b")):
        s.at(NOON_MS + hours * HOUR)
        closure = s.books.state.nodes["n-one"].closure
        assert closure is not None
        assert (closure.window, closure.phase) == (expected, Phase.OPEN)
    s.at(NOON_MS + 3 * HOUR)
    assert s.books.state.nodes["n-one"].grantable


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ({"node_ids": (), "labels": (("rack", "r7"),)}, {"n-two", "n-three"}),
        ({"node_ids": (), "pool": "night"}, {"n-three"}),
        ({"node_ids": (), "labels": (("rack", "r7"),), "pool": "default"}, {"n-two"}),
        ({"node_ids": ("one", "n-two")}, {"n-one", "n-two"}),
    ],
)
def test_nodes_are_named_or_chosen_by_label_and_pool(selector: dict[str, Any], expected: set[str]) -> None:
    rack = (("rack", "r7"),)
    s = stage(node("two", labels=rack), node("three", labels=rack, pool="night"))
    s.declare(window(**selector))
    (view,) = s.read()
    assert set(view.node_ids) == expected
    s.at(NOON_MS)
    assert {node_id for node_id, found in s.books.state.nodes.items() if found.closure is not None} == expected


def test_a_node_that_comes_or_gets_the_label_while_it_lasts_is_closed_and_emptied_too() -> None:
    s = stage()
    s.declare(window(node_ids=(), labels=(("rack", "r7"),)))
    lease = s.books.activate(s.books.allocate(request()))
    s.at(NOON_MS + MINUTE)
    s.books.connect(node("late", labels=(("rack", "r7"),)))
    assert not s.books.state.nodes["n-late"].grantable
    s.books.do(c.DeclareNode(node("one", 2, labels=(("rack", "r7"),))))
    s.books.settle()
    assert s.books.again(lease).end_reason == EndReason.DRAINED
    s.books.do(c.DeclareNode(node("one", 2)))
    assert s.books.state.nodes["n-one"].grantable
    s.same_after_a_restart()


def test_who_waits_for_a_window_is_told_its_name_and_when_it_is_over() -> None:
    s = stage()
    s.declare(window("switches", reason="new switches"))
    s.at(NOON_MS - HOUR)
    why = "node one: maintenance from 2026-11-28 12:00 UTC to 2026-11-28 14:00 UTC (window switches: new switches)"
    found = s.explain()
    assert not found.fits_now
    assert not found.impossible
    assert why in found.summary
    assert found.missing[0].reason == "MAINTENANCE"
    assert "time limit of at most 3570 s" in found.missing[0].smallest_change
    assert found.expected_start_ms == NOON_MS + 2 * HOUR
    assert s.explain(time_limit_ms=3570 * S).fits_now, "the advice holds"
    assert found.instead == request(time_limit_ms=3570 * S), "and is told as a request"
    assert not s.explain(time_limit_ms=3571 * S).fits_now
    with pytest.raises(NoCapacity, match="maintenance from"):
        s.books.allocate(request(), no_queue=True)
    s.at(NOON_MS)
    assert s.explain(time_limit_ms=S).missing[0].smallest_change == "wait until 2026-11-28 14:00 UTC"
    held = s.explain(count=2, share_milli=1000, node_ids=("n-one",))
    assert why in held.summary
    never = s.explain(count=3)
    assert never.impossible
    assert "maintenance" not in never.summary


def test_no_window_is_blamed_for_what_would_not_fit_without_it() -> None:
    s = stage(node("two", 1))
    s.books.activate(s.books.allocate(request(count=2)))
    s.declare(window())
    s.at(NOON_MS - HOUR)
    assert "maintenance" not in s.explain(count=2).summary


def test_a_part_that_a_mig_instance_serves_is_placed_before_a_window_too() -> None:
    parts = tuple(
        DeviceSpec(f"MIG-{number}", "A100-40", 5 * GIB, mig_profile="1g.5gb", compute_milli=142) for number in range(2)
    )
    books = Books()
    books.now_ms = NOON_MS - DAY
    books.connect(NodeSpec("n-one", "one", parts))
    s = Stage(books)
    s.declare(window())
    s.at(NOON_MS - HOUR)
    assert s.ask(request(100, GIB, time_limit_ms=10 * MINUTE)).state is LeaseState.GRANTED
    assert "maintenance from" in s.explain(share_milli=100, memory_bytes=GIB).summary


def test_the_same_window_again_changes_nothing_and_another_under_its_name_is_refused() -> None:
    s = stage()
    s.declare(window())
    facts = len(s.books.facts)
    s.declare(window(node_ids=("one",)))
    assert len(s.books.facts) == facts
    with pytest.raises(MaintenanceExists):
        s.declare(window(reason="another"))


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"end": NOON}, "end"),
        ({"start": "noon"}, "start"),
        ({"start": "2026-11-28T12:00+01:00"}, "start"),
        ({"zone": "Mars/Olympus"}, "zone"),
        ({"node_ids": ()}, "node_ids"),
        ({"weekly": True, "end": "2026-12-05T12:00"}, "end"),
        ({"start": "2026-01-01T00:00", "end": "2026-01-02T00:00"}, "end"),
        ({"start": "2046-01-01T00:00", "end": "2046-01-02T00:00"}, "start"),
        ({"end": "2027-11-28T12:00"}, "end"),
        ({"lead_ms": 32 * DAY}, "lead_s"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_field(wrong: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidField) as refused:
        stage().declare(window(**wrong))
    assert refused.value.field == field
    with pytest.raises(DomainError):
        stage().declare(window(node_ids=("nobody",)))


def test_a_victim_that_is_reprieved_after_the_start_is_told_to_go_after_all() -> None:
    s = stage()
    s.declare(window())
    victim = s.books.activate(s.books.allocate(request(count=2, preemptible=True, grace_ms=3 * HOUR)))
    s.at(NOON_MS - 2 * HOUR)
    preemptor = s.books.allocate(request(count=2, priority=9))
    s.books.settle()
    assert s.books.again(victim).end_reason == EndReason.PREEMPTED
    s.at(NOON_MS)
    s.books.do(c.Release(preemptor.lease_id))
    s.books.settle()
    s.at(NOON_MS + MINUTE)
    assert s.books.again(victim).end_reason


def test_others_that_close_too_do_not_hide_the_node_that_is_asked_for() -> None:
    s = stage(*(node(f"x{number}", 1) for number in range(OPENED_MAX)), node("last", 1))
    s.declare(window(node_ids=tuple(s.books.state.nodes)))
    s.at(NOON_MS - HOUR)
    found = s.ask(request(100, node_ids=("n-last",), time_limit_ms=30 * MINUTE))
    assert found.state is LeaseState.GRANTED


def test_windows_that_come_and_go_leave_nothing_behind() -> None:
    s = stage()
    before = len(s.books.state.timers)
    for number in range(50):
        s.declare(window(f"w{number}"))
        s.books.do(c.EndMaintenance(f"w{number}"))
    assert len(s.books.state.timers) == before
    assert not s.books.state.windows
    assert not s.books.state.closed
    assert not s.books.state.emptying
