"""When will what waits start? Said at its submission, compared with what came of it.

The Philly-derived list's first jobs are replayed through the real core, in order of arrival (`queueing.py`, policy
fifo). At the submission of every fourth job that cannot start at once, the pool as it is then is played forward
(`aliquot.forecast.starts`), from what has ended so far alone. Compared with "as long as the last one waited": the wait
of the latest job to have started after waiting.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.tenancy.specs import QueuePolicy
from aliquot.forecast.starts import Line, Running, Starts, Waiting, middle, play
from bench.lib.philly import NODE_DEVICES, guarantees, read_jobs
from bench.queueing import DEVICES, Replay

EVERY = 4
"""Of the jobs that wait, so many-th is asked about: playing takes longer than everything else."""
GUARANTEED_PERMILLE = 800


class AskingReplay(Replay):
    """Asks about jobs that wait."""

    waiting = 0
    asked: dict[str, tuple[float, float]]
    """Lease -> (expected wait, as long as the last one waited), in seconds."""
    within: list[bool]

    def go(self) -> None:
        """Run until everything has ended."""
        self.asked, self.within = {}, []
        self._starts = Starts()
        self._said: dict[str, tuple[float, tuple[float, float] | None]] = {}
        self._ended: dict[str, list[float]] = {}
        self._last_wait_s = 0.0
        self._newest = ""
        super().go()

    def _submit(self, lease_id: str) -> None:
        super()._submit(lease_id)
        self._newest = lease_id

    def _end(self, lease_id: str) -> None:
        ran_s = (self.core.now_ms - self.run_from_ms[lease_id]) / 1000
        self._ended.setdefault(self.jobs[lease_id].tenant, []).append(ran_s)
        super()._end(lease_id)

    def _follow(self) -> None:
        known = len(self.started_ms)
        super()._follow()
        for lease_id in list(self.started_ms)[known:]:
            self._began(lease_id)
        newest, self._newest = self._newest, ""
        if newest and newest not in self.started_ms:
            self.waiting += 1
            if self.waiting % EVERY == 0:
                self._ask(newest)

    def _began(self, lease_id: str) -> None:
        waited_s = self.wait_s(lease_id)
        said = self._said.pop(lease_id, None)
        if said is not None:
            expected_s, around = said
            self._starts.outcome(expected_s, waited_s)
            if around is not None:
                self.within.append(around[0] <= waited_s <= around[1])
        if waited_s > 0:
            self._last_wait_s = waited_s

    def wait_s(self, lease_id: str) -> float:
        """From its submission to its start."""
        return (self.started_ms[lease_id] - self.offset_ms - self.jobs[lease_id].submit_ms) / 1000

    def _ask(self, lease_id: str) -> None:
        found = play(self._line()).get(lease_id)
        if found:
            expected_s = middle(found)
            self.asked[lease_id] = expected_s, self._last_wait_s
            self._said[lease_id] = expected_s, self._starts.around(expected_s)

    def _line(self) -> Line:
        state, now_ms = self.core.state, self.core.now_ms
        free = dict.fromkeys(state.nodes, NODE_DEVICES * 1000)
        numbers = {node_id: number for number, node_id in enumerate(state.nodes)}
        running: list[Running] = []
        waiting: list[Waiting] = []
        for lease in state.leases.values():
            if lease.holding:
                running.append(
                    Running(lease.request.tenant, (now_ms - lease.granted_ms) / 1000, _parts(lease, numbers))
                )
                for piece in lease.holding:
                    free[piece.plan.node_id] -= piece.plan.share_milli
            elif lease.waiting and not lease.ended:
                demand = lease.request.demand
                milli = demand.count * demand.share_milli
                waiting.append(Waiting(lease.lease_id, lease.request.tenant, milli, demand.gang_size))
        return Line(tuple(("", milli) for milli in free.values()), tuple(running), tuple(waiting), self._ended)


def _parts(lease: Lease, numbers: dict[str, int]) -> tuple[tuple[int, int], ...]:
    held: dict[int, int] = {}
    for piece in lease.holding:
        number = numbers[piece.plan.node_id]
        held[number] = held.get(number, 0) + piece.plan.share_milli
    return tuple(held.items())


def run(traces: Path, jobs: int) -> dict[str, float]:
    """See the module's docstring."""
    chosen = read_jobs(traces / "philly-derived")[:jobs]
    replay = AskingReplay(chosen, QueuePolicy.FIFO, guarantees(chosen, DEVICES, GUARANTEED_PERMILLE))
    replay.go()
    waits = [(replay.wait_s(lease_id), *said) for lease_id, said in replay.asked.items()]
    if not waits:
        raise SystemExit(f"none of the first {jobs} jobs is asked about while it waits: take more of them (--jobs)")
    error_s = statistics.median(abs(expected - waited) for waited, expected, _ in waits)
    last_error_s = statistics.median(abs(last - waited) for waited, _, last in waits)
    return {
        "start_error_ratio": round(error_s / last_error_s, 4),
        "start_error_median_s": error_s,
        "start_wait_median_s": statistics.median(waited for waited, _, _ in waits),
        "start_coverage_90": round(sum(replay.within) / max(len(replay.within), 1), 4),
        "start_questions": len(waits),
    }
