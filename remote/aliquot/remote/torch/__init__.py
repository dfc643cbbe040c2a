"""Devices `aliquot:0`, … for PyTorch: tensors on a leased part of a GPU elsewhere.

    import torch
    import aliquot.remote.torch as remote

    device = remote.attach(channel)
    model = Model().to(device)

Work is issued ahead and done in order; only what needs elements here waits: `.item()`, `.cpu()`, printing. An error
(`aliquot.remote.errors`) is raised at the next wait, names the line that issued the operator, and leaves the device as
it was at that moment.
"""

from __future__ import annotations

from aliquot.remote import hiding as _hiding
from aliquot.remote.torch import autocast as _autocast
from aliquot.remote.torch import backend as _backend
from aliquot.remote.torch import overrides as _overrides
from aliquot.remote.torch import prediction as _prediction  # noqa: F401 - says what a call returns, which tensors ask it
from aliquot.remote.torch import sparse as _sparse  # noqa: F401 - likewise
from aliquot.remote.torch import special as _special  # noqa: F401 - puts its operators in place
from aliquot.remote.torch.backend import attach, detach, session_of
from aliquot.remote.torch.capture import Captured, capture
from aliquot.remote.torch.errors import RemoteLinAlgError, RemoteOutOfMemoryError
from aliquot.remote.torch.tensor import RemoteTensor
from aliquot.remote.torch.weights import upload

_backend.register()
_overrides.register()
_autocast.register()
_hiding.hide("aliquot.remote")
_hiding.hide_pytorch()

__all__ = [
    "Captured",
    "RemoteLinAlgError",
    "RemoteOutOfMemoryError",
    "RemoteTensor",
    "attach",
    "capture",
    "detach",
    "session_of",
    "upload",
]
