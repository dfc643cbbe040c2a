"""The read model: whatever happens, its sums are what a recount gives, and its lists are complete."""

from __future__ import annotations

from collections import Counter
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import LeaseState
from aliquot.coordinator.core.decider import Decider
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.errors import DomainError
from aliquot.coordinator.core.values.types import Demand, DeviceSpec, NodeSpec, RequestSpec
from aliquot.coordinator.reading import view
from aliquot.coordinator.reading.view import ArrivalOrder, View
from aliquot.coordinator.writing.commits import take_commit, whole_state

GIB = 1 << 30


def node_spec(number: int, devices: int, pool: str) -> NodeSpec:
    listed = tuple(DeviceSpec(f"GPU-{number}-{index}", "T4", 16 * GIB, index=index) for index in range(devices))
    return NodeSpec(f"n{number}", f"n{number}", listed, pool=pool, agentless=number % 2 == 0)


STEPS = st.one_of(
    st.tuples(st.just("declare"), st.integers(0, 3), st.integers(0, 3), st.sampled_from(["p", "q"])),
    st.tuples(st.just("allocate"), st.integers(1, 1000), st.integers(1, 2), st.sampled_from(["t", "u"])),
    st.tuples(st.just("release"), st.integers(0, 30)),
    st.tuples(st.just("register"), st.integers(0, 3), st.integers(1, 3)),
    st.tuples(st.just("report"), st.integers(0, 30), st.sampled_from(list(c.ReportStatus))),
    st.tuples(st.just("silent"), st.integers(0, 3)),
    st.tuples(st.just("remove"), st.integers(0, 3)),
    st.tuples(st.just("admit")),
    st.tuples(st.just("tick"), st.integers(0, 700_000)),
)


class World:
    """A State, and a View that hears of it group by group."""

    def __init__(self) -> None:
        self.decider = Decider(State.fresh())
        self.state = self.decider.state
        self.view = View()
        self.now_ms = 1_000
        self.made = 0
        self.epochs = 0

    def carry_out(self, command: c.Command[Any]) -> None:
        try:
            decision = self.decider.decide(command, self.now_ms)
        except DomainError:
            return
        self.decider.carry_out(decision, self.now_ms)

    def step(self, step: tuple[object, ...]) -> None:
        match step:
            case ("declare", int(number), int(devices), str(pool)):
                self.carry_out(c.DeclareNode(node_spec(number, devices, pool)))
            case ("allocate", int(share), int(count), str(tenant)):
                self.made += 1
                request = RequestSpec(demand=Demand(share_milli=share, count=count), tenant=tenant, grace_ms=1)
                self.carry_out(c.Allocate(f"l-{self.made}", request))
            case ("release", int(number)):
                self.carry_out(c.Release(f"l-{number}"))
            case ("register", int(number), int(devices)):
                self.epochs += 1
                self.carry_out(c.RegisterNode(node_spec(number, devices, "p"), self.epochs))
                self.carry_out(c.ReconcileNode(f"n{number}", self.epochs, ()))
            case ("report", int(number), c.ReportStatus() as status):
                self.report(number, status)
            case ("silent", int(number)):
                node = self.state.nodes.get(f"n{number}")
                if node is not None:
                    self.carry_out(c.NodeSilent(f"n{number}", node.session_epoch, lost=True))
            case ("remove", int(number)):
                self.carry_out(c.RemoveNode(f"n{number}", force=True))
            case ("admit",):
                self.carry_out(c.Admit())
            case ("tick", int(by_ms)):
                self.now_ms += by_ms
                self.carry_out(c.Tick())

    def report(self, number: int, status: c.ReportStatus) -> None:
        lease = self.state.leases.get(f"l-{number}")
        for piece in lease.holding if lease is not None else ():
            node = self.state.nodes[piece.plan.node_id]
            report = c.SliceReport(piece.slice_id, piece.lease_epoch, status, tier=2)
            self.carry_out(c.ReportSlices(node.spec.node_id, node.session_epoch, (report,)))


