"""The catalogue of faults, and the schedule that a seed draws from it.

Each fault carries a seed of its own for the choices made when it happens, so that leaving others out of a schedule, as
minimising does, changes as little as possible about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

KINDS: dict[str, tuple[int, int, int]] = {
    # kind: (weight, shortest and longest duration in milliseconds; 0: it has none)
    "net.cut_node": (8, 2_000, 90_000),
    "net.cut_up": (5, 2_000, 60_000),
    "net.cut_down": (5, 2_000, 60_000),
    "net.cut_leader": (2, 1_000, 20_000),
    "net.cut_half": (2, 2_000, 50_000),
    "net.cut_launcher": (3, 2_000, 60_000),
    "net.slow_node": (5, 5_000, 60_000),
    "net.slow_leader": (2, 5_000, 30_000),
    "net.slow_launcher": (2, 5_000, 30_000),
    "net.reset_node": (8, 0, 0),
    "net.reset_leader": (2, 0, 0),
    "net.lossy_calls": (3, 5_000, 40_000),
    "net.twice": (4, 5_000, 40_000),
    "net.half_open": (4, 10_000, 60_000),
    "net.flapping": (3, 5_000, 40_000),
    "net.replayed_orders": (5, 0, 0),
    "net.replayed_reports": (5, 0, 0),
    "net.last_words": (3, 3_000, 9_000),
    "coordinator.crash": (4, 0, 0),
    "coordinator.crash_before_write": (2, 0, 0),
    "coordinator.crash_after_write": (2, 0, 0),
    "coordinator.crash_torn": (2, 0, 0),
    "coordinator.crash_after_sync": (2, 0, 0),
    "coordinator.crash_again": (1, 0, 0),
    "coordinator.terminate": (2, 0, 0),
    "coordinator.settings": (2, 0, 0),
    "coordinator.freeze": (2, 500, 2_500),
    "coordinator.freeze_long": (3, 5_000, 40_000),
    "coordinator.usurped": (3, 0, 0),
    "coordinator.wall_back": (1, 0, 0),
    "coordinator.wall_forward": (1, 0, 0),
    "coordinator.asleep": (1, 4_000, 60_000),
    "coordinator.busy": (3, 5_000, 30_000),
    "disk.slow": (3, 5_000, 60_000),
    "disk.stall": (2, 1_000, 8_000),
    "disk.full": (2, 2_000, 30_000),
    "disk.error": (3, 0, 0),
    "disk.unknown_outcome": (3, 0, 0),
    "disk.snapshot_damaged": (2, 0, 0),
    "disk.snapshot_now": (4, 0, 0),
    "agent.crash": (8, 0, 0),
    "agent.crash_in_save": (5, 0, 0),
    "agent.crash_many": (1, 0, 0),
    "agent.freeze": (5, 1_000, 70_000),
    "agent.power": (4, 5_000, 80_000),
    "agent.power_in_save": (4, 5_000, 80_000),
    "agent.disk_full": (3, 5_000, 40_000),
    "agent.record_damaged": (3, 0, 0),
    "agent.state_lost": (2, 0, 0),
    "agent.slow_threads": (3, 5_000, 40_000),
    "agent.wall_step": (2, 0, 0),
    "device.lost": (4, 5_000, 90_000),
    "device.xid_fatal": (3, 0, 0),
    "device.xid_program": (3, 0, 0),
    "device.hung": (4, 3_000, 60_000),
    "device.blind": (4, 5_000, 60_000),
    "device.unlisted": (3, 5_000, 40_000),
    "device.recovery": (3, 5_000, 60_000),
    "device.remap_failed": (2, 5_000, 60_000),
    "device.cut_fails": (3, 10_000, 60_000),
    "device.foreign": (5, 5_000, 90_000),
    "device.hidden_memory": (3, 5_000, 60_000),
    "device.unplugged": (2, 20_000, 120_000),
    "process.pid_reused": (4, 0, 0),
    "process.killed": (5, 0, 0),
    "process.many_forks": (3, 0, 0),
    "process.abuse": (3, 5_000, 30_000),
    "process.stray": (4, 0, 0),
    "launcher.vanish": (5, 0, 0),
    "launcher.freeze": (4, 2_000, 60_000),
    "launcher.arrive": (4, 0, 0),
    "launcher.burst": (3, 0, 0),
    "launcher.same_key": (4, 0, 0),
    "launcher.changed_body": (3, 0, 0),
    "launcher.release_early": (4, 0, 0),
    "launcher.look": (4, 0, 0),
    "admin.cordon": (4, 5_000, 60_000),
    "admin.drain": (3, 5_000, 60_000),
    "admin.remove": (2, 0, 0),
    "admin.declare": (3, 0, 0),
    "admin.label": (2, 0, 0),
    "admin.quota": (5, 5_000, 60_000),
    "admin.maintenance": (6, 5_000, 60_000),
    "admin.budget": (4, 5_000, 60_000),
    "admin.queue": (4, 5_000, 60_000),
    "admin.windows": (5, 20_000, 120_000),
    "node.twin": (3, 5_000, 90_000),
    "node.impostor": (2, 25_000, 90_000),
    "money.rates": (3, 0, 0),
    "money.credit": (2, 0, 0),
    "money.correct": (2, 0, 0),
    "money.invoice": (4, 0, 0),
    "money.close_books": (3, 0, 0),
    "rack.power": (0, 10_000, 60_000),
    "rack.sick": (0, 20_000, 60_000),
    "rack.hot": (0, 20_000, 60_000),
}
RACK_WEIGHT = 12
"""Of faults of whole racks, where a pool has racks; elsewhere they don't happen."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong, or that somebody does at a bad moment."""

    at_ms: int
    kind: str
    duration_ms: int
    seed: int

    def __str__(self) -> str:
        lasting = f" for {self.duration_ms} ms" if self.duration_ms else ""
        return f"{self.at_ms:>7} ms  {self.kind}{lasting}  (seed {self.seed})"


def schedule(random: Random, config: Any, only: Sequence[str] = ()) -> list[Fault]:
    """Faults of one run, in order of time. Some come alone, some in clusters, as they do. `only`: of these kinds."""
    kinds = list(only or KINDS)
    weights = [KINDS[kind][0] or RACK_WEIGHT * bool(config.racks) for kind in kinds]
    faults: list[Fault] = []
    at_ms = 8_000
    until_ms = config.busy_s * 1000
    while True:
        if random.random() < 0.25:
            at_ms += random.randrange(200)
        else:
            at_ms += int(random.expovariate(config.faults_per_s) * 1000 * 1.33)
        if at_ms >= until_ms:
            return faults
        kind = random.choices(kinds, weights)[0]
        _, shortest, longest = KINDS[kind]
        duration_ms = random.randint(shortest, longest) if longest else 0
        faults.append(Fault(at_ms, kind, min(duration_ms, until_ms - at_ms), random.getrandbits(32)))
