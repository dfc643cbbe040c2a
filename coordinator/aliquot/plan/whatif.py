"""What-if: the same requests on the same pool under several policies, or with more nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from aliquot.coordinator.core.placement import Engine, make_policy
from aliquot.coordinator.core.placement.mix import mix_type
from aliquot.coordinator.core.values.types import Demand, NodeSpec
from aliquot.plan.learning import online
from aliquot.plan.replay import capacity_milli, fill, fragmented_percent, pool_of
from aliquot.plan.timeline import Timeline, TimelineRun
from aliquot.plan.traces import TraceRequest


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row of the table: a pool and a policy, and what came of the requests."""

    label: str
    policy: str
    devices: int
    requests: int
    placed: int
    allocated_percent: float
    """In time: the mean up to the last arrival; without times: in the end."""
    fragmented_percent: float
    """Of what is idle in the end, what the mix of requests can't use."""
    wait_p50_s: float
    wait_p95_s: float
    timeline: Timeline | None


def has_times(requests: Sequence[TraceRequest]) -> bool:
    """Can the requests be replayed in time? Otherwise they are placed one after another, and none leaves."""
    return any(request.duration_s > 0 for request in requests) and len({r.arrival_s for r in requests}) > 1


def evaluate(
    label: str,
    nodes: Sequence[NodeSpec],
    requests: Sequence[TraceRequest],
    policy_name: str,
    *,
    in_time: bool,
    progress: Callable[[int], None] | None = None,
) -> Outcome:
    """Replay the requests; policies that learn do so on the way."""
    inventory = pool_of(nodes)
    policy = make_policy(policy_name)
    mix = Counter(mix_type(request.demand) for request in requests)
    engine = Engine(inventory, policy)
    watch = online(policy, inventory)
    timeline: Timeline | None = None
    if in_time:
        timeline = TimelineRun(engine, requests, watch, mix).run(progress)
        placed, allocated = timeline.placed, timeline.mean_allocated_percent
        fragmented = timeline.fragmented_percent
    else:

        def before(number: int, demand: Demand) -> None:
            watch(number, demand)
            if progress is not None:
                progress(number + 1)

        curve = fill(engine, [request.demand for request in requests], before=before)
        placed = len(requests) - curve.refused
        last = curve.allocated_milli[-1] if curve.allocated_milli else 0
        allocated = 100 * last / max(curve.capacity_milli, 1)
        fragmented = fragmented_percent(engine, mix)
    return Outcome(
        label=label,
        policy=policy_name,
        devices=capacity_milli(inventory) // 1000,
        requests=len(requests),
        placed=placed,
        allocated_percent=allocated,
        fragmented_percent=fragmented,
        wait_p50_s=timeline.wait_s(0.5) if timeline else 0.0,
        wait_p95_s=timeline.wait_s(0.95) if timeline else 0.0,
        timeline=timeline,
    )
