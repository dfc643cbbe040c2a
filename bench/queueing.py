"""Queue policies against one another on a real list of jobs, through the real core, in simulated time.

    python bench/queueing.py --trace "$ALIQUOT_TRACES/philly-derived" --json
    python bench/queueing.py --trace "$ALIQUOT_TRACES/philly-derived" --json --full

The list's first 3,000 jobs take a minute or two, all 15,264 of them (`--full`) over half an hour. 15 virtual clusters
are tenants of one pool of 512 devices (64 nodes of 8), with equal weights. 80 % of the pool is guaranteed: to each as
many devices as its largest job has, and an equal part of the rest. The same jobs are replayed under

    fifo        by arrival, without guarantees
    fair_share  weighted, decayed dominant share; guarantees, which are reclaimed from borrowers
    capacity    by what is held over what is guaranteed; the same guarantees

All three let smaller requests pass one that does not fit, and have the same rule for backfill holds. `lib/philly.py`
states the rules for what the list leaves open. Agents are simulated: they confirm at once, and a victim's processes are
gone 10 s after the notice. A preempted job waits again, and goes on from its last checkpoint (one is made every 30
minutes of its run). Fields, by policy:

    mean_wait_s, p99_wait_s      from submission to the first start
    light_p99_wait_s             the same for the ten tenants that bring the least work
    makespan_s                   from the first submission to the last end
    utilisation                  device time leased up to the last submission, over the device time until then
    useful                       the same without work that preempted jobs had to do again
    jain                         fairness among tenants of running time / (running + waiting time) of their jobs
    guaranteed_within_60s        part of the jobs entitled at their submission that began within 60 s
    preemptions_per_1000         preemptions per 1,000 jobs
    turn_p99_ms, turn_max_ms     of the steps of admission; `turn_cpu_p99_ms`: processor time only
"""

from __future__ import annotations

import argparse
import gc
import heapq
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.holds import LeaseReprieved, PreemptionStarted
from aliquot.coordinator.core.books.leases.facts import LeaseGranted, LeaseReleasing
from aliquot.coordinator.core.books.tenancy.specs import Amount, QueuePolicy, QueueSpec, Quota, TenantSpec
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.values.types import RequestSpec
from bench.lib.driving import Core, build_node, percentile
from bench.lib.philly import NODE_DEVICES, Job, guarantees, read_jobs

DEVICES = 512
CHECKPOINT_MS = 30 * 60_000
NOTICE_MS = 10_000
LIGHT_TENANTS = 10


