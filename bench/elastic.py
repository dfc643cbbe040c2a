"""What the rule `busy_below` gains: elastic leases that are busy by turns, with the rule and without it.

    python bench/elastic.py --hours 12 --seeds 3 --json

Elastic leases of one queue share a pool that is too small for all of them. Each is busy and idle by turns, for times
that are exponential with a mean of `--minutes`; agents measure them once a minute, and launchers acknowledge at once.
The last line printed is one JSON object, with and without the rule: the part of the pool that leases hold, the part
that busy ones hold, and the part of their busy time that they spend at their start, all in %; and changes of shape per
hour.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import SliceState
from aliquot.coordinator.core.books.tenancy.scaling import ScaleRule
from aliquot.coordinator.core.books.tenancy.specs import QueueSpec
from aliquot.coordinator.core.known.use_windows import Seen, Span
from aliquot.coordinator.core.values.types import Demand, RequestSpec
from bench.lib.driving import Core, build_node

STEP_MS = 10_000
MEASURED_EVERY = 6
"""Steps."""
NODES, DEVICES, LEASES, MOST = 4, 8, 8, 16
BUSY_PERMILLE, IDLE_PERMILLE, BELOW_PERMILLE = 900, 50, 200


class Lessee:
    """An elastic lease whose program is busy and idle by turns."""

    def __init__(self, lease_id: str, rng: random.Random, mean_ms: float) -> None:
        self.lease_id = lease_id
        self.busy = rng.random() < 0.5
        self._rng = rng
        self._mean_ms = mean_ms
        self._turns_ms = rng.expovariate(1 / mean_ms)

    def live(self, ms: int) -> None:
        """Until then."""
        while self._turns_ms <= ms:
            self.busy = not self.busy
            self._turns_ms += self._rng.expovariate(1 / self._mean_ms)


def run(rules: tuple[ScaleRule, ...], hours: float, minutes: float, seed: int) -> dict[str, float]:
    """One pool for so long."""
    core, rng = Core(), random.Random(seed)
    for number in range(NODES):
        core.connect(build_node(f"n-{number}", DEVICES))
    core.do(c.Apply(queues=((QueueSpec("q", scaling=rules), c.ANY_VERSION),)))
    lessees = [Lessee(f"l-{number}", rng, minutes * 60_000) for number in range(LEASES)]
    for lessee in lessees:
        core.do(c.Allocate(lessee.lease_id, RequestSpec(Demand(), "a", "q", max_count=MOST, ttl_ms=0)))
    core.settle()
    held = by_busy = changes = 0
    sizes: list[int] = []
    steps = round(hours * 3_600_000 / STEP_MS)
    for step in range(steps):
        if step % MEASURED_EVERY == 0:
            core.do(c.LookAtUse(tuple(seen(core, one) for one in lessees)))
        core.now_ms += STEP_MS
        core.settle()
        for lessee in lessees:
            lessee.live(step * STEP_MS)
            changes += confirm(core, lessee.lease_id)
            members = len(core.state.leases[lessee.lease_id].current)
            held += members
            if lessee.busy:
                by_busy += members
                sizes.append(members)
        core.take_facts()
    whole = NODES * DEVICES * steps
    return {
        "held": 100 * held / whole,
        "held_by_busy": 100 * by_busy / whole,
        "busy_at_start": 100 * sizes.count(1) / len(sizes),
        "changes_per_hour": changes / hours,
    }


def seen(core: Core, lessee: Lessee) -> Seen:
    """What agents saw of it since the last look."""
    ms, milli = MEASURED_EVERY * STEP_MS, BUSY_PERMILLE if lessee.busy else IDLE_PERMILLE
    pieces = core.state.leases[lessee.lease_id].current
    return Seen(lessee.lease_id, tuple(Span(p.slice_id, ms, ms, milli, milli, milli * ms, 1) for p in pieces))


def confirm(core: Core, lease_id: str) -> bool:
    """What agents and the launcher answer to what became of a lease; whether its shape had changed."""
    _say(core, lease_id, SliceState.GRANTED, c.ReportStatus.ACTIVE)
    lease = core.state.leases[lease_id]
    changed = lease.shape != lease.acknowledged_shape
    if changed:
        core.do(c.AcknowledgeShape(lease_id, lease.shape))
    _say(core, lease_id, SliceState.RELEASING, c.ReportStatus.GONE)
    return changed


def _say(core: Core, lease_id: str, state: SliceState, status: c.ReportStatus) -> None:
    for piece in core.state.leases[lease_id].slices:
        if piece.state is state:
            said = c.SliceReport(piece.slice_id, piece.lease_epoch, status, 2)
            core.do(c.ReportSlices(piece.plan.node_id, 1, (said,)))


def main() -> None:
    """Parse, run every seed, print a table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--hours", type=float, default=6.0, help="of simulated time")
    parser.add_argument("--minutes", type=float, default=30.0, help="mean time that a program is busy, or idle")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="only the JSON line on stdout")
    options = parser.parse_args()
    result: dict[str, dict[str, float]] = {}
    for name, rules in (("without", ()), ("with", (ScaleRule(busy_below_permille=BELOW_PERMILLE),))):
        runs = [run(rules, options.hours, options.minutes, seed) for seed in range(1, options.seeds + 1)]
        result[name] = {key: round(statistics.mean(one[key] for one in runs), 1) for key in runs[0]}
        if not options.json:
            print(f"{name:8s} {result[name]}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
