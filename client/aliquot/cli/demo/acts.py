"""The steps of the demonstration. Each shows one promise of the product on real processes, and checks it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from aliquot.cli import _views as views
from aliquot.cli import _words as words
from aliquot.cli._out import missing_table
from aliquot.cli._table import table
from aliquot.cli.demo.jobs import UNHARMED, Job, JobSpec, start, wants
from aliquot.cli.demo.story import Story
from aliquot.cli.localpool import LocalPool, answers
from aliquot.cli.localpool.pool import ready_names
from aliquot.cli.top.snapshot import observe
from aliquot.client import HeldLease, Lease, LeaseState, NeverFits, Pool, Tier
from aliquot.client.admin import Invoice
from aliquot.client.local import LocalAgent
from aliquot.common.limits import GIB

JOBS = (
    JobSpec("detect", "vision", "0.25(A100),8Gi", ("5Gi",), busy_percent=20, node="node-1"),
    JobSpec("transcribe", "speech", "0.25(A100),10Gi", ("6Gi",), busy_percent=10, node="node-1"),
    JobSpec("pretrain", "speech", "2(A100)", ("30Gi", "30Gi"), busy_percent=40),
    JobSpec("segment", "vision", "0.5(A100),20Gi", ("14Gi",), busy_percent=30, node="node-2"),
    JobSpec("track", "vision", "2x0.5(A100),16Gi", ("10Gi", "10Gi"), busy_percent=20, node="node-2"),
)
DENIED = JobSpec("hasty", "vision", "0.25(A100),6Gi", ("3Gi",), busy_percent=10, grows_by="2Gi", node="node-1")
STOPPED = JobSpec("greedy", "speech", "0.25(A100),8Gi", ("3Gi",), busy_percent=10, grows_by="2Gi", node="node-2")
TIERS = ("", "watchdog")
"""node-1 enforces as strongly as it can here, node-2 in the way that works on every node."""
LATE = JobSpec("late", "vision", "0.5(A100),12Gi", ("8Gi",), busy_percent=10)
TOO_MUCH = "1(H200)"
NOT_NOW = "4(A100)"

DENYING = frozenset({Tier.PRELOAD, Tier.MPS, Tier.DRIVER, Tier.MIG})
"""Tiers under which an allocation beyond the limit fails, instead of being noticed afterwards."""
STOPPED_WITHIN_S = 30.0
BACK_WITHIN_S = 40.0


@dataclass(slots=True)
class Stage:
    """What the steps work on."""

    story: Story
    local: LocalPool
    pool: Pool
    jobs: list[Job] = field(default_factory=list)

    def job(self, name: str) -> Job:
        """A job by name."""
        return next(job for job in self.jobs if job.plan.name == name)

    def begin(self, plan: JobSpec) -> Job:
        """Start a job."""
        job = start(self.pool, plan, self.local.layout.logs)
        self.jobs.append(job)
        return job

    def clear(self) -> None:
        """Kill what still runs."""
        for job in self.jobs:
            for process in job.processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()

    def neighbours(self) -> list[Job]:
        """The jobs that keep within their parts."""
        return [job for job in self.jobs if not job.offends]


def share(stage: Stage) -> None:
    """Two tenants run jobs of different sizes on parts of the same devices."""
    story = stage.story
    with story.step("Two tenants share the GPUs, each with exact parts"):
        for plan in JOBS:
            job = stage.begin(plan)
            story.tell(f"{plan.tenant}/{plan.name} asked for {plan.gpu}, will use {wants(plan)}; {_placed(job.lease)}")
        story.claim("every lease is active, its limit read back from the device", holds=_all_active(stage))
        story.await_claim(
            "every process holds its memory on the GPU that its lease names",
            lambda: _all_observed(stage, stage.jobs) and all(job.alive for job in stage.jobs),
            STOPPED_WITHIN_S,
        )
        story.indent(views.leases_table(stage.pool.leases()))


def overstep(stage: Stage) -> None:
    """Two jobs exceed their limits: one where the excess is denied, one where it is noticed."""
    story = stage.story
    with story.step("Two jobs outgrow their parts; both are held to them, and their neighbours live on"):
        for plan in (DENIED, STOPPED):
            job = stage.begin(plan)
            story.tell(f"{plan.tenant}/{plan.name} asked for {plan.gpu} and takes {wants(plan)}; {_placed(job.lease)}")
            beside = [other.plan.name for other in stage.neighbours() if _devices(other) & _devices(job)]
            story.tell(f"on that GPU beside it: {', '.join(beside) or 'nobody'}")
        for job in (job for job in stage.jobs if job.offends):
            _claim_held_to_its_part(stage, job)
        story.claim(
            f"all {sum(len(job.pids) for job in stage.neighbours())} processes of the others are alive",
            holds=all(job.alive for job in stage.neighbours()),
        )


def _claim_held_to_its_part(stage: Stage, job: Job) -> None:
    """By a tier that denies it more, or by the watchdog."""
    story, name = stage.story, job.plan.name
    part = job.lease.slices[0]
    if part.tier in DENYING:
        claim = f"{name} was denied more than its {words.amount(part.memory_bytes)} by the {words.tier(part.tier)} tier"
        story.await_claim(claim, lambda: job.outcome.startswith("denied"), STOPPED_WITHIN_S)
        story.tell(f"it says: {_last_words(stage, job)}")
        return
    story.await_claim(f"{name} was stopped by the watchdog", lambda: job.ended, STOPPED_WITHIN_S)
    acts = [act for agent in stage.pool.agents for act in agent.status().acts if act.pid in job.pids]
    for act in acts:
        story.tell(f"the agent says: {act.act}: {act.why}")
    story.claim("the agent's record names its process", holds=any(act.act == "terminate" for act in acts))


def _last_words(stage: Stage, job: Job) -> str:
    log = stage.local.layout.logs / f"{job.plan.name}.log"
    return log.read_text(errors="replace").strip().rpartition("\n")[2]


def refuse(stage: Stage) -> None:
    """Requests that don't fit are explained."""
    story = stage.story
    with story.step("What does not fit is explained"):
        never = None
        try:
            stage.pool.lease(TOO_MUCH, tenant="vision").release()
        except NeverFits as refusal:
            never = refusal.explanation
        story.claim(f"{TOO_MUCH} is refused at once", holds=never is not None)
        if never is not None:
            story.indent(missing_table(never))
        explanation = stage.pool.explain(NOT_NOW, tenant="vision")
        story.claim(
            f"{NOT_NOW} would have to wait, and is told for what",
            holds=not explanation.fits_now and not explanation.impossible and bool(explanation.missing),
        )
        story.indent(missing_table(explanation))


