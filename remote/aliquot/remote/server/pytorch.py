"""PyTorch's operators as an engine of a process that serves a lease: on the part's device, within its memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache

import torch

from aliquot.remote import hiding, operators
from aliquot.remote.core.channel import Engine, EngineFactory
from aliquot.remote.server.doorkeeper import Part
from aliquot.remote.server.engine import Settings, engine_factory

_SIMULATED = "ALIQUOT_SIMGPU"
"""Set where devices are simulated: nothing can compute on them, so the processor does."""


def prepare() -> None:
    """Do what takes a second and is the same for every client: most of it PyTorch does when it first foresees."""
    operators.digest()
    hiding.hide_pytorch()
    with torch.inference_mode():
        foreseen = torch.ones(1, 1, device="meta")
        torch.addmm(foreseen, foreseen, foreseen)


def make(part: Part, answer: Callable[[bytes], None]) -> Engine:
    """The engine of one session. Raises `LookupError` where PyTorch can't use the device."""
    return _factory(part)(answer)


@lru_cache(maxsize=64)
def _factory(part: Part) -> EngineFactory:
    """One for each part, so that its sessions share what was uploaded."""
    threads = None
    if torch.cuda.is_available():
        device = f"cuda:{part.ordinal}"
    elif _SIMULATED in os.environ:
        device = "cpu"
        threads = 1  # several parts are several processes, and a sum's order is then everywhere the same
    else:
        raise LookupError("PyTorch on this node can't use its GPUs: install a build of it for CUDA")
    return engine_factory(Settings(device=device, budget=part.budget, threads=threads))
