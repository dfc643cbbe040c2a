"""What tensors, and what is saved of them, need besides where `cuda` is a lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as trees

from aliquot.remote.compat import generators
from aliquot.remote.compat.errors import refusing
from aliquot.remote.compat.lease import devices
from aliquot.remote.errors import NotOnRemoteError
from aliquot.remote.torch import backend, prediction
from aliquot.remote.torch import tensor as tensors
from aliquot.remote.torch.session import Session, naming
from aliquot.remote.torch.tensor import SPECIAL, RemoteTensor

_aten = torch.ops.aten
_library = torch.library.Library("aten", "IMPL")
_BEFORE_CUDA = 14
"""PyTorch restores storages of `cuda` at 20; lower numbers are asked first, and none may be taken twice."""
_plain_load = torch.load
_plain_compile = torch.compile
_plain_data: Any = torch._C.TensorBase.data
_plain_miss = prediction.miss
_plain_session_of = backend.session_of
_plain_to = torch.Tensor.to
_plain_to_copy = SPECIAL[_aten._to_copy.default]


def install() -> None:
    """Put it in place, once a process."""
    backend.session_of = _session_of
    backend.register_factories("CUDA")
    RemoteTensor.device = property(_device)  # type: ignore[assignment]
    RemoteTensor.is_cuda = property(lambda _: True)  # type: ignore[assignment]
    RemoteTensor.to = _to  # type: ignore[assignment, method-assign]
    RemoteTensor.cuda = _to_cuda  # type: ignore[assignment, method-assign]
    SPECIAL[_aten._to_copy.default] = _to_copy
    for name in generators.FACTORIES:
        base, _, overload = name.partition(".")
        _library.impl(name, generators.factory(getattr(getattr(_aten, base), overload)), "CUDA")
    SPECIAL[_aten._has_compatible_shallow_copy_type.default] = lambda *_: False
    tensors.miss = _miss
    torch.Generator = generators.PublicGenerator  # type: ignore[assignment, misc]
    torch.Tensor.pin_memory = lambda tensor, device=None: tensor  # type: ignore[method-assign, assignment, return-value]
    torch.Tensor.is_pinned = lambda tensor, device=None: False  # type: ignore[method-assign, assignment]
    torch.Tensor.data = property(_get_data, _set_data)  # type: ignore[assignment]
    torch.Tensor.share_memory_ = _shared(torch.Tensor.share_memory_)  # type: ignore[method-assign]
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch.serialization.register_package(_BEFORE_CUDA, lambda _: None, _restore)
    torch.load = _load
    torch.compile = _compile
    torch.UntypedStorage.cuda = refusing("a storage on cuda", "move the tensor")  # type: ignore[method-assign]


def _session_of(device: torch.device | str | int | None = None) -> Session:
    """As the one of `backend`, for the names by which a program knows the devices too."""
    if isinstance(device, (torch.device, str)):
        device = own(device)
    return _plain_session_of(device)


def own(device: Any) -> Any:
    """The device by the name that PyTorch's C++ knows it by, where it is one of the lease's."""
    if isinstance(device, str) and device.startswith("cuda"):
        device = torch.device(device)
    if isinstance(device, torch.device) and device.type == "cuda":
        return torch.device("aliquot", devices.index(device))
    return device


def _device(tensor: RemoteTensor) -> torch.device:
    session = tensor._layout.session
    return session.device if naming.get() else torch.device("cuda", session.index)


def _to(tensor: RemoteTensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    if "device" in kwargs:
        kwargs["device"] = own(kwargs["device"])
    elif args:
        first = torch.device("cuda", args[0]) if type(args[0]) is int else args[0]
        args = (own(first), *args[1:])
    return _plain_to(tensor, *args, **kwargs)


def _to_cuda(tensor: RemoteTensor, device: Any = None, non_blocking: bool = False, **_: Any) -> torch.Tensor:  # noqa: FBT001
    index = devices.index(tensor._layout.session.index if device is None else device)
    return _plain_to(tensor, torch.device("aliquot", index), non_blocking=non_blocking)


def _to_copy(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": own(kwargs["device"])}
    return _plain_to_copy(func, args, kwargs)


def _miss(session: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if generators.find(args, kwargs):
        return generators.draw(func, args, kwargs)
    return _plain_miss(session, func, args, kwargs)


def _get_data(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, RemoteTensor):
        with torch.no_grad():
            return tensor.detach()
    data: torch.Tensor = _plain_data.__get__(tensor)
    return data


def _set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """A tensor takes the elements of another: also one that is elsewhere, which is how old scripts move parameters."""
    if not isinstance(tensor, RemoteTensor) and not isinstance(value, RemoteTensor):
        _plain_data.__set__(tensor, value)
        return
    needed = tensor.requires_grad
    with torch.no_grad():
        taken: torch.Tensor = value.detach()
    if isinstance(tensor, torch.nn.Parameter):
        taken = torch.nn.Parameter(taken, needed)
    elif needed:
        taken.requires_grad_()
    taken.grad = tensor.grad
    torch.utils.swap_tensors(tensor, taken)


def _shared(plain: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def share(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, RemoteTensor):
            raise NotOnRemoteError("sharing a tensor of cuda with other processes", "share it as a tensor of the CPU")
        return plain(tensor)

    return share


# ------------------------------------------------------------------------------------------------------------ loading


def _restore(storage: Any, location: str) -> Any:
    """Storages saved on a GPU are read here first; `_load` then moves the tensors that were asked for there."""
    return storage if location.startswith("cuda") else None


def _load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
    """`torch.load`, with `map_location` on `cuda` too: what lies in dicts, lists and tuples is moved there."""
    wanted = torch.device(map_location) if isinstance(map_location, (str, torch.device)) else None
    if wanted is None or wanted.type != "cuda":
        return _plain_load(f, map_location, *args, **kwargs)
    loaded = _plain_load(f, "cpu", *args, **kwargs)
    return trees.tree_map_only(torch.Tensor, lambda tensor: _moved(tensor, wanted), loaded)


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    with torch.no_grad():
        there = tensor.to(device)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(there, tensor.requires_grad)
    return there.requires_grad_(tensor.requires_grad)


# ----------------------------------------------------------------------------------------------------------- compiling


def _compile(model: Any = None, **options: Any) -> Any:
    """`torch.compile`, by the backend of remote devices where no other is named: what it traces is sent once.

    Sizes that change make another graph each, unless `dynamic` is said. `mode` and `options` choose among kernels of a
    GPU here, and mean nothing.
    """
    if model is None:
        return lambda function: _compile(function, **options)
    if options.get("backend", "inductor") == "inductor":
        from aliquot.remote.torch.compiling import backend as compiler  # noqa: PLC0415 - loads the compiler: seconds

        # Where a trace fails, as with cuda by name within the function, the function runs as it is.
        torch._dynamo.config.suppress_errors = True
        options = {name: value for name, value in options.items() if name not in ("mode", "options")}
        options |= {"backend": compiler, "dynamic": options.get("dynamic") or False}
    return _plain_compile(model, **options)