def lose_coordinator(stage: Stage) -> None:
    """Kill -9 of the coordinator."""
    story = stage.story
    with story.step("kill -9 of the coordinator, in the middle of everything"):
        before, pids = _leases(stage), _pids(stage)
        stage.local.coordinator.kill()
        story.tell(f"the coordinator (pid {stage.local.coordinator.pid}) is dead")
        story.claim("the jobs run on under their limits", holds=all(job.alive for job in stage.neighbours()))
        stage.local.start_coordinator()
        story.tell(
            f"started again as pid {stage.local.coordinator.pid}; it reads its journal, agents report, it compares"
        )
        _await_ready(stage)
        _claim_nothing_lost(stage, before, pids)
        late = stage.begin(LATE)
        story.claim(f"and it grants again: {LATE.gpu}, {_placed(late.lease)}", holds=late.lease.info.running)


def lose_agent(stage: Stage) -> None:
    """Kill -9 of an agent."""
    story = stage.story
    name = stage.job("track").lease.slices[0].node_name
    node = stage.local.node(name)
    with story.step(f"kill -9 of the agent of {name}"):
        before, pids = _leases(stage), _pids(stage)
        node.agent.kill()
        story.tell(f"the agent (pid {node.agent.pid}) is dead; nobody watches {name} for a moment")
        story.claim("no job has noticed", holds=all(job.alive for job in stage.neighbours()))
        node.agent.start()
        story.tell(f"started again as pid {node.agent.pid}; it takes up the reservations it has on disk")
        story.await_claim("it is connected", lambda: answers(LocalAgent(node.socket)), BACK_WITHIN_S)
        _await_ready(stage)
        _claim_nothing_lost(stage, before, pids)
        story.await_claim(
            "and it knows whose each process is",
            lambda: _all_observed(stage, stage.neighbours()),
            BACK_WITHIN_S,
        )


