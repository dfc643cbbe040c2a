"""`demo --vendors`: cards of four vendors in one pool, and a cheat on each, held by the tier that it has there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table
from rich.text import Text

from aliquot.cli import _words as words
from aliquot.cli._table import table, table_of
from aliquot.cli.demo.acts import STOPPED_WITHIN_S, Stage, claim_held_to_its_part
from aliquot.cli.demo.jobs import Job, JobPlan, burn, wants
from aliquot.cli.localpool.children import ChildFailed, clean_environment
from aliquot.client import HeldLease, LeaseState, Tier
from aliquot.common import catalog
from aliquot.common.quantity import parse_bytes

CARDS = ("--drm", "MI300X,B60", "--ascend", "910B3", "--cut", "0:vir05_1c_16g:100", "--cut", "0:vir10_3c_32g:102")
DEVICES = 6
"""Two of NVIDIA, one of AMD, one of Intel, and two virtual NPUs of one Ascend chip."""
NEIGHBOURS = (
    JobPlan("detect", "vision", "0.5(nvidia),16Gi", ("10Gi",)),
    JobPlan("caption", "vision", "0.5(MI300X),64Gi", ("40Gi",)),
    JobPlan("upscale", "speech", "0.5(intel),10Gi", ("8Gi",)),
    JobPlan("translate", "speech", "vir10_3c_32g(ascend:910B3)", ("20Gi",)),
)
CHEATS = (
    JobPlan("greedy-nvidia", "speech", "0.25(nvidia),6Gi", ("3Gi",), grows_by="2Gi"),
    JobPlan("greedy-amd", "speech", "0.25(amd),16Gi", ("10Gi",), grows_by="8Gi"),
    JobPlan("greedy-intel", "vision", "0.25(intel),4Gi", ("2Gi",), grows_by="1Gi"),
    JobPlan("greedy-ascend", "vision", "vir05_1c_16g(ascend)", ("10Gi",), grows_by="4Gi"),
)
ELSEWHERE = "1(gaudi)"


@dataclass(frozen=True, slots=True)
class Held:
    """What became of a cheat."""

    vendor: str
    device: str
    job: str
    gpu: str
    tier: str
    outcome: str
    neighbour: str


def make_cards(directory: Path) -> tuple[tuple[str, str], ...]:
    """Make the simulated cards; the variables of their agent, which has a fifth kind of devices, too: one whose
    library is broken. Raises `ChildFailed`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "aliquot.simgpu.vendors", str(directory), *CARDS]
    made = subprocess.run(  # noqa: S603 - our own program
        command, check=False, capture_output=True, text=True, env=clean_environment({})
    )
    if made.returncode != 0:
        raise ChildFailed(f"the simulated cards can't be made: {made.stderr.strip()}", hint="make native")
    answer = json.loads(made.stdout)
    broken = directory / "libhlml.so"
    broken.write_text("not a library\n")
    kinds = f"nvml,{answer['devices']},gaudi:{broken}"
    return (*answer["variables"].items(), ("ALIQUOT_AGENT_DEVICES", kinds))


def prove(directory: Path, state_dir: Path) -> list[str]:
    """Have `aliquot doctor` find out what holds on these cards, before their agent starts; what it says of that."""
    command = [sys.executable, "-m", "aliquot.cli", "doctor", "--json"]
    command += ["--devices", f"drm:{directory / 'drm'}", "--state-dir", str(state_dir)]
    done = subprocess.run(  # noqa: S603 - our own program
        command, check=False, capture_output=True, text=True, env=clean_environment({})
    )
    found = json.loads(done.stdout) if done.stdout.startswith("[") else []
    told = [each["text"] for each in found if each["subject"] == "tier driver"]
    return [f"{vendor}: tier driver {text}" for vendor, text in zip(("AMD", "Intel"), told, strict=False)]


def show(stage: Stage, directory: Path) -> list[Held]:
    """All steps; what held each cheat."""
    _look(stage)
    _share(stage, directory)
    held = _cheat(stage, directory)
    _end(stage, held)
    return held


def _look(stage: Stage) -> None:
    story = stage.story
    with story.step("One node has cards of four vendors, and a fifth kind whose library is broken"):
        devices = sorted(stage.pool.devices(), key=lambda device: (device.index, device.uuid))
        story.indent(
            table_of(
                devices,
                {
                    "VENDOR": lambda each: catalog.vendor_title(each.vendor),
                    "MODEL": lambda each: words.model(each.model, each.mig_profile),
                    "MEMORY": lambda each: words.amount(each.memory_total_bytes),
                    "DEVICE": lambda each: each.uuid,
                },
                right=("MEMORY",),
            )
        )
        vendors = {each.vendor for each in devices if each.healthy}
        story.claim(f"{DEVICES} devices are there and healthy", holds=len(devices) == DEVICES and len(vendors) == 4)
        notes = [note for agent in stage.pool.agents for note in agent.info().notes]
        told = next((note for note in notes if "gaudi" in note), "")
        story.claim("the broken kind is told, and takes nothing from the others", holds=bool(told))
        story.tell(f"the agent says: {told}")


