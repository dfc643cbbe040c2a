"""TorchScript's modules on `cuda`: its C++ holds their tensors, reads and writes those of a CPU alone, and records what
it sees called.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.jit import ScriptModule
from torch.jit._script import RecursiveScriptModule

from aliquot.remote.torch.tensor import RemoteTensor

_aten = torch.ops.aten
_library = torch.library.Library("aten", "IMPL")
_plain_load: Any = torch.jit.load


def install() -> None:
    """Put it in place, once a process."""
    ScriptModule._apply = _apply  # type: ignore[assignment, method-assign]
    torch.jit.load = _load
    for kind in (ScriptModule, RecursiveScriptModule):
        for name in ("save", "save_to_buffer"):
            setattr(kind, name, _saving(getattr(kind, name)))
    _library.impl("convolution", _traced_convolution, "Tracer")
    _library.impl("_convolution", lambda *args: _aten.convolution.default(*args[:9]), "AutogradPrivateUse1")


def _traced_convolution(*args: Any) -> torch.Tensor:
    """TorchScript records the operator within this one, which PyTorch calls where it does not see our tensors."""
    cudnn = torch.backends.cudnn
    flags = (cudnn.benchmark, cudnn.deterministic, cudnn.enabled, cudnn.allow_tf32)
    recorded: torch.Tensor = _aten._convolution.default(*args, *flags)
    return recorded


def _apply(module: ScriptModule, function: Callable[..., Any], recurse: bool = True) -> ScriptModule:  # noqa: FBT001
    """Tensors that come to another device are put into the module: where Python's objects change places, as in others,
    C++ does not see it.
    """

    @functools.cache  # once for each, so that tied parameters stay one
    def moved(tensor: torch.Tensor) -> Any:
        made = function(tensor.detach())
        if isinstance(made, RemoteTensor) != isinstance(tensor, RemoteTensor):
            return torch.nn.Parameter(made) if tensor.requires_grad else made
        tensor.data = made
        return tensor

    for each in module.modules() if recurse else (module,):
        for held in (each._parameters, each._buffers):
            for name, tensor in list(held.items()):
                held[name] = moved(tensor)
    return module


def _saving(plain: Callable[..., Any]) -> Callable[..., Any]:
    """A way to save a module that writes a copy of it, brought to the CPU."""

    def save(module: ScriptModule, *args: Any, **kwargs: Any) -> Any:
        held = [*module.parameters(), *module.buffers()]
        here = copy.deepcopy(module).cpu() if any(isinstance(tensor, RemoteTensor) for tensor in held) else module
        return plain(here, *args, **kwargs)

    return save


def _load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
    """A module from a file. Where it is meant for `cuda`, it is read here and moved."""
    if map_location is None or torch.device(map_location).type != "cuda":
        return _plain_load(f, map_location, *args, **kwargs)
    return _plain_load(f, "cpu", *args, **kwargs).to(map_location)
