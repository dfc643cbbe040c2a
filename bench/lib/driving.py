"""Drives the pure core without I/O: for benchmarks of decisions, in simulated time."""

from __future__ import annotations

import time
from typing import TypeVar

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.commands.outcomes import Decision
from aliquot.coordinator.core.decider import Decider
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.types import DeviceSpec, NodeSpec

T = TypeVar("T")

GIB = 1 << 30


def build_node(name: str, devices: int, *, model: str = "V100-32", agentless: bool = False) -> NodeSpec:
    """A node with equal devices."""
    return NodeSpec(
        node_id=name,
        name=name,
        devices=tuple(DeviceSpec(f"{name}/{i}", model, 32 * GIB, index=i) for i in range(devices)),
        agentless=agentless,
    )


class Core:
    """A State and a clock. Does what the writer does, without the journal."""

    def __init__(self, config: CoreConfig | None = None, *, start_ms: int = 1_000_000_000) -> None:
        self.decider = Decider(State.fresh(), config)
        self.state = self.decider.state
        self.now_ms = start_ms
        self.fresh: list[Fact] = []
        """Facts since the last `take_facts`."""
        self.decide_ns = 0
        """Time spent in deciding since the last reset."""
        self.decide_cpu_ns = 0
        """The same without what neighbours on the machine took."""
        self.turns_ns: list[int] = []
        """Each step of admission: deciding and applying."""
        self.turns_cpu_ns: list[int] = []
        """The same without what neighbours on the machine took."""
        self.do(c.StartLeading(1))

    def do(self, command: c.Command[T]) -> Decision[T]:
        """Decide and apply."""
        started, started_cpu = time.perf_counter_ns(), time.thread_time_ns()
        decision = self.decider.decide(command, self.now_ms)
        self.decide_ns += time.perf_counter_ns() - started
        self.decide_cpu_ns += time.thread_time_ns() - started_cpu
        self.decider.carry_out(decision, self.now_ms)
        self.fresh += decision.facts
        return decision

    def settle(self, attempts: int = 16) -> None:
        """Carry out everything that is due, then admit everything that fits."""
        while True:
            due_ms = self.decider.next_due_ms(self.now_ms)
            if due_ms is None or due_ms > self.now_ms:
                break
            self.do(c.Tick())
        while self.decider.wants_admission():
            started, started_cpu = time.perf_counter_ns(), time.thread_time_ns()
            self.do(c.Admit(attempts))
            self.turns_ns.append(time.perf_counter_ns() - started)
            self.turns_cpu_ns.append(time.thread_time_ns() - started_cpu)

    def connect(self, spec: NodeSpec) -> None:
        """Register a node whose agent holds nothing yet."""
        self.do(c.RegisterNode(spec, 1))
        self.do(c.ReconcileNode(spec.node_id, 1, ()))

    def report(self, lease_id: str, status: c.ReportStatus) -> None:
        """All agents report the same status for all slices of a lease."""
        lease = self.state.leases[lease_id]
        by_node: dict[str, list[c.SliceReport]] = {}
        for piece in lease.holding:
            said = c.SliceReport(piece.slice_id, piece.lease_epoch, status, 5)
            by_node.setdefault(piece.plan.node_id, []).append(said)
        for node_id, reports in by_node.items():
            self.do(c.ReportSlices(node_id, 1, tuple(reports)))

    def take_facts(self) -> list[Fact]:
        """The facts since the last call."""
        facts, self.fresh = self.fresh, []
        self.state.take_touched()
        return facts


def percentile(values: list[int] | list[float], part: float) -> float:
    """The value below which this part of them lies; 0 for no values."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return float(ordered[min(len(ordered) - 1, int(len(ordered) * part))])
