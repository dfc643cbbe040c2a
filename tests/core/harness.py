"""Drives the core as the writer does, without any I/O, and checks every invariant after every command."""

from __future__ import annotations

import itertools
from types import GenericAlias
from typing import TypeVar

import msgspec

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import Lease, SliceState
from aliquot.coordinator.core.commands.outcomes import Decision
from aliquot.coordinator.core.commands.queries import Query
from aliquot.coordinator.core.decider import Decider
from aliquot.coordinator.core.evolve import ANY_FACT, evolve
from aliquot.coordinator.core.evolve.snapshot import from_snapshot, to_snapshot
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.types import Admits, Demand, DeviceSpec, NodeSpec, RequestSpec
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.writing.commits import whole_state
from tests.core.frozen import contents
from tests.core.invariants import check

T = TypeVar("T")

GIB = 1 << 30
SETTLE_STEPS_MAX = 1_000

_decoder = msgspec.msgpack.Decoder(GenericAlias(list, (ANY_FACT,)))


def node(name: str, devices: int = 4, *, model: str = "A100-40", memory_gib: int = 40, **more: object) -> NodeSpec:
    """A node with equal devices and nothing reserved by a driver."""
    return NodeSpec(
        node_id=f"n-{name}",
        name=name,
        devices=tuple(
            DeviceSpec(uuid=f"GPU-{name}-{i}", model=model, memory_total_bytes=memory_gib * GIB, index=i)
            for i in range(devices)
        ),
        **more,  # type: ignore[arg-type]
    )


def request(
    share_milli: int = 1000, memory_bytes: int = 0, *, count: int = 1, tenant: str = "a", **more: object
) -> RequestSpec:
    """A request; fields of Demand and of RequestSpec may be mixed."""
    of_demand = {k: v for k, v in more.items() if k in Demand.__struct_fields__}
    rest = {k: v for k, v in more.items() if k not in Demand.__struct_fields__}
    if rest.get("preemptible") or of_demand.get("opportunistic"):
        of_demand.setdefault("single_on", Admits.PREEMPTIBLE)
    if rest.get("min_count") or rest.get("max_count"):
        of_demand["single_on"] = Admits.ALL
    demand = Demand(count=count, share_milli=share_milli, memory_bytes=memory_bytes, **of_demand)  # type: ignore[arg-type]
    return RequestSpec(demand=demand, tenant=tenant, **rest)  # type: ignore[arg-type]


class Books:
    """A State, the journal that led to it, and a clock."""

    def __init__(self, config: CoreConfig | None = None) -> None:
        self.config = config or CoreConfig()
        self.start(State.fresh())
        self.now_ms = 1_000_000
        self.facts: list[Fact] = []
        self.sessions: dict[str, int] = {}
        self._ids = itertools.count(1)
        self.do(c.StartLeading(1))

    def start(self, state: State) -> None:
        """Go on with this State, and a decider that remembers nothing."""
        self.state = state
        self.decider = Decider(state, self.config)

    def do(self, command: c.Command[T]) -> Decision[T]:
        """Decide and apply, then check everything. What windows of quotas say by now is put in force first."""
        if self.decider.quotas_move(self.now_ms) and not isinstance(command, c.MoveQuotas | c.StartLeading):
            self.do(c.MoveQuotas())
        before = contents(self.state)
        try:
            decision = self.decider.decide(command, self.now_ms)
        finally:
            assert contents(self.state) == before, f"deciding {type(command).__name__} changed books or indexes"
        self.decider.carry_out(decision, self.now_ms)
        self.facts += decision.facts
        check(self.state)
        return decision

    def ask(self, query: Query[T]) -> T:
        """Answer a question, which must change nothing."""
        before = contents(self.state)
        found = self.decider.answer(query, self.now_ms)
        assert contents(self.state) == before, "answering changed books or indexes"
        check(self.state)
        return found

    def read(self) -> View:
        """What a reader would see if everything were durable."""
        view = View()
        view.apply(whole_state(self.state))
        return view

    def tell(self, fact: Fact) -> None:
        """Let something have happened."""
        self.decider.carry_out(Decision((fact,)), self.now_ms)
        self.facts.append(fact)
        check(self.state)

    def settle(self) -> None:
        """What the writer does between commands: everything due, then everything admissible. It must come to an end."""
        steps = 0
        while True:
            if not self.do(c.Tick()).outcome.more:
                break
        while self.decider.wants_admission():
            steps += 1
            assert steps < SETTLE_STEPS_MAX, f"the core goes in circles: {self.facts[-6:]}"
            if not self.do(c.Admit()).outcome.more:
                break

    def advance(self, milliseconds: int) -> None:
        """Let time pass and do what is due."""
        self.now_ms += milliseconds
        self.settle()

    def allocate(self, spec: RequestSpec, **more: object) -> Lease:
        """Ask for a lease; its record afterwards."""
        lease_id = f"l-{next(self._ids):013d}"
        outcome = self.do(c.Allocate(lease_id, spec, **more)).outcome  # type: ignore[arg-type]
        return self.state.leases[outcome.lease_id]

    def connect(self, spec: NodeSpec, reports: tuple[c.SliceReport, ...] = ()) -> None:
        """Register a node's agent and reconcile it."""
        epoch = self.sessions.get(spec.node_id, 0) + 1
        self.sessions[spec.node_id] = epoch
        self.do(c.RegisterNode(spec, epoch))
        self.do(c.ReconcileNode(spec.node_id, epoch, reports))

    def report(
        self, lease: Lease, status: c.ReportStatus, *, index: int | None = None, tier: int = 2, **more: object
    ) -> None:
        """Let the agents say the same of all (or one) of a lease's slices."""
        lease = self.state.leases[lease.lease_id]
        for number, piece in enumerate(lease.holding):
            if index is not None and number != index:
                continue
            node_id = piece.plan.node_id
            said = c.SliceReport(piece.slice_id, piece.lease_epoch, status, tier, **more)  # type: ignore[arg-type]
            self.do(c.ReportSlices(node_id, self.sessions[node_id], (said,)))

    def activate(self, lease: Lease) -> Lease:
        """Every agent confirms."""
        self.report(lease, c.ReportStatus.ACTIVE)
        return self.again(lease)

    def again(self, lease: Lease) -> Lease:
        """The lease's record now."""
        return self.state.leases[lease.lease_id]

    def held(self, state: SliceState) -> int:
        """How many slices are in this state."""
        return sum(piece.state is state for lease in self.state.leases.values() for piece in lease.slices)

    def replayed(self) -> State:
        """A State from the encoded journal alone."""
        state = State.fresh()
        for fact in _decoder.decode(msgspec.msgpack.encode(self.facts)):
            evolve(state, fact)
        return state

    def restored(self) -> State:
        """A State from an encoded snapshot."""
        snapshot = to_snapshot(self.state)
        return from_snapshot(msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot), type=type(snapshot)))
