"""Elements that go up and come down."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from aliquot.remote.core.layouts import contiguous_stride, overlaps
from aliquot.remote.torch import tensor as tensors
from aliquot.remote.torch.coming import ask, coming, fill
from aliquot.remote.torch.layouts import layout_of
from aliquot.remote.torch.session import Session
from aliquot.remote.torch.tensor import SPECIAL, RemoteTensor, issue

_aten = torch.ops.aten


def empty(session: Session, shape: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> RemoteTensor:
    """A tensor there whose elements are not set."""
    made: RemoteTensor = issue(
        session, _aten.empty_strided.default, (list(shape), list(stride)), {"dtype": dtype, "device": session.device}
    )
    return made


def upload(session: Session, tensor: torch.Tensor) -> RemoteTensor:
    """A copy of a CPU tensor there, behind everything that was issued before. Does not wait."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    dense = tensor if _is_dense(tensor) else tensor.contiguous()
    made = empty(session, dense.shape, dense.stride(), dense.dtype)
    _fill(made, dense)
    return made


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill one stretch of memory, in whatever order."""
    stride = tensor.stride()
    last = sum((size - 1) * step for size, step in zip(tensor.shape, stride, strict=True)) + 1
    return tensor.numel() == 0 or (last == tensor.numel() and not overlaps(tensor.shape, stride))


def _fill(made: RemoteTensor, dense: torch.Tensor) -> None:
    size_bytes = dense.numel() * dense.element_size()
    if not size_bytes:
        return
    # The copy is taken now: whoever issued this may write to the tensor at once.
    data = memoryview((ctypes.c_char * size_bytes).from_address(dense.data_ptr())).cast("B")
    made._layout.session.send_data(made._allocation.handle, data)


def download(tensor: RemoteTensor, what: str = ".cpu()") -> torch.Tensor:
    """The elements, as a contiguous CPU tensor. Waits; `what` the program does for that is put down.

    Raises:
        RemoteError: an operator that was issued before failed.
    """
    layout = tensor._layout
    site = layout.session.site(tensors._getframe(1))
    session, request = ask(tensor, site)
    _, data = session.wait(request, site=site, what=what)
    here = torch.empty(layout.shape, dtype=layout.dtype)
    fill(here, data)
    return here


def _item(_: Any, args: Sequence[Any], __: dict[str, Any]) -> Any:
    return download(args[0], ".item()").item()


def _copy(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    target, source = args[0], args[1]
    there, comes = isinstance(target, RemoteTensor), isinstance(source, RemoteTensor)
    if there and comes:
        if target._layout.session is source._layout.session:
            return issue(None, func, (target, source), None)
        source = download(source)
    elif comes:
        return target.copy_(download(source))
    # An upload: straight into its place where that is a whole allocation of the same layout.
    layout, allocation = target._layout, target._allocation
    source = source.detach().resolve_conj().resolve_neg()
    whole = layout.extent_bytes == allocation.size_bytes and target._offset == 0
    if source.dtype == layout.dtype and source.shape == target.shape and whole:
        if tuple(source.stride()) == layout.stride and _is_dense(source):
            _fill(target, source)
            return target
        if contiguous_stride(layout.shape) == layout.stride:
            _fill(target, source.contiguous())
            return target
    return issue(None, func, (target, upload(allocation.session, source)), None)


def _to_copy(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    source: RemoteTensor = args[0]
    session = source._layout.session
    device = kwargs.get("device")
    dtype = kwargs.get("dtype")
    rest = {name: value for name, value in kwargs.items() if name in ("dtype", "memory_format") and value is not None}
    if device is None or (device.type == "aliquot" and device.index in (None, session.index)):
        return issue(None, func, (source,), rest)
    if dtype is not None and (dtype.itemsize < source._layout.dtype.itemsize or kwargs.get("non_blocking")):
        source = issue(None, func, (source,), {"dtype": dtype})
    # Dense tensors keep the order of their elements in memory, as copies between devices do.
    order = _order(source)
    kept = rest.get("memory_format") in (None, torch.preserve_format)
    if kwargs.get("non_blocking") and kept and device.type == "cpu" and dtype in (None, source._layout.dtype):
        return coming(_memory_order(source), order, session.site(tensors._getframe(1)))
    here = download(_memory_order(source))
    if order is not None and kept:
        back = sorted(range(len(order)), key=order.__getitem__)
        here = here.permute(back)
    return _aten._to_copy.default(here, device=device, **rest) if rest or device.type != "cpu" else here


def _order(tensor: RemoteTensor) -> list[int] | None:
    """Dimensions by falling stride, where the tensor is dense and not contiguous."""
    layout = tensor._layout
    if layout.stride == contiguous_stride(layout.shape) or overlaps(layout.shape, layout.stride):
        return None
    order = sorted(range(len(layout.shape)), key=lambda d: (-layout.stride[d], d))
    sizes = [layout.shape[d] for d in order]
    if contiguous_stride(sizes) != tuple(layout.stride[d] for d in order):
        return None
    return order


def _memory_order(tensor: RemoteTensor) -> RemoteTensor:
    order = _order(tensor)
    if order is None:
        return tensor
    layout = tensor._layout
    other = layout_of(layout.session, layout.dtype, [layout.shape[d] for d in order], [layout.stride[d] for d in order])
    return tensors.wrap(tensor._allocation, other, tensor._offset)


SPECIAL[_aten._local_scalar_dense.default] = _item
SPECIAL[_aten.copy_.default] = _copy
SPECIAL[_aten._to_copy.default] = _to_copy
