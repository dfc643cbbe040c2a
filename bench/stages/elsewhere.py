"""Stages of remote GPUs: the same card, used here and through a lease that is served."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from bench.lib.hardware_lease import plain_environment
from bench.stages.means import Card, command_of, run_command
from bench.stages.programs import HERE_OR_ELSEWHERE

if TYPE_CHECKING:
    from aliquot.cli.localpool import LocalPool

PART = "1"
"""The whole card, so that what differs is the way there."""
STEPS = 40
_TIMEOUT_S = 240.0


def by_torch(card: Card) -> dict[str, Any]:
    """A training step here, and the same step elsewhere: operator by operator, and captured."""
    card.require_torch()
    here = run_command(command_of(HERE_OR_ELSEWHERE), plain_environment(card.device | {"WHERE": "here"}), _TIMEOUT_S)
    card.partly({"here": here})
    with card.pool() as local:
        there = _run(local, card, "remote", command_of(HERE_OR_ELSEWHERE))
    found: dict[str, Any] = {"here": here, "elsewhere": there}
    if "failed" in here or "failed" in there:
        return found | {"status": "failed", "why": "a program did not run"}
    for way, beside in (("eager", "eager"), ("captured", "capturable")):
        found[f"{way}_ratio"] = round(there[way]["ms_a_step"] / here[beside]["ms_a_step"], 3)
        pairs = zip(there[way]["losses"], here[beside]["losses"], strict=True)
        found[f"{way}_loss_differs_by"] = max(abs(one - other) for one, other in pairs)
    return found


def by_cuda(card: Card) -> dict[str, Any]:
    """Two kernels in the raw lane, by CUDA's driver alone."""
    with card.pool() as local:
        trial = [sys.executable, "-m", "aliquot.remote.trial", "--engine", "cuda", "--steps", str(STEPS)]
        found = _run(local, card, "cuda", trial)
    if found.get("saved") != STEPS:
        return found | {"status": "failed", "why": "the program did not do its steps"}
    return found


def _run(local: LocalPool, card: Card, serve: str, program: list[str]) -> dict[str, Any]:
    """As on a machine without a card, whose user is known to the pool."""
    hidden = ("ALIQUOT_", "CUDA_", "NVIDIA_", "LD_PRELOAD")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(hidden)}
    known = {"ALIQUOT_COORDINATOR": local.address, "ALIQUOT_TOKEN_FILE": str(local.token_file)}
    run = [sys.executable, "-m", "aliquot.cli", "run", "--remote", "--gpu", PART, "--tenant", "vision"]
    run += ["--serve", serve, "--wait", "60s", "--", *program]
    return run_command(run, kept | known | card.device | {"WHERE": "elsewhere"}, _TIMEOUT_S)
