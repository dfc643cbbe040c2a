"""Which operators a client may name: PyTorch's own, without those that touch files, pointers or other processes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from aliquot.remote import kernels

_NAMESPACES = ("aten::", "aliquot::")

_REFUSED_NAMES = frozenset((
    # Files, and storages of somebody else's making, and sizes past them.
    "from_file", "set_", "set", "set_out", "resize", "resize_", "resize_as_", "resize_as", "as_strided_",
    "_resize_output_", "_resize_output",
    # What a tensor here is not, and constructors that believe their arguments.
    "_pin_memory", "pin_memory", "is_pinned", "record_stream", "_make_dual", "_make_per_tensor_quantized_tensor",
    "_make_per_channel_quantized_tensor", "_index_put_impl_", "_index_put_impl", "_convert_weight_to_int4pack",
    "_assert_async", "_assert_scalar", "_functional_assert_async", "_print", "sym_size", "sym_stride",
))  # fmt: skip

_REFUSED_PARTS = (
    "sparse", "quantiz", "nested", "named", "_test_", "mkldnn", "_cudnn_init", "storage", "jagged", "coalesce",
    "qint", "fbgemm", "_version", "backward_hook", "dlpack", "_wrapped_", "_dyn_quant", "mps", "vulkan", "_spmm",
    "csr", "q_scale", "q_zero", "q_per", "xnnpack", "names", "retain_grad", "requires_grad_",
)  # fmt: skip

_REFUSED_TYPES = ("Storage", "Stream", "Any", "Dimname", "__torch__", "Future", "Device[]", "AnyClass")


class NotAllowed(ValueError):
    """An operator that clients may not name."""


def _is_allowed(name: str, schema: str) -> bool:
    base = name.split("::", 1)[1].split(".", 1)[0].replace("fake_quantize", "fake_quant")  # makes ordinary tensors
    if base in _REFUSED_NAMES or any(part in base for part in _REFUSED_PARTS):
        return False
    return not any(kind in schema for kind in _REFUSED_TYPES)


@cache
def allowed() -> dict[str, Callable[..., Any]]:
    """Operators by the names that the dispatcher itself has for them."""
    table: dict[str, Callable[..., Any]] = {}
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith(_NAMESPACES):
            continue
        space, rest = name.split("::", 1)
        base, _, overload = rest.partition(".")
        try:
            function = getattr(getattr(getattr(torch.ops, space), base), overload or "default")
            schema = str(function._schema)
        except (AttributeError, RuntimeError):
            continue
        if _is_allowed(name, schema):
            table[name] = function
    return table


@cache
def digest() -> str:
    """SHA-256 of the allowed schemas, hexadecimal: ends that agree may differ in the version of PyTorch."""
    state = hashlib.sha256()
    for name, function in sorted(allowed().items()):
        state.update(f"{name} {function._schema}\n".encode())  # type: ignore[attr-defined]
    return state.hexdigest()


def find(name: str) -> Callable[..., Any]:
    """The operator of that name.

    Raises:
        NotAllowed: there is none, or clients may not name it.
    """
    try:
        return allowed()[name]
    except KeyError:
        raise NotAllowed(f"the operator {name[:100]!r} is not served") from None


def is_random(name: str, function: Callable[..., Any]) -> bool:
    """Whether it draws from a generator."""
    return name in kernels.RANDOM or torch.Tag.nondeterministic_seeded in getattr(function, "tags", ())
