"""What tensors, and what is saved of them, need besides where `cuda` is a lease."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._device import _device_constructors

from aliquot.remote.compat import collectives, generators
from aliquot.remote.compat.errors import translating
from aliquot.remote.compat.lease import devices
from aliquot.remote.errors import NotOnRemoteError
from aliquot.remote.torch import backend, prediction
from aliquot.remote.torch import tensor as tensors
from aliquot.remote.torch.session import Session, naming
from aliquot.remote.torch.tensor import SPECIAL, RemoteTensor

_aten = torch.ops.aten
_library = torch.library.Library("aten", "IMPL")
_plain_compile = torch.compile
_plain_data: Any = torch._C.TensorBase.data
_plain_miss = prediction.miss
_plain_session_of = backend.session_of
_plain_to = torch.Tensor.to
_plain_type = torch.Tensor.type
_plain_to_copy = SPECIAL[_aten._to_copy.default]


def install() -> None:
    """Put it in place, once a process."""
    backend.session_of = _session_of
    backend.register_factories("CUDA")
    torch.Tensor.cuda = _from_cpu_to_cuda  # type: ignore[assignment, method-assign]
    RemoteTensor.device = property(_device)  # type: ignore[assignment]
    RemoteTensor.is_cuda = property(lambda _: True)  # type: ignore[assignment]
    RemoteTensor.to = _to  # type: ignore[assignment, method-assign]
    RemoteTensor.cuda = _to_cuda  # type: ignore[assignment, method-assign]
    RemoteTensor.type = _type  # type: ignore[assignment, method-assign]
    SPECIAL[_aten._to_copy.default] = _to_copy
    for name in generators.FACTORIES:
        base, _, overload = name.partition(".")
        _library.impl(name, generators.factory(getattr(getattr(_aten, base), overload)), "CUDA")
    SPECIAL[_aten._has_compatible_shallow_copy_type.default] = _compatible
    tensors.miss = translating(_miss)
    torch.Generator = generators.PublicGenerator  # type: ignore[assignment, misc]
    torch.Tensor.pin_memory = lambda tensor, device=None: tensor  # type: ignore[method-assign, assignment, return-value]
    torch.Tensor.is_pinned = lambda tensor, device=None: False  # type: ignore[method-assign, assignment]
    torch.Tensor.data = property(_get_data, _set_data)  # type: ignore[assignment]
    torch.utils.swap_tensors = _swap
    torch.Tensor.share_memory_ = _shared(torch.Tensor.share_memory_)  # type: ignore[method-assign]
    torch.__future__.set_swap_module_params_on_conversion(True)
    torch.compile = _compile
    torch.autograd._engine_run_backward = translating(torch.autograd._engine_run_backward)  # type: ignore[attr-defined]
    _device_constructors()  # remembers PyTorch's own, by which a default device knows what to send there
    for name in ("empty", "zeros", "ones", "full", "rand", "randn", "tensor", "empty_like", "zeros_like"):
        setattr(torch, name, _unpinned(getattr(torch, name)))


def _session_of(device: torch.device | str | int | None = None) -> Session:
    """As the one of `backend`, for the names by which a program knows the devices too; connects first."""
    devices.connect()
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


def _from_cpu_to_cuda(tensor: torch.Tensor, device: Any = None, non_blocking: bool = False, **_: Any) -> torch.Tensor:  # noqa: FBT001
    return tensor.to(torch.device("cuda", devices.index(device)), non_blocking=non_blocking)


def _type(tensor: RemoteTensor, dtype: Any = None, non_blocking: bool = False) -> Any:  # noqa: FBT001
    """Of a tensor, or a tensor of that type; names are those of `torch.cuda`."""
    if dtype is None:
        return _plain_type(tensor).replace("torch.aliquot.", "torch.cuda.")
    if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
        dtype = getattr(torch, dtype.removeprefix("torch.cuda.")).dtype
    return _plain_type(tensor, dtype, non_blocking)


def _unpinned(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Nothing is pinned here: where a program asks for that, it gets memory as it is."""

    @functools.wraps(plain)
    def make(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("pin_memory", None)
        return plain(*args, **kwargs)

    if builtin := torch.jit._builtins._find_builtin(plain):
        torch.jit._builtins._register_builtin(make, builtin)  # TorchScript knows functions by what they are
    return make


def _to_copy(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": own(kwargs["device"])}
    return _plain_to_copy(func, args, kwargs)


def _miss(session: Any, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    if generators.find(args, kwargs):
        return generators.draw(func, args, kwargs)
    if func.namespace == "c10d":
        return collectives.run(func, args, kwargs)
    return _plain_miss(session, func, args, kwargs)


def _compatible(_: Any, args: Any, __: Any) -> bool:
    return all(isinstance(arg, RemoteTensor) for arg in args)


def _get_data(tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, RemoteTensor):
        # Made anew rather than detached: what is written to it must not count as written to the tensor.
        return tensors.wrap(tensor._allocation, tensor._layout, tensor._offset)
    data: torch.Tensor = _plain_data.__get__(tensor)
    return data


def _set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """A tensor takes the elements of another: also one that is elsewhere, which is how old scripts move parameters."""
    if not isinstance(tensor, RemoteTensor) and not isinstance(value, RemoteTensor):
        _plain_data.__set__(tensor, value)
        return
    if isinstance(tensor, RemoteTensor) and isinstance(value, RemoteTensor):
        _plain_data.__set__(tensor, value)
        tensor._allocation, tensor._layout, tensor._offset = value._allocation, value._layout, value._offset
        return
    needed = tensor.requires_grad
    with torch.no_grad():
        taken: torch.Tensor = value.detach()
    if isinstance(tensor, torch.nn.Parameter):
        taken = torch.nn.Parameter(taken, needed)
    elif needed:
        taken.requires_grad_()
    taken.grad = tensor.grad
    _swap(tensor, taken)


def _swap(one: torch.Tensor, other: torch.Tensor) -> None:
    """Let two tensors change places, whoever refers to them: a weak reference, or a graph that was made of the one,
    which PyTorch's own function refuses, are common where a model is loaded, cast or moved after its first use.
    """
    one.__class__, other.__class__ = other.__class__, one.__class__
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__
    torch._C._swap_tensor_impl(one, other)


def _shared(plain: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def share(tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, RemoteTensor):
            raise NotOnRemoteError("sharing a tensor of cuda with other processes", "share it as a tensor of the CPU")
        return plain(tensor)

    return share


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

        _name_for_compiler()

        # Where a trace fails, as with cuda by name within the function, the function runs as it is.
        torch._dynamo.config.suppress_errors = True
        options = {name: value for name, value in options.items() if name not in ("mode", "options")}
        options |= {"backend": compiler, "dynamic": options.get("dynamic") or False}
    return _plain_compile(model, **options)


@functools.cache
def _name_for_compiler() -> None:
    """Have what a traced function makes on `cuda` be on the devices that its other tensors are on, as the compiler
    knows them.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415 - part of the compiler

    plain = FakeTensorMode.dispatch

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs and kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": own(kwargs["device"])}
        return plain(self, func, types, args, kwargs or {})

    FakeTensorMode.dispatch = dispatch  # type: ignore[method-assign]
