"""Tenants, guarantees, preemption and budgets under random events: what was promised holds after every step."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.elastic import LeaseGrown, LeaseShrinking, bounds_of
from aliquot.coordinator.core.books.holds import PreemptionStarted
from aliquot.coordinator.core.books.leases.facts import LeaseGranted
from aliquot.coordinator.core.books.tenancy.in_force import in_force
from aliquot.coordinator.core.books.tenancy.specs import (
    Amount,
    Budget,
    Period,
    QueuePolicy,
    QueueSpec,
    Quota,
    QuotaWindow,
    TenantSpec,
)
from aliquot.coordinator.core.evolve import evolve
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.rules.granting import guarantee_scale, is_entitled, offer
from aliquot.coordinator.core.rules.preemption.victims import is_protected
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.errors import DomainError
from aliquot.coordinator.core.values.fact import Fact
from tests.core.harness import GIB, node, request
from tests.core.machine import BooksMachine, walks

# Watching each line would more than double its time, and short tests reach the same ones.
pytestmark = pytest.mark.no_cover

SPECS = {"one": node("one", 4), "two": node("two", 4), "three": node("three", 2, agentless=True)}
CONFIG = CoreConfig(
    confirm_timeout_ms=20_000,
    retain_ended_ms=20_000,
    retain_ended_max=30,
    queued_max=40,
    preemptions_max=2,
    preemption_period_ms=120_000,
    reservation_ms=60_000,
    growth_rest_ms=10_000,
)
TENANTS = ("a", "b", "c")
QUEUES = ("default", "left", "right", "deep")
AMOUNTS = st.sampled_from([0, 0, 500, 1000, 2000, 4000])
LIMITS = st.sampled_from([-1, -1, 1000, 3000, 6000])
WINDOWS = st.lists(
    st.builds(
        lambda when, guaranteed, limit: QuotaWindow(
            when, None if guaranteed < 0 else Amount(guaranteed), None if limit == 0 else Amount(limit, -1)
        ),
        st.sampled_from(["daily 00:17-00:19", "thu 00:18-00:45", "daily 23:00-00:18", "daily 00:30-00:20", "daily"]),
        st.sampled_from([-1, -1, 0, 1000, 4000]),
        st.sampled_from([0, 500, 1000, 3000, 6000]),
    ),
    max_size=2,
).map(tuple)
"""Books begin at 00:16:40 of a Thursday."""


class TenancyMachine(BooksMachine):
    """Whatever tenants, administrators, agents and time do."""

    def __init__(self) -> None:
        super().__init__(CONFIG, SPECS.values())
        self.judge = Judge(CONFIG)

    @rule(
        share=st.sampled_from([250, 500, 1000, 1000]),
        memory_gib=st.sampled_from([0, 0, 10, 30]),
        count=st.sampled_from([1, 1, 2, 4]),
        gang=st.sampled_from([1, 1, 2]),
        tenant=st.sampled_from(TENANTS),
        queue=st.sampled_from(("", *QUEUES)),
        priority=st.integers(-1, 2),
        preemptible=st.booleans(),
        min_run_ms=st.sampled_from([0, 0, 30_000]),
        time_limit_ms=st.sampled_from([0, 0, 40_000]),
        no_queue=st.sampled_from([False, False, False, True]),
        fewer=st.sampled_from([0, 0, 1]),
        more=st.sampled_from([0, 0, 1, 5]),
    )
    def allocate(self, **a: object) -> None:
        members: int = a["gang"]  # type: ignore[assignment]
        count: int = a["count"]  # type: ignore[assignment]
        spec = request(
            a["share"],  # type: ignore[arg-type]
            a["memory_gib"] * GIB,  # type: ignore[operator]
            count=a["count"],  # type: ignore[arg-type]
            gang_size=a["gang"],
            tenant=a["tenant"],  # type: ignore[arg-type]
            queue=a["queue"],
            priority=a["priority"],
            preemptible=a["preemptible"],
            min_run_ms=a["min_run_ms"],
            time_limit_ms=a["time_limit_ms"],
            min_count=max(1, members - int(a["fewer"])) * count if a["fewer"] else 0,  # type: ignore[call-overload]
            max_count=(members + int(a["more"])) * count if a["more"] else 0,  # type: ignore[call-overload]
        )
        try:
            self.books.allocate(spec, no_queue=a["no_queue"])
        except DomainError as error:
            assert error.reason

    @rule(tenant=st.sampled_from(TENANTS), priority=st.integers(0, 2))
    def fill(self, tenant: str, priority: int) -> None:
        for _ in range(4):
            try:
                self.books.allocate(request(1000, tenant=tenant, priority=priority, preemptible=True))
            except DomainError as error:
                assert error.reason
        self.books.settle()
        self.catch_up()

    @rule(
        name=st.sampled_from(TENANTS),
        guaranteed=AMOUNTS,
        limit=LIMITS,
        weight=st.sampled_from([1, 3]),
        disruptions=st.sampled_from([0, 0, 1]),
        queue=st.sampled_from(("", "left")),
        budget=st.sampled_from([0, 0, 100_000_000]),
        windows=WINDOWS,
    )
    def apply_tenant(  # noqa: PLR0917 - a rule
        self,
        name: str,
        guaranteed: int,
        limit: int,
        weight: int,
        disruptions: int,
        queue: str,
        budget: int,
        windows: tuple[QuotaWindow, ...],
    ) -> None:
        spec = TenantSpec(
            name,
            Quota(Amount(guaranteed), Amount(limit, -1), weight, windows=windows),
            default_queue=queue,
            budget=Budget(Period.HOUR, budget),
            disruptions_max=disruptions,
        )
        self.refused(c.Apply(tenants=((spec, c.ANY_VERSION),)))

    @rule(
        name=st.sampled_from(("root", *QUEUES)),
        parent=st.sampled_from(("root", "left", "right")),
        policy=st.sampled_from(QueuePolicy),
        guaranteed=AMOUNTS,
        limit=LIMITS,
        ageing_ms=st.sampled_from([0, 10_000]),
        reserve_after_ms=st.sampled_from([0, 10_000]),
        windows=WINDOWS,
    )
    def apply_queue(  # noqa: PLR0917 - a rule
        self,
        name: str,
        parent: str,
        policy: QueuePolicy,
        guaranteed: int,
        limit: int,
        ageing_ms: int,
        reserve_after_ms: int,
        windows: tuple[QuotaWindow, ...],
    ) -> None:
        spec = QueueSpec(
            name,
            "" if name == "root" else parent,
            policy,
            Quota(Amount(0 if name == "root" else guaranteed), Amount(limit, -1), windows=windows),
            ageing_ms=ageing_ms,
            reserve_after_ms=reserve_after_ms,
        )
        self.refused(c.Apply(queues=((spec, c.ANY_VERSION),)))

    @rule(kind=st.sampled_from([c.Declared.TENANT, c.Declared.QUEUE]), name=st.sampled_from((*TENANTS, *QUEUES)))
    def withdraw(self, kind: c.Declared, name: str) -> None:
        self.refused(c.Withdraw(kind, name))

    @rule()
    def agents_catch_up(self) -> None:
        self.catch_up()

    @rule(pick=st.integers(0), status=st.sampled_from(c.ReportStatus))
    def report(self, pick: int, status: c.ReportStatus) -> None:
        lease = self.some_lease(pick)
        if lease is not None and self.is_heard(lease):
            self.books.report(lease, status)

    @rule(pick=st.integers(0))
    def release(self, pick: int) -> None:
        lease = self.some_lease(pick)
        if lease is not None:
            self.books.do(c.Release(lease.lease_id))

    @rule(pick=st.integers(0), older=st.booleans())
    def acknowledge(self, pick: int, older: bool) -> None:
        lease = self.some_lease(pick)
        if lease is not None:
            self.refused(c.AcknowledgeShape(lease.lease_id, lease.shape - older))

    @rule()
    def elastic_leases_grow(self) -> None:
        self.catch_up()
        for lease_id in list(self.books.state.elastic):
            self.refused(c.AcknowledgeShape(lease_id, self.books.state.leases[lease_id].shape))
        self.books.advance(11_000)

    @rule(name=st.sampled_from(["one", "two"]), lost=st.booleans())
    def silence(self, name: str, lost: bool) -> None:
        self.books.do(c.NodeSilent(f"n-{name}", self.books.sessions.get(f"n-{name}", 0), lost=lost))

    @rule(name=st.sampled_from(["one", "two"]), forget=st.booleans(), fewer=st.booleans())
    def connect(self, name: str, forget: bool, fewer: bool) -> None:
        spec = SPECS[name]
        if fewer:
            spec = msgspec.structs.replace(spec, devices=spec.devices[:-1])
        self.books.connect(spec, () if forget else self.said(spec.node_id, c.ReportStatus.ACTIVE))

    @rule(name=st.sampled_from(["one", "two", "three"]), index=st.integers(0, 1), healthy=st.booleans())
    def device(self, name: str, index: int, healthy: bool) -> None:
        epoch = self.books.sessions.get(f"n-{name}", 0)
        self.books.do(c.ReportDevice(f"n-{name}", epoch, f"GPU-{name}-{index}", 0, healthy))

    @rule(milliseconds=st.sampled_from([1, 5_000, 20_000, 61_000, 900_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.books.advance(milliseconds)

    @rule()
    def offer_to_all(self) -> None:
        """Work conservation: afterwards nobody who waits could use anything that is idle and not kept for somebody."""
        self.books.settle()
        state = self.books.decider.known
        state.memory.known_full.clear()
        for lease_id in state.lines.ids():
            place = state.lines.place_of(lease_id)
            assert place is not None
            if place.resting:
                continue
            lease = state.leases[lease_id]
            found = offer(
                state,
                lease.request,
                lease.request.demand.avoiding(lease.avoid_device_uuids),
                self.books.now_ms,
                preempted_at_ms=lease.preempted_at_ms,
            )
            assert found.placement is None, f"{lease_id} could start and does not"

    @invariant()
    def nobody_is_above_a_limit(self) -> None:
        """What windows limit may be above for a while: there, each grant is judged."""
        for account in self.books.state.tenancy.accounts.values():
            if account.declared.windows:
                continue
            limit = account.quota.limit
            assert limit.share_milli < 0 or account.share_milli <= limit.share_milli, account.label
            assert limit.memory_bytes < 0 or account.memory_bytes <= limit.memory_bytes, account.label

    @invariant()
    def victims_were_fair_game(self) -> None:
        """Judged on a replay up to the moment at which each was chosen."""
        self.judge.hear(self.books.facts)


class Judge:
    """Judges every preemption, growth and shrinking against the books as they were just before it."""

    def __init__(self, config: CoreConfig) -> None:
        self.config = config
        self.state = State.fresh()
        self.known = Known(self.state, config)
        self.seen = 0

    def hear(self, facts: Sequence[Fact]) -> None:
        """Judge those of the journal that are new."""
        for fact in facts[self.seen :]:
            if isinstance(fact, LeaseGrown):
                judge_growth(self.known, fact)
            if isinstance(fact, LeaseShrinking):
                judge_shrinking(self.known, fact)
            if isinstance(fact, PreemptionStarted):
                judge_preemption(self.known, fact)
            evolve(self.state, fact)
            if isinstance(fact, LeaseGranted | LeaseGrown):
                judge_limits(self.state, fact)
        self.seen = len(facts)


def judge_limits(state: State, fact: LeaseGranted | LeaseGrown) -> None:
    """What a lease gains is within all limits, as they are in force at that moment: by the facts, and by the clock."""
    request = state.leases[fact.lease_id].request
    for account in state.tenancy.chain(request.tenant, request.queue).limited:
        if account.declared.windows:
            now = in_force("", "", account.declared, fact.at_ms)
            assert account.in_force is not None
            assert account.in_force.window == now.window, f"{account.label}: another window is open"
        limit = account.quota.limit
        assert limit.share_milli < 0 or account.share_milli <= limit.share_milli, account.label


def judge_preemption(state: Known, fact: PreemptionStarted) -> None:
    """Only those who may be ended for it, and nobody too often."""
    config, preemptor = state.config, state.leases[fact.preemptor]
    scale = guarantee_scale(state)
    for lease_id in fact.victims:
        victim = state.leases[lease_id]
        assert victim.holding
        assert not victim.ending
        assert not is_protected(state, victim, scale), "somebody fell below their guarantee"
        recent = [at for at in victim.preempted_at_ms if at > fact.at_ms - config.preemption_period_ms]
        assert len(recent) < config.preemptions_max, "the same lease too often"
        if not fact.reclaim:
            assert victim.request.priority < preemptor.request.priority
            assert victim.request.preemptible


def judge_growth(state: Known, fact: LeaseGrown) -> None:
    """Nobody who waits could have used it, and it rested since its last change."""
    state.memory.known_full.clear()
    lease = state.leases[fact.lease_id]
    assert lease.acknowledged_shape >= lease.shape - 1
    for lease_id in state.lines.ids():
        place = state.lines.place_of(lease_id)
        assert place is not None
        other = state.leases[lease_id]
        demand = other.request.demand.avoiding(other.avoid_device_uuids)
        if not place.resting:
            found = offer(state, other.request, demand, fact.at_ms, preempted_at_ms=other.preempted_at_ms)
            assert found.placement is None, f"{lease_id} waits for what {fact.lease_id} grew into"


def judge_shrinking(state: Known, fact: LeaseShrinking) -> None:
    """Enough stays; below its start only for those who could end it."""
    lease = state.leases[fact.lease_id]
    bounds = bounds_of(lease.request)
    left = len({p.member for p in lease.current if p.slice_id not in fact.slice_ids})
    assert left >= bounds.least
    if left < bounds.start and fact.notice and not fact.reason.endswith("is drained"):
        preemptor = state.leases[fact.reason.split()[2]]
        assert is_entitled(state, preemptor) or preemptor.request.priority > lease.request.priority
        assert not is_protected(state, lease, guarantee_scale(state))


TenancyMachine.TestCase.settings = walks(25, 40)
TestTenancy = TenancyMachine.TestCase