def _share(stage: Stage, directory: Path) -> None:
    story = stage.story
    with story.step("Two tenants ask in one grammar, and get exact parts of every vendor's cards"):
        for plan in NEIGHBOURS:
            job = _begin(stage, plan, directory)
            story.tell(f"{plan.tenant}/{plan.name} asked for {plan.gpu}: {_where(stage, job)}")
        story.claim(
            "every lease is active", holds=all(job.lease.refresh().state is LeaseState.ACTIVE for job in stage.jobs)
        )
        story.claim("every program runs", holds=all(job.alive for job in stage.jobs))
        stage.claim_refused(ELSEWHERE, f"{ELSEWHERE} is refused, and the vendor is named")


def _cheat(stage: Stage, directory: Path) -> list[Held]:
    story = stage.story
    held: list[Held] = []
    with story.step("A cheat on each takes more than its part; the tier that it has there holds it"):
        cheats = [_begin(stage, plan, directory) for plan in CHEATS]
        for job in cheats:
            part = job.lease.slices[0]
            story.tell(f"{job.plan.name} asked for {job.plan.gpu} and takes {wants(job.plan)}; {_where(stage, job)}")
            spills = part.tier is Tier.DRIVER and _vendor(stage, job) in ("amd", "intel")
            if spills:
                _claim_spilled(stage, job, words.amount(part.memory_bytes))
            else:
                claim_held_to_its_part(stage, job)
            held.append(_row(stage, job, "held: the rest went to the host" if spills else job.outcome))
        story.claim("no neighbour was touched", holds=all(job.alive for job in stage.neighbours()))
    return held


def _claim_spilled(stage: Stage, job: Job, limit: str) -> None:
    """Under `dmem` nothing is denied: what is too much goes to the machine's memory."""
    part, wanted = job.lease.slices[0], parse_bytes(job.plan.uses[0]) + 2 * parse_bytes(job.plan.grows_by)
    story = stage.story
    log = stage.local.layout.logs / f"{job.plan.name}.log"
    story.await_claim(
        f"{job.plan.name} has asked for more than its {limit}",
        lambda: f"({wanted} bytes)" in log.read_text(),
        STOPPED_WITHIN_S,
    )
    story.await_claim(
        f"and holds no more than {limit} of the card: the kernel moved the rest to the machine's memory (dmem)",
        lambda: 0 < (stage.peaks.now_bytes.get(part.slice_id) or 0) <= part.memory_bytes,
        STOPPED_WITHIN_S,
    )


def _end(stage: Stage, held: Sequence[Held]) -> None:
    story = stage.story
    with story.step("Which tier held what"):
        for job in stage.jobs:
            job.end()
        story.claim(
            "every process has ended, and nothing is leased any more",
            holds=not any(job.alive for job in stage.jobs)
            and not any(each.leased_memory_bytes for each in stage.pool.devices()),
        )
        story.show(Text())
        story.indent(_table(held))
        story.tell("All of these cards are simulated: none of this was run on hardware (docs/vendors.md).")


def _table(held: Sequence[Held]) -> Table:
    rows = [(h.vendor, h.device, h.job, h.gpu, h.tier, h.outcome, h.neighbour) for h in held]
    return table("VENDOR", "CARD", "CHEAT", "ASKED FOR", "TIER", "WHAT HAPPENED", "ITS NEIGHBOUR", rows=rows)


def _row(stage: Stage, job: Job, outcome: str) -> Held:
    part = job.lease.slices[0]
    beside = next(
        (other for other in stage.neighbours() if _vendor(stage, other) == _vendor(stage, job)),
        None,
    )
    return Held(
        catalog.vendor_title(_vendor(stage, job)),
        part.device_model,
        job.plan.name,
        job.plan.gpu,
        f"{words.tier(part.tier)} (dmem)" if outcome.startswith("held") else words.tier(part.tier),
        outcome,
        f"{beside.plan.name} {beside.outcome}" if beside is not None else "",
    )


def _vendor(stage: Stage, job: Job) -> str:
    return _vendor_of(stage, job.lease)


def _vendor_of(stage: Stage, lease: HeldLease) -> str:
    uuid = lease.slices[0].device_uuid
    return next((device.vendor for device in stage.pool.devices() if device.uuid == uuid), "")


def _where(stage: Stage, job: Job) -> str:
    part = job.lease.slices[0]
    what = f"{catalog.vendor_title(_vendor(stage, job))} {part.device_model} ({words.tier(part.tier)})"
    return f"got {words.share(part.share_milli)} of {what} with {words.amount(part.memory_bytes)}"


def _begin(stage: Stage, plan: JobPlan, directory: Path) -> Job:
    """Start a job by CUDA's program on NVIDIA's cards, elsewhere by one that stands for the vendor's."""

    def program(lease: HeldLease) -> Sequence[str]:
        if _vendor_of(stage, lease) == "nvidia":
            return burn(lease)
        return ("aliquot.simgpu.vendors.hold", str(directory))

    return stage.begin(plan, program)
