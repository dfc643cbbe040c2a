"""Has `cuda` mean the lease's parts, in this process."""

from __future__ import annotations

import warnings

import aliquot.remote.torch  # noqa: F401 - makes the tensors known to PyTorch
from aliquot.remote.compat import amp, collectives, cuda, leaving, saving, scripting, signals, tensors
from aliquot.remote.torch import guard

_active = False


def activate() -> None:
    """Do it, once a process. Connects to nothing yet. Raises `NotOnRemoteError` where this PyTorch can't."""
    global _active  # noqa: PLW0603
    if _active:
        return
    _active = True
    leaving.install()
    signals.install()
    guard.install()
    with warnings.catch_warnings():
        # Some operators have kernels there, in builds for CUDA and for tracing, which are replaced.
        warnings.simplefilter("ignore")
        tensors.install()
        scripting.install()
    saving.install()
    collectives.install()
    cuda.install()
    amp.install()
