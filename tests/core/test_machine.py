"""A hostile month in the life of the core: random commands in any order, every invariant after each of them."""

from __future__ import annotations

import contextlib
from datetime import datetime, timedelta

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.demand import ExpectedUse, Forecast
from aliquot.coordinator.core.books.maintenance import WindowSpec
from aliquot.coordinator.core.books.supply import NodeShape, SupplyPolicy, SupplySpec, Way
from aliquot.coordinator.core.commands.queries import Fits
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.values.errors import DomainError
from aliquot.coordinator.core.values.types import EndReason, NodeState
from tests.core.harness import GIB, node, request
from tests.core.machine import BooksMachine, walks

# Watching each line would more than double its time, and short tests reach the same ones.
pytestmark = pytest.mark.no_cover

NODES = ("one", "two", "three")
SPECS = {
    "one": node("one", 4),
    "two": node("two", 2, model="H100-80", memory_gib=80),
    "three": node("three", 4, agentless=True),
}
CONFIG = CoreConfig(
    confirm_timeout_ms=5_000, retain_ended_ms=20_000, retain_ended_max=30, requeues_max=3, queued_max=25
)


class PoolMachine(BooksMachine):
    """Whatever launchers, agents, administrators and time do, the books stay exact."""

    def __init__(self) -> None:
        super().__init__(CONFIG, SPECS.values())
        self.epochs: dict[str, int] = {}
        self.keys: dict[tuple[str, str], str] = {}

    @rule(
        share=st.sampled_from([1, 100, 250, 333, 500, 900, 1000]),
        memory_gib=st.sampled_from([0, 0, 1, 10, 40, 79, 200]),
        count=st.sampled_from([1, 1, 1, 2, 4, 9]),
        gang=st.sampled_from([1, 1, 1, 2, 3]),
        models=st.sampled_from([(), (("A100",),), (("H100",), ("A100",)), (("A100", "H100"),), (("B200",),)]),
        tenant=st.sampled_from(["a", "b"]),
        key=st.sampled_from(["", "", "k1", "k2"]),
        priority=st.integers(-2, 2),
        preemptible=st.booleans(),
        time_limit_ms=st.sampled_from([0, 0, 3_000, 20_000]),
        no_queue=st.booleans(),
        group=st.sampled_from(["", "g"]),
        more=st.sampled_from([0, 0, 0, 2]),
    )
    def allocate(self, **a: object) -> None:
        spec = request(
            a["share"],  # type: ignore[arg-type]
            a["memory_gib"] * GIB,  # type: ignore[operator]
            count=a["count"] if a["share"] == 1000 or a["count"] == 1 else 2,  # type: ignore[arg-type]
            gang_size=a["gang"],
            models=a["models"],
            tenant=a["tenant"],  # type: ignore[arg-type]
            priority=a["priority"],
            preemptible=a["preemptible"],
            time_limit_ms=a["time_limit_ms"],
            affinity_group=a["group"],
            max_per_node=1 if a["group"] else 0,
            max_count=(a["gang"] + a["more"]) * 2 if a["more"] and a["count"] == 2 else 0,  # type: ignore[operator]
        )
        key = (str(a["tenant"]), str(a["key"]))
        body = msgspec.msgpack.encode(spec)
        try:
            lease = self.books.allocate(spec, key=key[1], body_sha256=body, no_queue=a["no_queue"])
        except DomainError as error:
            assert error.reason
            return
        if key[1]:
            known = self.keys.get(key)
            if known in self.books.state.leases:
                assert lease.lease_id == known, "one key, two leases"
            self.keys[key] = lease.lease_id

    @rule(pick=st.integers(0))
    def acknowledge(self, pick: int) -> None:
        lease = self.some_lease(pick)
        if lease is not None:
            self.refused(c.AcknowledgeShape(lease.lease_id, lease.shape))

    @rule(share=st.sampled_from([100, 500, 1000]), priority=st.integers(-1, 1))
    def allocate_a_part(self, share: int, priority: int) -> None:
        try:
            self.books.allocate(request(share, priority=priority))
        except DomainError as error:
            assert error.reason

    @rule(
        share=st.sampled_from([100, 333, 500, 1000]),
        memory_gib=st.sampled_from([0, 1, 40]),
        count=st.sampled_from([1, 1, 2]),
        models=st.sampled_from([(), (("A100",),), (("H100",), ("A100",))]),
        group=st.sampled_from(["", "g"]),
        time_limit_ms=st.sampled_from([0, 3_000]),
        gang=st.sampled_from([1, 1, 2]),
        name=st.sampled_from(NODES),
        index=st.sampled_from([-1, 0, 3]),
        preemptible=st.booleans(),
    )
    def somebody_else_decides(self, name: str, index: int, gang: int, count: int, **a: object) -> None:
        """What is said to fit is granted there, and what is not is refused."""
        group = a.pop("group")
        spec = request(
            a.pop("share"),  # type: ignore[arg-type]
            a.pop("memory_gib") * GIB,  # type: ignore[operator]
            count=count,
            gang_size=gang,
            affinity_group=group,
            max_per_node=1 if group else 0,
            **a,  # type: ignore[arg-type]
        )
        known = tuple(self.books.state.nodes)
        fitting = {fit.node_id for fit in self.books.ask(Fits(spec, known)) if fit.score}
        uuids = tuple(f"GPU-{name}-{index + more}" for more in range(count)) if index >= 0 else ()
        places = (c.MemberPlace(f"n-{name}", uuids), *(c.MemberPlace(node_id) for node_id in known[: gang - 1]))
        refused = self.refused(c.GrantOn(f"g-{self.books.now_ms}-{len(self.books.facts)}", spec, places))
        if gang == 1 and not uuids:
            assert refused == (f"n-{name}" not in fitting)
        elif not refused:
            assert {place.node_id for place in places} <= fitting

    @rule()
    def agents_catch_up(self) -> None:
        self.catch_up()

    @rule(pick=st.integers(0), status=st.sampled_from(c.ReportStatus))
    def confirm(self, pick: int, status: c.ReportStatus) -> None:
        lease = self.some_lease(pick)
        if lease is not None and self.is_heard(lease):
            self.books.report(lease, status)

    @rule(pick=st.integers(0), reason=st.sampled_from([EndReason.RELEASED, EndReason.EXPIRED]))
    def release(self, pick: int, reason: EndReason) -> None:
        lease = self.some_lease(pick)
        if lease is not None:
            self.books.do(c.Release(lease.lease_id, reason))

    @rule(pick=st.integers(0), limit_ms=st.sampled_from([3_000, 20_000, 400_000]))
    def extend(self, pick: int, limit_ms: int) -> None:
        lease = self.some_lease(pick)
        if lease is not None:
            with contextlib.suppress(DomainError):
                self.books.do(c.ExtendLease(lease.lease_id, limit_ms))

    @rule(
        name=st.sampled_from(NODES[:2]),
        fewer=st.booleans(),
        forget=st.booleans(),
        status=st.sampled_from(c.ReportStatus),
    )
    def connect(self, name: str, fewer: bool, forget: bool, status: c.ReportStatus) -> None:
        spec = SPECS[name]
        if fewer:
            spec = msgspec.structs.replace(spec, devices=spec.devices[:-1])
        epoch = self.books.sessions.get(spec.node_id, 0) + 1
        self.books.sessions[spec.node_id] = epoch
        self.books.do(c.RegisterNode(spec, epoch))
        held = () if forget else self.said(spec.node_id, status)
        self.books.do(c.ReconcileNode(spec.node_id, epoch, held))

    @rule(
        name=st.sampled_from(NODES[:2]),
        status=st.sampled_from(c.ReportStatus),
        first=st.integers(0, 3),
        stale_session=st.booleans(),
        stale_epoch=st.booleans(),
    )
    def report(self, name: str, status: c.ReportStatus, first: int, stale_session: bool, stale_epoch: bool) -> None:
        node_id = f"n-{name}"
        epoch = self.books.sessions.get(node_id, 0) - stale_session
        said = self.said(node_id, status)[first:]
        if stale_epoch:
            said = tuple(c.SliceReport(r.slice_id, r.lease_epoch + 1, r.status, r.tier) for r in said)
        decision = self.books.do(c.ReportSlices(node_id, epoch, said))
        assert not ((stale_session or stale_epoch) and decision.facts)

    @rule(name=st.sampled_from(NODES[:2]), lost=st.booleans())
    def silence(self, name: str, lost: bool) -> None:
        node_id = f"n-{name}"
        self.books.do(c.NodeSilent(node_id, self.books.sessions.get(node_id, 0), lost=lost))

    @rule(name=st.sampled_from(NODES[:2]))
    def hear(self, name: str) -> None:
        self.books.do(c.NodeHeard(f"n-{name}", self.books.sessions.get(f"n-{name}", 0)))

    @rule(name=st.sampled_from(NODES), cordoned=st.booleans(), drain=st.booleans())
    def cordon(self, name: str, cordoned: bool, drain: bool) -> None:
        self.refused(c.Cordon(f"n-{name}", cordoned=cordoned, drain=cordoned and drain))

    @rule(
        name=st.sampled_from(("rack", "weekly")),
        covers=st.sampled_from([{"node_ids": ("one",)}, {"node_ids": ("n-two", "three")}, {"pool": "default"}]),
        begins_s=st.sampled_from([-10, 0, 10, 40]),
        lasts_s=st.sampled_from([1, 15, 60]),
        lead_s=st.sampled_from([0, 20]),
    )
    def declare_maintenance(
        self, name: str, covers: dict[str, object], begins_s: int, lasts_s: int, lead_s: int
    ) -> None:
        start = datetime(1970, 1, 1) + timedelta(seconds=self.books.now_ms // 1000 + begins_s)  # noqa: DTZ001
        spec = WindowSpec(
            name,
            start.isoformat(),
            (start + timedelta(seconds=lasts_s)).isoformat(),
            weekly=name == "weekly",
            lead_ms=lead_s * 1000,
            **covers,  # type: ignore[arg-type]
        )
        self.refused(c.DeclareMaintenance(spec))

    @rule(name=st.sampled_from(("rack", "weekly")))
    def end_maintenance(self, name: str) -> None:
        self.refused(c.EndMaintenance(name))

    @rule(act=st.booleans(), least=st.integers(0, 1), machines=st.sampled_from([(), ("two", "three")]))
    def offer_nodes(self, act: bool, least: int, machines: tuple[str, ...]) -> None:
        policy = SupplyPolicy(
            act=act, target_wait_ms=5_000, idle_ms=10_000, keep_ms=10_000, rest_ms=60_000, late_ms=30_000
        )
        made = NodeShape("made", node("made", 2), 2, nodes_min=least, lead_ms=5_000, price_micro=1_000_000)
        woken = NodeShape("woken", SPECS["two"], len(machines), machines=machines)
        self.refused(c.DeclareSupply(SupplySpec((made, *((woken,) if machines else ())), policy)))

    @rule(
        taker=st.sampled_from(["a", "b"]),
        accepted=st.booleans(),
        final=st.booleans(),
        arrives=st.booleans(),
        named=st.sampled_from(["", "", "other"]),
    )
    def carry_out_orders(self, taker: str, accepted: bool, final: bool, arrives: bool, named: str) -> None:
        orders = self.books.do(c.TakeOrders(taker, for_ms=20_000)).outcome
        for order in orders[:1]:
            self.refused(c.ReportOrder(order.number, taker, accepted, node_name=named, final=final))
            if arrives and order.way is Way.ADD and order.shape == "made":
                self.refused(c.DeclareNode(node(named or order.node_name, 2, agentless=True)))

    @rule(number=st.integers(1, 4))
    def withdraw_order(self, number: int) -> None:
        self.refused(c.WithdrawOrder(number))

    @rule(milli=st.sampled_from([0, 4_000, 90_000]), fit=st.booleans())
    def expect_demand(self, milli: int, fit: bool) -> None:
        point = ExpectedUse(self.books.now_ms + 1_000, milli, 0, milli)
        series = c.Expected("default", "A100-40", Forecast(self.books.now_ms, (point,), fit))
        self.refused(c.ExpectDemand((series,)))

    @rule(name=st.sampled_from(NODES), force=st.booleans())
    def remove_and_declare_again(self, name: str, force: bool) -> None:
        if not self.refused(c.RemoveNode(f"n-{name}", force=force)):
            self.books.do(c.DeclareNode(SPECS[name]))
            self.books.sessions.pop(f"n-{name}", None)

    @rule(
        name=st.sampled_from(NODES[:2]),
        index=st.integers(0, 3),
        foreign_gib=st.sampled_from([0, 0, 1, 39, 500]),
        healthy=st.booleans(),
    )
    def device(self, name: str, index: int, foreign_gib: int, healthy: bool) -> None:
        node_id = f"n-{name}"
        epoch = self.books.sessions.get(node_id, 0)
        self.books.do(c.ReportDevice(node_id, epoch, f"GPU-{name}-{index}", foreign_gib * GIB, healthy))

    @rule(milliseconds=st.sampled_from([1, 1_000, 5_000, 30_000, 604_800_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.books.advance(milliseconds)

    @rule()
    def offer(self) -> None:
        self.books.settle()

    @rule(back=st.integers(0, 2), milli=st.integers(0, 10_000), covered=st.sampled_from([100, 1000]))
    def an_hour_of_demand_is_over(self, back: int, milli: int, covered: int) -> None:
        hour = self.books.now_ms // 3_600_000 - back
        self.books.do(c.NoteDemand(hour, covered, (("", milli), ("tenant/a", milli))))

    @rule()
    def clock_jumps_back(self) -> None:
        self.books.now_ms -= 10_000

    @invariant()
    def epochs_only_rise(self) -> None:
        for lease_id, lease in self.books.state.leases.items():
            assert lease.lease_epoch >= self.epochs.get(lease_id, 0)
            self.epochs[lease_id] = lease.lease_epoch

    @invariant()
    def nothing_is_newly_placed_on_a_node_that_is_not_ready(self) -> None:
        for found in self.books.state.nodes.values():
            if found.state in (NodeState.LOST, NodeState.RECONCILING):
                assert not found.grantable


PoolMachine.TestCase.settings = walks(150, 50)
TestPool = PoolMachine.TestCase
