"""A guarantee is kept whatever borrowers ask for: whoever is owed something, and physically could have it, has victims
chosen within a second (an equal search in vain rests that long), and its capacity within a minute.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.holds import HoldKind
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.tenancy.specs import Amount, QueueSpec, Quota, TenantSpec
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.rules.granting import guarantee_scale, is_entitled
from aliquot.coordinator.core.rules.preemption.leaving import gone_by, take_off
from aliquot.coordinator.core.rules.preemption.victims import is_protected
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.errors import DomainError
from aliquot.coordinator.core.values.rests import SEARCH_REST_MS
from aliquot.coordinator.core.values.types import Demand
from tests.core.harness import GIB, Books, node, request
from tests.tenancy.declaring import declare

# Watching each line would more than double its time, and short tests reach the same ones.
pytestmark = pytest.mark.no_cover

OWNERS = {"left": 3000, "right": 2500}
EVERYBODY = (*OWNERS, "guest", "other")
WITHIN_MS = 60_000
CONFIG = CoreConfig(preemption_period_ms=600_000)
LONG_MS = 10**7

DEMANDS = st.sampled_from(
    [
        Demand(count=1, share_milli=1000),
        Demand(count=1, share_milli=1000),
        Demand(count=2, share_milli=1000),
        Demand(count=3, share_milli=1000),
        Demand(count=1, share_milli=500),
        Demand(count=1, share_milli=250, memory_bytes=30 * GIB),
        Demand(count=2, share_milli=300),
        Demand(count=1, share_milli=1000, gang_size=2),
        Demand(count=2, share_milli=500, gang_size=2),
    ]
)
PAST_WALKS = Path(__file__).with_name("past_walks.jsonl").read_text().splitlines()
QUEUES = st.sampled_from(["", "", "shared"])


class Guarantees(RuleBasedStateMachine):
    """Owners come and go; borrowers ask never to be disturbed."""

    def __init__(self) -> None:
        super().__init__()
        self.books = Books(CONFIG)
        self.owed_since_ms: dict[str, int] = {}
        self.roomy_since_ms: dict[str, int] = {}

    @initialize(limit=st.sampled_from([-1, -1, 5000]), disruptions=st.sampled_from([0, 1]))
    def begin(self, limit: int, disruptions: int) -> None:
        for name, devices in (("one", 4), ("two", 3)):
            self.books.connect(node(name, devices))
        declare(
            self.books,
            *(TenantSpec(name, Quota(Amount(given))) for name, given in OWNERS.items()),
            TenantSpec("guest", disruptions_max=disruptions),
            QueueSpec("shared", quota=Quota(limit=Amount(limit, -1)), reserve_after_ms=30_000),
        )
        self.after()

    @property
    def state(self) -> State:
        return self.books.state

    @property
    def known(self) -> Known:
        return self.books.decider.known

    # -- what people do

    @rule(
        demand=DEMANDS,
        tenant=st.sampled_from(EVERYBODY),
        queue=QUEUES,
        priority=st.sampled_from([-1, 0, 0, 5]),
        preemptible=st.booleans(),
        min_run_ms=st.sampled_from([0, LONG_MS]),
        grace_ms=st.sampled_from([0, 10_000, LONG_MS]),
        time_limit_ms=st.sampled_from([0, 0, 30_000, 600_000]),
    )
    def ask(self, demand: Demand, tenant: str, **more: object) -> None:
        self.ask_for(demand, tenant, **more)
        self.after()

    @rule(demand=DEMANDS, tenant=st.sampled_from(("guest", "other")), queue=QUEUES, number=st.integers(2, 8))
    def fill(self, demand: Demand, tenant: str, queue: str, number: int) -> None:
        for _ in range(number):
            self.ask_for(demand, tenant, queue=queue, min_run_ms=LONG_MS, grace_ms=LONG_MS)
        self.after()

    @rule(demand=DEMANDS, tenant=st.sampled_from(tuple(OWNERS)), queue=QUEUES, number=st.integers(2, 6))
    def return_of_an_owner(self, demand: Demand, tenant: str, queue: str, number: int) -> None:
        for _ in range(number):
            self.ask_for(demand, tenant, queue=queue)
        self.after()

    def ask_for(self, demand: Demand, tenant: str, **more: object) -> None:
        spec = request(tenant=tenant, **{name: getattr(demand, name) for name in Demand.__struct_fields__}, **more)  # type: ignore[arg-type]
        try:
            self.books.allocate(spec)
        except DomainError as error:
            assert error.reason

    @rule(pick=st.integers(0))
    def release(self, pick: int) -> None:
        live = [lease for lease in self.state.leases.values() if not lease.ended]
        if live:
            self.books.do(c.Release(live[pick % len(live)].lease_id))
            self.after()

    @rule(seconds=st.sampled_from([1, 5, 15, 20, 30, 61, 300]))
    def time_passes(self, seconds: int) -> None:
        """From one moment at which anything is due to the next."""
        until_ms = self.books.now_ms + seconds * 1000
        while self.books.now_ms < until_ms:
            due = [self.books.decider.next_due_ms(self.books.now_ms) or until_ms, *self.deadlines(), until_ms]
            self.books.now_ms = min(max(at, self.books.now_ms + 1) for at in due)
            self.after()

    # -- what agents do

    def deadlines(self) -> list[int]:
        return [piece.deadline_ms for lease in self.state.leases.values() for piece in lease.holding if piece.ending]

    def agents(self) -> None:
        """They confirm at once, and are done with whatever is to end when its grace is over, not a moment earlier."""
        for lease in list(self.state.leases.values()):
            for piece in lease.holding:
                node_id = piece.plan.node_id
                if piece.ending and piece.deadline_ms <= self.books.now_ms:
                    status = c.ReportStatus.GONE
                elif not piece.ending and not lease.active_ms:
                    status = c.ReportStatus.ACTIVE
                else:
                    continue
                said = c.SliceReport(piece.slice_id, piece.lease_epoch, status, 2)
                self.books.do(c.ReportSlices(node_id, self.books.sessions[node_id], (said,)))

    def after(self) -> None:
        """The coordinator settles and the agents follow, until nothing moves any more."""
        for _ in range(50):
            before = len(self.books.facts)
            self.books.settle()
            self.agents()
            if len(self.books.facts) == before:
                break
        else:
            raise AssertionError("it goes in circles")
        self.judge()

    # -- what was promised

    def owed(self, lease: Lease) -> bool:
        """Whether its owner holds, with this and all that it asked for earlier, no more than is guaranteed to it."""
        promised = OWNERS.get(lease.request.tenant, 0)
        mine = [
            other
            for other in self.state.leases.values()
            if other.request.tenant == lease.request.tenant and not other.ended
        ]
        held = sum(piece.plan.share_milli for other in mine for piece in other.holding)
        asked = sum(share_of(other) for other in mine if other.waiting and other.arrival <= lease.arrival)
        return lease.waiting and held + asked <= promised and is_entitled(self.known, lease)

    def could_have_room(self, lease: Lease, *, at_once: bool) -> bool:
        """Whether it fits once all borrowers are gone. `at_once`: without those that have not run their minimum yet."""
        state, scale = self.known, guarantee_scale(self.known)
        borrowers = set()
        for other in state.leases.values():
            if other.holding and not is_protected(state, other, scale):
                young = other.granted_ms + CONFIG.reclaim_min_run_ms > self.books.now_ms
                bound = sum(at > self.books.now_ms - CONFIG.preemption_period_ms for at in other.preempted_at_ms)
                if (at_once and young) or (bound >= CONFIG.preemptions_max and not other.end_reason):
                    continue
                borrowers.add(other.lease_id)
        given_way = [
            uuid
            for hold in state.holds.values()
            if hold.kind is HoldKind.RESERVATION or not is_entitled(state, state.leases[hold.owner])
            for uuid in hold.device_uuids
        ]
        limit = state.tenancy.queue_spec("shared").quota.limit.share_milli
        if lease.request.queue == "shared" and limit >= 0:
            kept = sum(
                piece.plan.share_milli
                for other in state.leases.values()
                if other.request.queue == "shared" and other.lease_id not in borrowers
                for piece in other.holding
            )
            kept += sum(
                share_of(state.leases[owner]) for owner in state.holds if state.leases[owner].request.queue == "shared"
            )
            if kept + share_of(lease) > limit:
                return False
        soon_ms = self.books.now_ms + (0 if at_once else CONFIG.reclaim_grace_ms)
        with state.inventory.trial() as inventory:
            inventory.open_devices(given_way)
            take_off(state, inventory, gone_by(state, state.nodes, borrowers, soon_ms))
            return state.engine.place(lease.request.demand) is not None

    def limit_is_cleared(self, lease: Lease) -> bool:
        """Whether a limit of its queue keeps it out, and enough of those below it have been told to end."""
        limit = self.state.tenancy.queue_spec("shared").quota.limit.share_milli
        if lease.request.queue != "shared" or limit < 0:
            return False
        soon_ms = self.books.now_ms + CONFIG.reclaim_grace_ms
        held = going = 0
        for other in self.state.leases.values():
            if other.request.queue == "shared":
                held += sum(piece.plan.share_milli for piece in other.holding)
                going += sum(p.plan.share_milli for p in other.holding if p.ending and p.deadline_ms <= soon_ms)
        return held + share_of(lease) > limit >= held - going + share_of(lease)

    def judge(self) -> None:
        now_ms, state = self.books.now_ms, self.known
        owed: dict[str, int] = {}
        roomy: dict[str, int] = {}
        for lease in state.leases.values():
            if not lease.waiting or lease.ended or not self.owed(lease):
                continue
            hold = state.holds.get(lease.lease_id)
            if hold is not None and hold.kind is HoldKind.PREEMPTION:
                owed[lease.lease_id] = self.owed_since_ms.get(lease.lease_id, now_ms)
                continue
            if self.limit_is_cleared(lease):
                owed[lease.lease_id] = self.owed_since_ms.get(lease.lease_id, now_ms)
                continue
            if self.could_have_room(lease, at_once=True):
                roomy[lease.lease_id] = self.roomy_since_ms.get(lease.lease_id, now_ms)
                assert now_ms - roomy[lease.lease_id] < SEARCH_REST_MS, (
                    f"{lease.lease_id} of {lease.request.tenant} is owed room and nobody makes it"
                )
            if self.could_have_room(lease, at_once=False):
                owed[lease.lease_id] = self.owed_since_ms.get(lease.lease_id, now_ms)
        self.owed_since_ms, self.roomy_since_ms = owed, roomy

    @invariant()
    def nobody_waits_for_what_is_owed_for_longer_than_a_minute(self) -> None:
        for lease_id, since_ms in self.owed_since_ms.items():
            assert self.books.now_ms - since_ms < WITHIN_MS, f"{lease_id} is owed room and waits"

    @invariant()
    def nobody_is_above_a_limit(self) -> None:
        for account in self.state.tenancy.accounts.values():
            limit = account.quota.limit.share_milli
            assert limit < 0 or account.share_milli <= limit, account.label


def share_of(lease: Lease) -> int:
    demand = lease.request.demand
    return demand.share_milli * demand.count * demand.gang_size


Guarantees.TestCase.settings = settings(
    max_examples=int(os.environ.get("ALIQUOT_MACHINE_EXAMPLES", "25")),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestGuarantees = Guarantees.TestCase


@pytest.mark.parametrize("walk", range(len(PAST_WALKS)))
def test_walks_that_failed_once_do_not_fail_again(walk: int) -> None:
    """Each line: the steps of one, as (rule, arguments)."""
    machine = Guarantees()
    for name, arguments in json.loads(PAST_WALKS[walk]):
        if "demand" in arguments:
            arguments["demand"] = Demand(**arguments["demand"])
        getattr(machine, name)(**arguments)
        machine.nobody_waits_for_what_is_owed_for_longer_than_a_minute()
        machine.nobody_is_above_a_limit()
