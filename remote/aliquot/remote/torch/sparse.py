"""Sparse matrices and gradients: tensors of a device for their indices and values, and operators made of those on them.

The server knows nothing of them, so that each result's memory is counted as any other's. What is not here is refused by
its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from aliquot.remote.errors import NotOnRemoteError
from aliquot.remote.torch.layouts import layout_of
from aliquot.remote.torch.tensor import SPECIAL, RemoteTensor, issue

_aten = torch.ops.aten
_plain_rebuild: Any = torch._utils._rebuild_sparse_tensor


class SparseTensor(RemoteTensor):
    """A tensor in coordinate format, or a matrix by compressed rows, which is kept by its coordinates as well."""

    _indices_there: torch.Tensor
    """(sparse dimensions, elements) of int64."""
    _values_there: torch.Tensor
    """(elements, dense dimensions …)."""
    _coalesced: bool
    """Whether each element is there once, in order."""

    @staticmethod
    def __torch_dispatch__(  # type: ignore[override]
        func: Any, types: object, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        run = _OPERATORS.get(func)
        if run is None or isinstance(args[0], (list, tuple)):
            raise NotOnRemoteError(f"{func} of a sparse tensor", "use its values and indices, or .to_dense()")
        return run(*args, **(kwargs or {}))

    def __reduce_ex__(self, protocol: object) -> Any:
        parts = (self._indices(), self._values(), self.shape, self._coalesced)
        return _plain_rebuild, (torch.sparse_coo, parts)

    def new(self, indices: torch.Tensor, values: torch.Tensor, size: Sequence[int]) -> SparseTensor:  # type: ignore[override]
        """Another one, as optimizers make it."""
        return _make(indices, values, size)


def _make(
    indices: torch.Tensor,
    values: torch.Tensor,
    size: Sequence[int],
    *,
    coalesced: bool | None = False,
    layout: torch.layout = torch.sparse_coo,
) -> SparseTensor:
    kept = values._layout if isinstance(values, RemoteTensor) else indices._layout  # type: ignore[attr-defined]
    compressed = layout is torch.sparse_csr  # which C++ knows of tensors of its own alone, and else asks for
    made: SparseTensor = torch.Tensor._make_wrapper_subclass(
        SparseTensor, size, dtype=values.dtype, layout=layout, device=kept.session.device, dispatch_layout=compressed
    )
    made._layout = layout_of(kept.session, values.dtype, values.shape, values.stride())
    made._indices_there, made._values_there, made._coalesced = indices.detach(), values.detach(), bool(coalesced)
    return made


def _of_parts(_: int, __: int, size: Sequence[int], indices: Any, values: Any, **options: Any) -> SparseTensor:
    return _make(indices, values, size, coalesced=options.get("is_coalesced"))


def _same_places(tensor: SparseTensor, values: torch.Tensor) -> SparseTensor:
    return _make(tensor._indices_there, values, tensor.shape, coalesced=tensor._coalesced, layout=tensor.layout)


def _scaled(operator: Any) -> Callable[..., SparseTensor]:
    def run(tensor: Any, by: Any) -> SparseTensor:
        if not isinstance(tensor, SparseTensor):
            tensor, by = by, tensor
        if isinstance(by, SparseTensor) or (isinstance(by, torch.Tensor) and by.dim()):
            raise NotOnRemoteError(f"{operator} of a sparse tensor and another", "use its values and indices")
        return _same_places(tensor, operator(tensor._values_there, by))

    return run


def _to_copy(tensor: SparseTensor, dtype: Any = None, device: Any = None, **_: Any) -> torch.Tensor:
    where = {} if device is None else {"device": device}
    values, indices = tensor._values_there.to(dtype=dtype, **where), tensor._indices_there.to(**where)
    if isinstance(values, RemoteTensor):
        return _make(indices, values, tensor.shape, coalesced=tensor._coalesced, layout=tensor.layout)
    here = torch.sparse_coo_tensor(indices, values, tensor.shape, is_coalesced=tensor._coalesced)
    return here.to_sparse_csr() if tensor.layout is torch.sparse_csr else here


def _dense(tensor: SparseTensor, dtype: Any = None, *_: Any, **__: Any) -> torch.Tensor:
    values = tensor._values_there
    return _add_to(values.new_zeros(tensor.shape), tensor).to(dtype or values.dtype)


def _add_to(dense: torch.Tensor, sparse: SparseTensor, *, alpha: float = 1) -> torch.Tensor:
    values = sparse._values_there if alpha == 1 else sparse._values_there * alpha
    return dense.index_put_(tuple(sparse._indices_there), values, accumulate=True)


def _add(one: Any, other: Any, *, alpha: float = 1) -> torch.Tensor:
    if not isinstance(other, SparseTensor):
        return _add_to(other * alpha, one)
    if not isinstance(one, SparseTensor):
        return _add_to(one.clone(), other, alpha=alpha)
    values = torch.cat([one._values_there, other._values_there * alpha])
    return _make(torch.cat([one._indices_there, other._indices_there], 1), values, one.shape)


def _coalesce(tensor: SparseTensor) -> SparseTensor:
    """Waits: how many elements there are is known there alone."""
    if tensor._coalesced:
        return tensor
    indices, inverse = torch.unique(tensor._indices_there, dim=1, return_inverse=True)
    values = tensor._values_there
    summed = values.new_zeros((indices.shape[1], *values.shape[1:])).index_add_(0, inverse, values)
    return _make(indices, summed, tensor.shape, coalesced=True)


def _masked(dense: torch.Tensor, mask: SparseTensor, *_: Any) -> SparseTensor:
    return _same_places(mask, dense[tuple(mask._indices_there)])


def _of_dense(dense: torch.Tensor, *_: Any, **__: Any) -> SparseTensor:
    places = dense.nonzero()
    return _make(places.t(), dense[tuple(places.t())], dense.shape, coalesced=True)


def _compressed(tensor: SparseTensor, *_: Any) -> SparseTensor:
    ordered = _coalesce(tensor)
    return _make(ordered._indices_there, ordered._values_there, tensor.shape, coalesced=True, layout=torch.sparse_csr)


def _row_ends(tensor: SparseTensor) -> torch.Tensor:
    counts = torch.bincount(tensor._indices_there[0], minlength=tensor.shape[0])
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


def _turned(tensor: SparseTensor, *_: Any) -> SparseTensor:
    return _make(tensor._indices_there.flip(0), tensor._values_there, tensor.shape[::-1])


def _product(sparse: Any, dense: Any) -> torch.Tensor:
    if not isinstance(sparse, SparseTensor):
        return _product(_turned(dense), sparse.t()).t()
    if isinstance(dense, SparseTensor):
        raise NotOnRemoteError("a product of two sparse tensors", "make one of them dense")
    rows, columns = sparse._indices_there
    values = sparse._values_there.reshape(-1, *[1] * (dense.dim() - 1))
    product: torch.Tensor = dense.new_zeros((sparse.shape[0], *dense.shape[1:]))
    return product.index_add_(0, rows, values * dense[columns])


def _added_product(into: Any, one: Any, other: Any, *, beta: float = 1, alpha: float = 1) -> torch.Tensor:
    product = _product(one, other) * alpha
    return product + into * beta if beta else product


def _bag_backward(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    grad, indices, offsets, bags, sizes, _, weights, by_frequency, mode, sparse, per_sample = args[:11]
    if not sparse:
        return issue(None, func, args, kwargs)
    if not bags.numel():  # a CPU's forward leaves out which bag each index is in
        starts = indices.new_zeros(indices.numel() + 1).index_add_(0, offsets, torch.ones_like(offsets))
        bags = starts.cumsum(0)[:-1] - 1
    rest = (sizes, weights, by_frequency, mode, per_sample, *args[11:])
    return _aten._embedding_bag_sparse_backward(grad, indices, offsets, bags, *rest, **kwargs)


_OPERATORS: dict[Any, Callable[..., Any]] = {
    torch.ops.prim.layout.default: lambda _: torch.sparse_csr,
    _aten._indices.default: lambda tensor: tensor._indices_there,
    _aten._values.default: lambda tensor: tensor._values_there,
    _aten.indices.default: lambda tensor: tensor._indices_there,
    _aten.values.default: lambda tensor: tensor._values_there,
    _aten._nnz.default: lambda tensor: tensor._values_there.shape[0],
    _aten.is_coalesced.default: lambda tensor: tensor._coalesced,
    _aten.sparse_dim.default: lambda tensor: tensor._indices_there.shape[0],
    _aten.dense_dim.default: lambda tensor: tensor._values_there.dim() - 1,
    _aten.detach.default: lambda tensor: _same_places(tensor, tensor._values_there),
    _aten.clone.default: lambda tensor, **_: _same_places(tensor, tensor._values_there.clone()),
    _aten._to_copy.default: _to_copy,
    _aten._to_dense.default: _dense,
    _aten._coalesce.default: _coalesce,
    _aten._to_sparse_csr.default: _compressed,
    _aten.crow_indices.default: _row_ends,
    _aten.col_indices.default: lambda tensor: tensor._indices_there[1],
    _aten.t.default: _turned,
    _aten.transpose.int: _turned,
    _aten.neg.default: lambda tensor: _same_places(tensor, -tensor._values_there),
    _aten.mul.Tensor: _scaled(torch.mul),
    _aten.div.Tensor: _scaled(torch.div),
    _aten.add.Tensor: _add,
    _aten.add_.Tensor: _add_to,
    _aten.sparse_mask.default: _masked,
    _aten.mm.default: _product,
    _aten.mv.default: _product,
    _aten.addmm.default: _added_product,
    _aten._sparse_addmm.default: _added_product,
}
SPECIAL[_aten._sparse_coo_tensor_with_dims_and_tensors.default] = lambda _, args, kwargs: _of_parts(*args, **kwargs)
SPECIAL[_aten._to_sparse.default] = lambda _, args, kwargs: _of_dense(*args, **kwargs)
SPECIAL[_aten._embedding_bag_backward.default] = _bag_backward
