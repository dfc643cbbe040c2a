"""Operators that mean something else on a remote device, or that are made here for speed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from aliquot.remote.core.layouts import contiguous_stride, count, extent
from aliquot.remote.errors import RemoteError
from aliquot.remote.torch.layouts import layout_of
from aliquot.remote.torch.tensor import SPECIAL, RemoteTensor, issue, wrap
from aliquot.remote.torch.transfer import empty

_aten = torch.ops.aten
_inferring = torch.is_inference_mode_enabled


def _same(_: Any, args: Sequence[Any], __: dict[str, Any]) -> RemoteTensor:
    source: RemoteTensor = args[0]
    if _inferring() and not source.is_inference():
        # What detaches it shares its counter of versions, which inference tensors lack.
        with torch.inference_mode(mode=False):
            return wrap(source._allocation, source._layout, source._offset)
    return wrap(source._allocation, source._layout, source._offset)


def _as_strided(_: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> RemoteTensor:
    source: RemoteTensor = args[0]
    offset = args[3] if len(args) > 3 else kwargs.get("storage_offset")
    if offset is None:
        offset = source._offset
    layout = layout_of(source._layout.session, source._layout.dtype, args[1], args[2])
    size = layout.dtype.itemsize
    if offset * size + extent(layout.shape, layout.stride) * size > source._allocation.size_bytes:
        raise RuntimeError(
            f"setStorage: sizes {list(args[1])}, strides {list(args[2])}, storage offset {offset} are out of bounds "
            f"for storage of size {source._allocation.size_bytes}"
        )
    return wrap(source._allocation, layout, offset)


def _select(_: Any, args: Sequence[Any], __: dict[str, Any]) -> RemoteTensor:
    source, dim, index = args
    layout = source._layout
    shape, stride = layout.shape, layout.stride
    if not -len(shape) <= dim < len(shape):
        raise IndexError(
            f"Dimension out of range (expected to be in range of [{-len(shape)}, {len(shape) - 1}], but got {dim})"
        )
    dim %= len(shape)
    if not -shape[dim] <= index < shape[dim]:
        raise IndexError(f"index {index} is out of bounds for dimension {dim} with size {shape[dim]}")
    index %= shape[dim]
    other = layout_of(layout.session, layout.dtype, shape[:dim] + shape[dim + 1 :], stride[:dim] + stride[dim + 1 :])
    return wrap(source._allocation, other, source._offset + index * stride[dim])


def _instead(name: str) -> Any:
    other = getattr(_aten, name).default

    def run(_: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return issue(None, other, args, kwargs)

    return run


def _changed_in_place(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Operators such as `t_` that change how a tensor lies, not its elements."""
    source: RemoteTensor = args[0]
    meta = torch.empty_strided(
        source._layout.shape,
        source._layout.stride,
        dtype=source._layout.dtype,
        device="meta",
    )
    func(meta, *args[1:], **kwargs)
    _reshape_object(source, func, args, kwargs)
    source._layout = layout_of(source._layout.session, meta.dtype, meta.shape, meta.stride())
    return source


