"""The engine `torch` of a lease's process: which device it uses, how much of it, and what its sessions share."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from hashlib import sha256

import torch

from aliquot.remote.core.channel import Engine
from aliquot.remote.server.blobs import Blobs
from aliquot.remote.server.doorkeeper import Part
from aliquot.remote.server.engine import Settings, engine_factory

SIMULATED = "ALIQUOT_SIMGPU"
"""Names the scenario where the node's GPUs are simulated; the agent hands it on."""
_BLOBS_BYTES = 1 << 30
_blobs = Blobs(_BLOBS_BYTES)
"""Contents by hash. A process serves one lease, so one tenant."""
_lock = threading.Lock()
_prepared = False


def engine(part: Part, answer: Callable[[bytes], None]) -> Engine:
    """The engine of a session with a part. Raises `LookupError` where this PyTorch can't use the part's device."""
    settings = Settings(device(part, os.environ), part.memory_bytes, seed(part), blobs=_blobs)
    return engine_factory(settings)(answer)


def device(part: Part, environment: Mapping[str, str]) -> str:
    """PyTorch's name of the part's device.

    A simulated GPU computes nothing: its work is done by one processor, and clients are told so. Raises `LookupError`.
    """
    if environment.get(SIMULATED):
        _use_one_thread()
        return "cpu"
    if not torch.cuda.is_available():
        raise LookupError(
            f"PyTorch {torch.__version__} of this node can't use its GPU: install one built for CUDA there, "
            "and a driver that is new enough for it"
        )
    return f"cuda:{part.ordinal}"


def seed(part: Part) -> int:
    """Of a session that sets none: another one for each part."""
    return int.from_bytes(sha256(part.slice_id.encode()).digest()[:6], "big")


def _use_one_thread() -> None:
    global _prepared  # noqa: PLW0603
    with _lock:
        if not _prepared:
            torch.set_num_threads(1)
            _prepared = True
