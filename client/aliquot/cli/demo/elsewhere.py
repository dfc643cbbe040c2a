"""The step of the demonstration in which a program without a GPU uses a part of one, and makes way."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aliquot.cli import _words as words
from aliquot.cli.demo.acts import Stage
from aliquot.cli.localpool import Child
from aliquot.client import LeaseState, Tier

NAME, TENANT, NODE = "tune", "vision", "node-1"
GPU, SHARE_MILLI = "0.25(A100),4Gi", 250
GRACE_S = 10
STARTED_WITHIN_S = 60.0
SAVED_WITHIN_S = 30.0
STEPS_SHOWN = 20


class Elsewhere:
    """The program: `aliquot run --remote`, as on a machine without a GPU, and what it has said."""

    def __init__(self, stage: Stage, *, torch: bool) -> None:
        """Start it."""
        logs = stage.local.layout.logs
        self.saved = logs / f"{NAME}.json"
        asked = ["--gpu", GPU, "--tenant", TENANT, "--name", NAME, "--node", NODE]
        asked += ["--preemptible", "--grace", f"{GRACE_S}s", "--serve", "remote" if torch else "cuda"]
        program = [sys.executable, "-m", "aliquot.remote.trial", "--save", str(self.saved)]
        program += ["--engine", "torch" if torch else "cuda"]
        self.child = Child(
            NAME,
            [sys.executable, "-m", "aliquot.cli", "run", "--remote", *asked, "--", *program],
            _without_gpus(stage.local.address, stage.local.token_file),
            logs / f"{NAME}.log",
        )
        self.child.start()

    def said(self) -> list[dict[str, Any]]:
        """The lines that it has said so far."""
        lines = self.child.output().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def find(self, key: str) -> dict[str, Any] | None:
        """The last line with this key."""
        return next((line for line in reversed(self.said()) if key in line), None)

    def losses(self) -> list[float]:
        """Of its steps so far."""
        return [line["loss"] for line in self.said() if "loss" in line]


def train_elsewhere(stage: Stage, *, torch: bool) -> None:
    """A program on a machine without a GPU trains on a part beside local neighbours, and is preempted politely."""
    story = stage.story
    with story.step("A program on a machine without a GPU trains on a part, beside local neighbours, and makes way"):
        program = Elsewhere(stage, torch=torch)
        try:
            how = "by PyTorch's operators" if torch else "by two CUDA kernels of its own"
            story.tell(f"{TENANT}/{NAME}: aliquot run --remote --gpu {GPU!r} --preemptible; it trains {how}")
            story.await_claim(
                f"it trains: {STEPS_SHOWN} steps are done",
                lambda: len(program.losses()) >= STEPS_SHOWN or not program.child.running,
                STARTED_WITHIN_S,
            )
            losses = program.losses()
            _claim_trains(stage, program, losses)
            _make_way(stage, program)
        finally:
            program.child.kill()
        story.claim(
            "its neighbours have not noticed", holds=all(job.alive for job in stage.neighbours() if job.processes)
        )


def _claim_trains(stage: Stage, program: Elsewhere, losses: list[float]) -> None:
    story = stage.story
    falls = len(losses) > 1 and losses[-1] < losses[0]
    said = "" if losses else program.child.output()[-500:]
    story.claim("and the loss falls", holds=falls, otherwise=said)
    story.tell(f"loss {losses[0]:.4f} → {losses[-1]:.4f} after {len(losses)} steps")
    lease = next(each for each in stage.pool.leases() if each.name == NAME)
    part = lease.slices[0]
    beside = [
        job.plan.name
        for job in stage.neighbours()
        if any(each.device_uuid == part.device_uuid for each in job.lease.slices)
    ]
    tier = words.tier(part.tier) if part.tier is not Tier.UNSPECIFIED else words.UNKNOWN
    story.tell(f"on {part.node_name}, held by {tier}; on that GPU beside it: {', '.join(beside) or 'nobody'}")


def _make_way(stage: Stage, program: Elsewhere) -> None:
    story = stage.story
    lease = next(each for each in stage.pool.leases() if each.name == NAME)
    urgent = _just_too_much(stage, lease.slices[0].device_uuid)
    story.tell(f"speech/urgent asks for {urgent} with priority 100: there is room only where {NAME} is")
    node_ids = (stage.pool.node(NODE).node_id,)
    with stage.pool.lease(
        urgent, tenant="speech", name="urgent", priority=100, node_ids=node_ids, wait_s=STARTED_WITHIN_S
    ) as held:
        story.await_claim(
            "the program was told in time, saved what it had learnt, and ended by itself",
            lambda: not program.child.running,
            SAVED_WITHIN_S,
        )
        notice, saved = program.find("notice"), program.find("saved")
        if notice is not None and saved is not None:
            story.tell(f"it heard: {notice['notice']}, {notice['grace_s']:g} s left ({notice['detail']})")
            story.tell(f"it saved step {saved['saved']}: learnt {saved['learnt']}, wanted [2.0, -1.0]")
        story.claim("it has a checkpoint to go on from", holds=program.saved.exists() and notice is not None)
        story.claim("and what was urgent has the capacity", holds=held.refresh().state is LeaseState.ACTIVE)
        held.release(wait_gone=True, timeout_s=SAVED_WITHIN_S)
    gone = {held.lease_id, lease.lease_id}
    story.await_claim(
        "both leases have ended", lambda: not any(each.lease_id in gone for each in stage.pool.leases()), SAVED_WITHIN_S
    )


def _just_too_much(stage: Stage, device_uuid: str) -> str:
    """A request for which there is room on the node only once the program has made way."""
    devices = [each for each in stage.pool.devices() if each.node_id == stage.pool.node(NODE).node_id]
    free = {
        each.uuid: 1000 - each.leased_share_milli + (SHARE_MILLI if each.uuid == device_uuid else 0) for each in devices
    }
    share = free[device_uuid]
    count = sum(each >= share for each in free.values())
    return f"{count}x{share / 1000:g}(A100),1Gi" if share < 1000 else f"{count}(A100)"


def _without_gpus(address: str, token_file: Path | None) -> Mapping[str, str]:
    """The environment of a machine without a GPU, whose user is known to the pool."""
    hidden = ("ALIQUOT_", "CUDA_", "NVIDIA_", "LD_PRELOAD", "LD_LIBRARY_PATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return kept | {
        "CUDA_VISIBLE_DEVICES": "",
        "ALIQUOT_COORDINATOR": address,
        **({"ALIQUOT_TOKEN_FILE": str(token_file)} if token_file is not None else {}),
    }
