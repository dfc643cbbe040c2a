"""Elements that come down while the program goes on: a CPU tensor that is waited for where it is first read.

`.to("cpu", non_blocking=True)` asks for them and returns at once. The tensor has its memory already; whoever uses it
through PyTorch waits for what belongs there, and from then on it is a tensor like any other.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from aliquot.remote.core import messages
from aliquot.remote.errors import RemoteError
from aliquot.remote.torch.session import Session
from aliquot.remote.torch.tensor import RemoteTensor

_Tensor: Any = torch.Tensor
_KNOWN = frozenset(
    {getattr(_Tensor, name).__get__ for name in ("shape", "dtype", "device", "layout", "ndim", "requires_grad")}
    | {getattr(_Tensor, name).__get__ for name in ("is_cuda", "is_leaf", "grad_fn", "is_sparse", "is_quantized")}
    | {
        getattr(_Tensor, name)
        for name in ("size", "stride", "dim", "numel", "element_size", "nelement", "is_contiguous")
    }
    | {getattr(_Tensor, name) for name in ("is_floating_point", "is_complex", "storage_offset")}
)
"""What can be said of a tensor without its elements."""


class _Request:
    """What was asked for. It is forgotten where nobody has the tensor any more."""

    __slots__ = ("number", "session")

    def __init__(self, session: Session, number: int) -> None:
        self.session = session
        self.number = number

    def take(self) -> bytearray:
        """The elements. Waits where they are not here yet. Raises what `Session.wait` does."""
        number, self.number = self.number, 0
        session = self.session
        _, data = session.wait(number, site=session.site(sys._getframe(2)), what="a result that was on its way")
        return data

    def __del__(self) -> None:
        if self.number:
            self.session.forget(self.number)


class ComingTensor(torch.Tensor):
    """A CPU tensor whose elements are on their way. Its class is `torch.Tensor` once they are here."""

    _request: _Request
    _memory: torch.Tensor

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Whatever PyTorch is asked to do with it. Raises `RemoteError` where an operator before it failed there."""
        kwargs = kwargs or {}
        if func not in _KNOWN:
            for value in (*args, *kwargs.values()):
                _settle_all(value)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


def _settle_all(value: Any) -> None:
    if isinstance(value, ComingTensor):
        settle(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _settle_all(item)
    elif isinstance(value, dict):
        for item in value.values():
            _settle_all(item)


def settle(tensor: ComingTensor) -> None:
    """Wait for the elements, and make it a tensor like any other. Raises `RemoteError` where they never come."""
    with torch._C.DisableTorchFunctionSubclass():
        memory = tensor._memory
        fill(memory, tensor._request.take())
        del tensor._request, tensor._memory
        tensor.__class__ = torch.Tensor  # type: ignore[assignment]


def fill(memory: torch.Tensor, data: bytearray) -> None:
    """Put elements that came down into a contiguous tensor. Raises `RemoteError` where they are not as many."""
    size_bytes = memory.numel() * memory.element_size()
    if len(data) != size_bytes:
        raise RemoteError(f"the server sent {len(data)} bytes of a tensor of {size_bytes}")
    if size_bytes:
        ctypes.memmove(memory.data_ptr(), (ctypes.c_char * size_bytes).from_buffer(data), size_bytes)


def ask(source: RemoteTensor, site: int) -> tuple[Session, int]:
    """Ask for the elements of a tensor, behind everything that was issued before. Returns what was asked whom."""
    layout, session = source._layout, source._layout.session
    request = session.request()
    session.begin(
        messages.Fetch(
            request, site, source._allocation.handle, layout.name, layout.shape, layout.stride, source._offset
        )
    )
    return session, request


def coming(source: RemoteTensor, order: Sequence[int] | None, site: int) -> torch.Tensor:
    """A tensor of the CPU that `source`, dense in its memory, comes down to. `order`: its dimensions as they lie there,
    where that is another order.
    """
    session, request = ask(source, site)
    memory = torch.empty(source._layout.shape, dtype=source._layout.dtype)
    seen = memory if order is None else memory.permute(sorted(range(len(order)), key=order.__getitem__))
    made: ComingTensor = torch.Tensor._make_subclass(ComingTensor, seen)
    made._memory = memory
    made._request = _Request(session, request)
    return made