def _reshape_object(source: RemoteTensor, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Have the tensor object itself follow: the operator is run on it as on a tensor without elements."""
    before = torch._C._meta_in_tls_dispatch_include()
    # Under vmap and its kind the object would be taken for one that is still to be interpreted.
    with temporarily_clear_interpreter_stack(), torch._C._DisableTorchDispatch():
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            func(source, *args[1:], **kwargs)
        finally:
            torch._C._set_meta_in_tls_dispatch_include(before)


def _resize(_: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> RemoteTensor:
    source: RemoteTensor = args[0]
    shape = tuple(args[1])
    before = source._layout
    if shape == before.shape:
        return source
    layout = layout_of(before.session, before.dtype, shape, contiguous_stride(shape))
    if source._offset or layout.extent_bytes > source._allocation.size_bytes:
        # What there is moves to a larger place; elements keep their order in memory.
        larger = empty(before.session, (count(shape),), (1,), before.dtype)
        length = min(count(shape), source._allocation.size_bytes // before.dtype.itemsize - source._offset)
        flat = layout_of(before.session, before.dtype, (length,), (1,))
        if length:
            larger[:length].copy_(wrap(source._allocation, flat, source._offset))
        source._allocation, source._offset = larger._allocation, 0
    source._layout = layout
    _follow(source)
    return source


def _set(_: Any, args: Sequence[Any], __: dict[str, Any]) -> RemoteTensor:
    """`set_` to another tensor: the same elements from then on."""
    target: RemoteTensor = args[0]
    source = args[1]
    if not isinstance(source, RemoteTensor) or source._layout.session is not target._layout.session:
        raise RemoteError(f"set_ from {source.device} to {target.device} is not supported")
    target._allocation, target._layout, target._offset = source._allocation, source._layout, source._offset
    _follow(target)
    return target


def _follow(source: RemoteTensor) -> None:
    """Have the tensor object say the sizes that it has now."""
    layout = source._layout
    if source.shape != layout.shape or source.stride() != layout.stride:
        other = wrap(source._allocation, layout, source._offset)
        with torch._C._DisableTorchDispatch(), torch.no_grad():
            torch._C._set_meta_in_tls_dispatch_include(True)
            try:
                source.set_(torch.Tensor.untyped_storage(other), source._offset, layout.shape, layout.stride)
            finally:
                torch._C._set_meta_in_tls_dispatch_include(False)


def _refused(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    raise RemoteError(f"{func} is not supported on a remote device")


for _operator in (_aten.detach.default, _aten.alias.default, _aten.lift_fresh.default):
    SPECIAL[_operator] = _same
SPECIAL[_aten.as_strided.default] = _as_strided
SPECIAL[_aten.select.int] = _select
SPECIAL[_aten._conj.default] = _instead("_conj_physical")
SPECIAL[_aten._neg_view.default] = _instead("neg")
SPECIAL[_aten.resize_.default] = _resize
for _operator in (
    _aten.t_.default,
    _aten.transpose_.default,
    _aten.squeeze_.default,
    _aten.squeeze_.dim,
    _aten.squeeze_.dims,
    _aten.unsqueeze_.default,
):
    SPECIAL[_operator] = _changed_in_place
SPECIAL[_aten.set_.source_Tensor] = _set
for _operator in (_aten.set_.source_Storage, _aten.set_.source_Storage_storage_offset):
    SPECIAL[_operator] = _refused


def _arange_out(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> RemoteTensor:
    """Window functions fill a tensor of no elements by it, which takes the sizes that come."""
    out: RemoteTensor = kwargs["out"]
    plain = _aten.arange.default if func is _aten.arange.out else _aten.arange.start_step
    made = issue(out._layout.session, plain, args, {"dtype": out.dtype, "device": out._layout.session.device})
    return _set(None, (out, made), {})


def _same_storage_numel(one: RemoteTensor, other: RemoteTensor) -> bool:
    """Whether tangents may share a layout: of both, how many elements their memory has."""
    counts = [each._allocation.size_bytes // each._layout.dtype.itemsize for each in (one, other)]
    return counts[0] == counts[1]


def _assert_there(_: Any, args: Sequence[Any], __: dict[str, Any]) -> None:
    """Waits: where the assertion fails on a GPU, nothing works there any more."""
    if not args[0].item():
        raise RuntimeError(args[1] if len(args) > 1 else "Expected Tensor with single nonzero value, but got zero")


SPECIAL[_aten.arange.out] = SPECIAL[_aten.arange.start_out] = _arange_out
SPECIAL[_aten._assert_async.default] = SPECIAL[_aten._assert_async.msg] = _assert_there
SPECIAL[_aten.is_pinned.default] = lambda *_: False
# There are no nested tensors: who asks whether one can be made goes on with a mask.
SPECIAL[_aten._nested_tensor_from_mask_left_aligned.default] = lambda *_: False
SPECIAL[_aten._has_same_storage_numel.default] = lambda _, args, __: _same_storage_numel(*args)