def recount(state: State) -> tuple[object, ...]:
    """The sums, from the leases and nodes alone."""
    share: Counter[str] = Counter()
    by_tenant: Counter[str] = Counter()
    queued: Counter[str] = Counter()
    on_node: Counter[str] = Counter()
    for lease in state.leases.values():
        if lease.state is LeaseState.QUEUED:
            queued[lease.request.tenant] += 1
        for piece in lease.holding:
            share[piece.plan.device_uuid] += piece.plan.share_milli
            by_tenant[lease.request.tenant] += piece.plan.share_milli
            on_node[piece.plan.node_id] += 1
    capacity = Counter((node.spec.pool, device.model) for node in state.nodes.values() for device in node.spec.devices)
    states = Counter(node.state.name for node in state.nodes.values())
    counts: list[Counter[Any]] = [share, by_tenant, queued, on_node, capacity, states]
    return tuple(_positive(each) for each in counts)


def shown(view: View) -> tuple[object, ...]:
    """The same, as the View has it."""
    totals = view.totals
    by_tenant: Counter[str] = Counter()
    queued: Counter[str] = Counter()
    for (tenant, _), of_queue in totals.queues.items():
        by_tenant[tenant] += of_queue.leased_share_milli
        queued[tenant] += of_queue.queued
    share = Counter({uuid: use.share_milli for uuid, use in totals.devices.items()})
    on_node = Counter({node_id: len(view.slices_on(node_id)) for node_id in view.nodes})
    capacity = Counter({key: of_class.devices for key, of_class in totals.classes.items()})
    states = Counter(totals.by_node_state)
    counts: list[Counter[Any]] = [share, by_tenant, queued, on_node, capacity, states]
    return tuple(_positive(each) for each in counts)


def _positive(counts: Counter[Any]) -> dict[Any, int]:
    assert all(value >= 0 for value in counts.values())
    return {key: value for key, value in counts.items() if value}


@given(st.lists(STEPS, max_size=40), st.integers(1, 4))
def test_sums_are_what_a_recount_gives(steps: list[tuple[object, ...]], per_group: int) -> None:
    world = World()
    for number, step in enumerate(steps):
        world.step(step)
        if number % per_group == 0:
            world.view.apply(take_commit(world.state))
    world.view.apply(take_commit(world.state))
    assert world.view.seq == world.state.seq
    assert world.view.leases == world.state.leases
    assert world.view.nodes == world.state.nodes
    assert world.view.devices == world.state.devices
    assert shown(world.view) == recount(world.state)
    everything = list(world.view.leases_after(0, tenant="", live_only=False))
    assert everything == sorted(world.state.leases.values(), key=lambda lease: lease.arrival)
    live = list(world.view.leases_after(0, tenant="t", live_only=True))
    assert live == [each for each in everything if each.request.tenant == "t" and not each.ended]


@given(st.lists(STEPS, max_size=30))
def test_a_view_of_the_whole_is_a_view_of_the_parts(steps: list[tuple[object, ...]]) -> None:
    world = World()
    for step in steps:
        world.step(step)
        world.view.apply(take_commit(world.state))
    fresh = View()
    fresh.apply(whole_state(world.state))
    assert shown(fresh) == shown(world.view)
    assert fresh.totals.live == world.view.totals.live


@given(st.lists(st.one_of(st.none(), st.integers(0, 1 << 20)), max_size=400), st.integers(1, 60))
def test_pages_of_a_changing_list_are_in_order_and_complete(steps: list[int | None], block: int) -> None:
    """Each step adds a lease, or takes out one of those that are there."""
    with patch.object(view, "BLOCK", block):
        order, there = ArrivalOrder(), dict[int, str]()
        for arrival, out in enumerate(steps, start=1):
            if out is None or not there:
                order.add(arrival, f"l-{arrival}")
                there[arrival] = f"l-{arrival}"
            else:
                gone = list(there)[out % len(there)]
                order.remove(gone)
                del there[gone]
    assert len(order) == len(there)
    for page in range(len(steps) + 1):
        assert list(order.after(page)) == [lease_id for arrival, lease_id in there.items() if arrival > page]