class Replay:
    """One policy on one list of jobs."""

    def __init__(self, jobs: list[Job], policy: QueuePolicy, promised: dict[str, int]) -> None:
        self.jobs = {f"job-{job.number:07d}": job for job in jobs}
        self.core = Core(CoreConfig(confirm_timeout_ms=10**12, retain_ended_ms=1000), start_ms=1_000_000)
        self.offset_ms = self.core.now_ms
        for number in range(DEVICES // NODE_DEVICES):
            self.core.connect(build_node(f"node-{number:04d}", NODE_DEVICES))
        self.promised = promised if policy is not QueuePolicy.FIFO else {}
        queues = tuple(
            (QueueSpec(name=name, parent=parent, policy=policy), 0)
            for name, parent in (("root", ""), ("default", "root"))
        )
        tenants = tuple(
            (TenantSpec(name=name, quota=Quota(guaranteed=Amount(given * 1000))), 0)
            for name, given in self.promised.items()
        )
        self.core.do(c.Apply(queues=queues, tenants=tenants))
        self.events: list[tuple[int, int, str, int]] = []
        self.started_ms: dict[str, int] = {}
        self.ended_ms: dict[str, int] = {}
        self.left_ms = {lease_id: job.duration_ms for lease_id, job in self.jobs.items()}
        self.left_before_ms: dict[str, int] = {}
        """The work a victim had left when its last run began: it continues from there if it is reprieved."""
        self.run_from_ms: dict[str, int] = {}
        self.waited_ms = dict.fromkeys(self.jobs, 0)
        self.wait_from_ms: dict[str, int] = {}
        self.run = dict.fromkeys(self.jobs, 0)
        self.covered: list[str] = []
        self.pending: dict[str, int] = dict.fromkeys(promised, 0)
        """Devices that each tenant asks for and does not have yet."""
        self.preemptions = 0
        self.useful_by_last_submission = 0
        self.leased_by_last_submission = 0

    def go(self) -> None:
        """Run until everything has ended."""
        submit, ended, gone = 0, 1, 2
        for lease_id, job in self.jobs.items():
            heapq.heappush(self.events, (self.offset_ms + job.submit_ms, submit, lease_id, 0))
        last_ms = self.offset_ms + max(job.submit_ms for job in self.jobs.values())
        core = self.core
        while self.events:
            at_ms, kind, lease_id, run = self.events[0]
            due_ms = core.decider.next_due_ms(core.now_ms)
            is_due = due_ms is not None and due_ms < at_ms
            next_ms = max(core.now_ms, due_ms if is_due and due_ms is not None else at_ms)
            held = core.state.tenancy.account("q", "root").share_milli // 1000
            self.leased_by_last_submission += held * max(0, min(next_ms, last_ms) - core.now_ms)
            core.now_ms = next_ms
            if not is_due:
                heapq.heappop(self.events)
                if kind == submit:
                    self._submit(lease_id)
                elif kind == ended and run == self.run[lease_id]:
                    self._end(lease_id)
                elif kind == gone and run == self.run[lease_id]:
                    core.report(lease_id, c.ReportStatus.GONE)
            core.settle()
            self._follow()
        self.useful_by_last_submission = self._useful(last_ms)

    def _submit(self, lease_id: str) -> None:
        job = self.jobs[lease_id]
        if self.promised:
            held = self.core.state.tenancy.account("t", job.tenant).share_milli // 1000
            if held + self.pending[job.tenant] + job.devices <= self.promised[job.tenant]:
                self.covered.append(lease_id)
        self.pending[job.tenant] += job.devices
        self.wait_from_ms[lease_id] = self.core.now_ms
        spec = RequestSpec(demand=job.demand, tenant=job.tenant, ttl_ms=0, grace_ms=NOTICE_MS)
        self.core.do(c.Allocate(lease_id, spec))

    def _end(self, lease_id: str) -> None:
        self.ended_ms[lease_id] = self.core.now_ms
        self.core.do(c.Release(lease_id))
        self.core.report(lease_id, c.ReportStatus.GONE)

    def _follow(self) -> None:
        now_ms, core = self.core.now_ms, self.core
        for fact in core.take_facts():
            if isinstance(fact, LeaseGranted):
                lease_id, job = fact.lease_id, self.jobs[fact.lease_id]
                core.report(lease_id, c.ReportStatus.ACTIVE)
                self.run[lease_id] += 1
                self.pending[job.tenant] -= job.devices
                self.started_ms.setdefault(lease_id, now_ms)
                self.waited_ms[lease_id] += now_ms - self.wait_from_ms.pop(lease_id)
                self.run_from_ms[lease_id] = now_ms
                heapq.heappush(self.events, (now_ms + self.left_ms[lease_id], 1, lease_id, self.run[lease_id]))
            elif isinstance(fact, LeaseReleasing) and fact.requeue:
                lease_id, job = fact.lease_id, self.jobs[fact.lease_id]
                self.left_before_ms[lease_id] = self.left_ms[lease_id]
                done_ms = (now_ms - self.run_from_ms[lease_id]) // CHECKPOINT_MS * CHECKPOINT_MS
                self.left_ms[lease_id] -= done_ms
                self.run[lease_id] += 1
                self.pending[job.tenant] += job.devices
                self.wait_from_ms[lease_id] = now_ms
                heapq.heappush(self.events, (now_ms + NOTICE_MS, 2, lease_id, self.run[lease_id]))
            elif isinstance(fact, LeaseReprieved):
                lease_id, job = fact.lease_id, self.jobs[fact.lease_id]
                self.left_ms[lease_id] = self.left_before_ms[lease_id]
                self.run[lease_id] += 1
                self.pending[job.tenant] -= job.devices
                del self.wait_from_ms[lease_id]
                end_ms = self.run_from_ms[lease_id] + self.left_ms[lease_id]
                heapq.heappush(self.events, (end_ms, 1, lease_id, self.run[lease_id]))
            elif isinstance(fact, PreemptionStarted):
                self.preemptions += len(fact.victims)
        core.take_facts()

    def _useful(self, until_ms: int) -> int:
        """Device-milliseconds of work up to a moment that was not lost, including that of jobs still running."""
        total = 0
        for lease_id, job in self.jobs.items():
            end_ms = self.ended_ms[lease_id]
            after_ms = max(0, end_ms - max(until_ms, self.run_from_ms[lease_id]))
            total += job.devices * max(0, job.duration_ms - after_ms)
        return total

    def figures(self) -> dict[str, float]:
        """See the module's docstring."""
        jobs = self.jobs
        waits = {i: (self.started_ms[i] - self.offset_ms - job.submit_ms) / 1000 for i, job in jobs.items()}
        work: dict[str, int] = {}
        for job in jobs.values():
            work[job.tenant] = work.get(job.tenant, 0) + job.work
        light = set(sorted(work, key=lambda name: work[name])[:LIGHT_TENANTS])
        running = dict.fromkeys(work, 0)
        whole = dict.fromkeys(work, 0)
        for lease_id, job in jobs.items():
            running[job.tenant] += job.duration_ms
            whole[job.tenant] += self.ended_ms[lease_id] - self.offset_ms - job.submit_ms
        parts = [running[name] / whole[name] for name in work]
        span_ms = max(job.submit_ms for job in jobs.values())
        turns = self.core.turns_ns
        found = {
            "mean_wait_s": round(sum(waits.values()) / len(waits), 1),
            "p99_wait_s": round(percentile(list(waits.values()), 0.99), 1),
            "light_p99_wait_s": round(percentile([w for i, w in waits.items() if jobs[i].tenant in light], 0.99), 1),
            "makespan_s": (max(self.ended_ms.values()) - self.offset_ms) / 1000,
            "utilisation": round(self.leased_by_last_submission / (DEVICES * max(span_ms, 1)), 4),
            "useful": round(self.useful_by_last_submission / (DEVICES * max(span_ms, 1)), 4),
            "jain": round(sum(parts) ** 2 / (len(parts) * sum(part * part for part in parts)), 4),
            "preemptions_per_1000": round(1000 * self.preemptions / len(jobs), 2),
            "turn_p99_ms": round(percentile(turns, 0.99) / 1e6, 2),
            "turn_max_ms": round(max(turns, default=0) / 1e6, 2),
            "turn_cpu_p99_ms": round(percentile(self.core.turns_cpu_ns, 0.99) / 1e6, 2),
        }
        if self.covered:
            served = sum(waits[lease_id] <= 60 for lease_id in self.covered)
            found["guaranteed_jobs"] = len(self.covered)
            found["guaranteed_within_60s"] = round(served / len(self.covered), 5)
        return found


def main() -> None:
    """Replay under each policy."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = Path(os.environ.get("ALIQUOT_TRACES", ".")) / "philly-derived"
    parser.add_argument("--trace", type=Path, default=default, help="folder of the Philly-derived lists")
    parser.add_argument("--policies", default="fifo,fair_share,capacity")
    parser.add_argument("--jobs", type=int, default=3000, help="only the first so many")
    parser.add_argument("--full", action="store_true", help="all of them, which takes half an hour")
    parser.add_argument(
        "--guaranteed", type=int, default=800, help="permille of the pool that is guaranteed to somebody"
    )
    parser.add_argument("--json", action="store_true", help="only the JSON line on stdout")
    options = parser.parse_args()
    jobs = read_jobs(options.trace)
    jobs = jobs if options.full else jobs[: options.jobs]
    promised = guarantees(jobs, DEVICES, options.guaranteed)
    result: dict[str, dict[str, float]] = {}
    for name in options.policies.split(","):
        started = time.perf_counter()
        replay = Replay(jobs, QueuePolicy(name), promised)
        gc.collect()
        gc.freeze()
        replay.go()
        result[name] = replay.figures()
        result[name]["took_s"] = round(time.perf_counter() - started, 1)
        if not options.json:
            print(name, json.dumps(result[name]), flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