def account(stage: Stage) -> list[Invoice]:
    """Everything is given back, and each tenant's account is shown."""
    story = stage.story
    with story.step("Everything goes back; who used what"):
        outcomes = {job.plan.name: job.outcome for job in stage.jobs}
        for job in stage.jobs:
            job.end()
        story.claim(
            "every process has ended",
            holds=not any(process.poll() is None for job in stage.jobs for process in job.processes),
        )
        status = stage.pool.status()
        story.claim(
            "nothing is leased any more",
            holds=not any(totals.leased_share_milli or totals.leased_memory_bytes for totals in status.pools),
        )
        story.indent(table("JOB", "OUTCOME", rows=list(outcomes.items())))
        tenants, now_ms = sorted({job.plan.tenant for job in stage.jobs}), int(time.time() * 1000)
        invoices = [stage.pool.admin.invoice(tenant, from_ms=0, to_ms=now_ms) for tenant in tenants]
        story.indent(
            table(
                "TENANT",
                "MODEL",
                ("SLICES", "right"),
                ("GPU·S", "right"),
                ("GIB·S", "right"),
                rows=[
                    (
                        invoice.tenant,
                        line.model or "any",
                        str(line.slices),
                        f"{line.share_milli_ms / 1e6:.1f}",
                        f"{line.memory_byte_ms / GIB / 1000:.0f}",
                    )
                    for invoice in invoices
                    for line in invoice.lines
                ],
            )
        )
        story.claim("each tenant's account has what it held", holds=all(invoice.lines for invoice in invoices))
        story.claim(
            "no neighbour was touched", holds=all(outcomes[job.plan.name] == UNHARMED for job in stage.neighbours())
        )
    return invoices


def _placed(lease: HeldLease) -> str:
    short = words.short(part.device_uuid for part in lease.slices)
    parts = ", ".join(f"{part.node_name} {short(part.device_uuid)}" for part in lease.slices)
    return f"got {parts} ({words.tier(lease.slices[0].tier)})"


def _devices(job: Job) -> set[str]:
    return {part.device_uuid for part in job.lease.slices}


def _all_active(stage: Stage) -> bool:
    return all(job.lease.refresh().state is LeaseState.ACTIVE for job in stage.jobs)


def _all_observed(stage: Stage, jobs: list[Job]) -> bool:
    """Whether the agents see memory of each job on each of its devices."""
    seen = observe(stage.pool)
    return all(seen.get(part.slice_id) for job in jobs for part in job.lease.slices)


def _leases(stage: Stage) -> dict[str, Lease]:
    return {lease.lease_id: lease for lease in stage.pool.leases()}


def _pids(stage: Stage) -> dict[str, tuple[int, ...]]:
    return {job.plan.name: job.pids for job in stage.neighbours() if job.alive}


def _await_ready(stage: Stage) -> None:
    names = {node.name for node in stage.local.nodes}
    stage.story.await_claim(
        "every node is reconciled and ready", lambda: names <= ready_names(stage.pool), BACK_WITHIN_S
    )


def _claim_nothing_lost(stage: Stage, before: dict[str, Lease], pids: dict[str, tuple[int, ...]]) -> None:
    story = stage.story
    story.await_claim(
        "every lease is what it was: same devices, same amounts, same state",
        lambda: (
            {key: _essence(lease) for key, lease in _leases(stage).items()}
            == {key: _essence(lease) for key, lease in before.items()}
        ),
        BACK_WITHIN_S,
    )
    after = _leases(stage)
    names = {job.lease.lease_id: job.plan.name for job in stage.jobs}
    story.indent(
        table(
            "JOB",
            "LEASE",
            "BEFORE",
            "AFTER",
            "HOLDS",
            rows=[
                (
                    names.get(key, words.UNKNOWN),
                    key,
                    words.state(lease.state),
                    words.state(after[key].state),
                    words.holding(after[key]),
                )
                for key, lease in before.items()
            ],
        )
    )
    story.claim("every process is the same one as before, and alive", holds=_pids(stage) == pids)


def _essence(lease: Lease) -> tuple[object, ...]:
    parts = sorted(
        (part.slice_id, part.node_id, part.device_uuid, part.share_milli, part.memory_bytes, part.tier, part.state)
        for part in lease.slices
    )
    return lease.tenant, lease.state, lease.lease_epoch, lease.granted_ms, tuple(parts)
