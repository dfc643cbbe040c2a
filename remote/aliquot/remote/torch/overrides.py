"""Layers that travel whole, in the places where PyTorch would take them apart before they come to us."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable

import aliquot.remote.kernels
from aliquot.remote.torch import backend
from aliquot.remote.torch.tensor import SPECIAL, RemoteTensor, issue

_aten = torch.ops.aten
_own = torch.ops.aliquot
assert aliquot.remote.kernels.RANDOM

_linear = _aten.linear.default


def _serves_cpu(tensor: torch.Tensor) -> bool:
    if isinstance(tensor, RemoteTensor):
        return tensor._layout.session.welcome.device == "cpu"
    # The compiler traces with tensors of its own, which know their device and nothing else.
    return tensor.device.type == "aliquot" and backend.session_of(tensor.device).welcome.device == "cpu"


def _call(operator: Any, args: Sequence[Any]) -> Any:
    """An operator of ours, issued or, where the compiler looks on, called as any other."""
    if any(type(arg) is RemoteTensor for arg in args):
        return issue(None, operator, args, None)
    return operator(*args)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mat: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(mat, weight)
        ctx.has_bias = bias is not None
        result: torch.Tensor = issue(None, _linear, (mat, weight, bias), None)
        return result

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        mat, weight = ctx.saved_tensors
        mask = list(ctx.needs_input_grad)
        if torch.is_grad_enabled():
            rows, flat = grad.reshape(-1, grad.shape[-1]), mat.reshape(-1, mat.shape[-1])
            return (
                rows.mm(weight).reshape(mat.shape) if mask[0] else None,
                rows.t().mm(flat) if mask[1] else None,
                rows.sum(0) if mask[2] else None,
            )
        of_mat, of_weight, of_bias = issue(None, _own.linear_backward.default, (grad, mat, weight, mask), None)
        return of_mat if mask[0] else None, of_weight if mask[1] else None, of_bias if mask[2] else None


def _linear_kernel(mat: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    if not (type(mat) is type(weight) is RemoteTensor and weight.dim() == 2 and mat.dim() >= 2):
        # Mixed devices, vectors, and what the compiler traces: as PyTorch takes it apart, errors included.
        if bias is not None and weight.dim() == 2 and mat.dim() >= 2:
            rows = torch.addmm(bias, mat.reshape(-1, mat.shape[-1]), weight.t())
            return rows.view(*mat.shape[:-1], weight.shape[0])
        product = torch.matmul(mat, weight.t())
        return product if bias is None else product + bias
    if torch.is_grad_enabled() and (
        mat.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    ):
        return _Linear.apply(mat, weight, bias)  # type: ignore[no-any-return,no-untyped-call]
    result: torch.Tensor = issue(None, _linear, (mat, weight, bias), None)
    return result


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Scaled dot product attention: the fused kernel that a CPU would choose, else its parts."""
    if (
        _serves_cpu(query)
        and dropout_p == 0.0
        and not enable_gqa
        and query.dim() == key.dim() == value.dim() == 4
        and query.shape[-1] == key.shape[-1] == value.shape[-1]
        and query.dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
        and query.dtype == key.dtype == value.dtype
        and query.shape[0] == key.shape[0] == value.shape[0]
        and query.shape[1] == key.shape[1] == value.shape[1]
        and min(query.numel(), key.numel()) > 0
        and (attn_mask is None or (not attn_mask.requires_grad and attn_mask.dim() in (2, 4)))
        and not (is_causal and attn_mask is not None)
        and query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
    ):
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(~attn_mask, float("-inf"))
        result: torch.Tensor = _aten._scaled_dot_product_flash_attention_for_cpu.default(
            query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
        )[0]
        return result
    parts: torch.Tensor = _aten._scaled_dot_product_attention_math.default(
        query, key, value, attn_mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
    )[0]
    return parts


def _dropout(mat: torch.Tensor, p: float, train: bool) -> torch.Tensor:  # noqa: FBT001
    """As a CPU does it, so that one seed gives one result; a GPU's own kernel where a GPU serves."""
    if not 0 <= p <= 1:
        raise RuntimeError(f"dropout probability has to be between 0 and 1, but got {p}")
    if p == 0 or not train or not mat.numel():
        return mat
    if not _serves_cpu(mat):
        result: torch.Tensor = _aten.native_dropout.default(mat, p, train)[0]
        return result
    if p == 1:
        return mat * torch.zeros_like(mat)
    with torch.no_grad():
        mask = _call(_own.dropout_mask.default, (mat, p))
    product: torch.Tensor = mat * mask
    return product


class _LSTMCell(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gates_in: torch.Tensor, gates_hidden: torch.Tensor, cell: torch.Tensor) -> Any:
        hidden, after, workspace = _call(_own.lstm_cell.default, (gates_in, gates_hidden, cell))
        ctx.save_for_backward(cell, after, workspace)
        return hidden, after

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_hidden: torch.Tensor, grad_cell: torch.Tensor) -> Any:
        cell, after, workspace = ctx.saved_tensors
        gates, of_cell = _call(_own.lstm_cell_backward.default, (grad_hidden, grad_cell, cell, after, workspace))
        return gates, gates, of_cell


def _lstm_cell(
    gates_in: torch.Tensor,
    gates_hidden: torch.Tensor,
    cell: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if input_bias is not None:
        gates_in = gates_in + input_bias
    if hidden_bias is not None:
        gates_hidden = gates_hidden + hidden_bias
    hidden, after = _LSTMCell.apply(gates_in, gates_hidden, cell)  # type: ignore[no-untyped-call]
    return hidden, after, gates_in


def _gru_cell(
    gates_in: torch.Tensor,
    gates_hidden: torch.Tensor,
    hidden: torch.Tensor,
    input_bias: torch.Tensor | None = None,
    hidden_bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    if input_bias is not None:
        gates_in = gates_in + input_bias
    if hidden_bias is not None:
        gates_hidden = gates_hidden + hidden_bias
    reset_in, update_in, new_in = gates_in.chunk(3, 1)
    reset_hidden, update_hidden, new_hidden = gates_hidden.chunk(3, 1)
    reset = (reset_hidden + reset_in).sigmoid()
    update = (update_hidden + update_in).sigmoid()
    new = (new_in + new_hidden * reset).tanh()
    return (hidden - new) * update + new, gates_in


def _ctc_loss(  # noqa: PLR0917
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: torch.Tensor,
    target_lengths: torch.Tensor,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,  # noqa: FBT001
) -> torch.Tensor:
    """Lengths are numbers of the program, wherever their tensors are."""
    loss: torch.Tensor = _aten.ctc_loss.IntList(
        log_probs, targets, input_lengths.tolist(), target_lengths.tolist(), blank, reduction, zero_infinity
    )
    return loss


def _pack_padded_sequence(
    sequences: torch.Tensor,
    lengths: torch.Tensor,
    batch_first: bool,  # noqa: FBT001
) -> tuple[torch.Tensor, torch.Tensor]:
    """Lengths, and how many sequences go on at each step, are the program's: only the elements are there."""
    numbers: list[int] = lengths.tolist()
    if not numbers or numbers[-1] <= 0:
        raise RuntimeError("Length of all samples has to be greater than 0")
    if numbers != sorted(numbers, reverse=True):
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True; leave that to "
            "PyTorch by enforce_sorted=False"
        )
    steps = sequences.transpose(0, 1) if batch_first else sequences
    going = [sum(number > step for number in numbers) for step in range(numbers[0])]
    data = torch.cat([steps[step, :count] for step, count in enumerate(going)])
    return data, torch.tensor(going, device="cpu")


def _one_hot(classes: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """By scattering, as on a GPU, which fails for a class that there is not. PyTorch compares where tensors are such as
    ours, and then says nothing.
    """
    if num_classes == -1:
        num_classes = int(classes.max()) + 1
    zeros = classes.new_zeros((*classes.shape, num_classes))
    return zeros.scatter_(-1, classes.unsqueeze(-1), 1)


def _whole_or(operator: Any, parts: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A gradient by the server's own kernel; by its parts where it has a gradient itself, or the compiler looks on."""

    def run(grad: torch.Tensor, mat: torch.Tensor) -> torch.Tensor:
        if type(grad) is type(mat) is RemoteTensor and not _wants_grad(grad, mat):
            result: torch.Tensor = issue(None, operator, (grad, mat), None)
            return result
        return parts(grad, mat)

    return run


def _silu_parts(grad: torch.Tensor, mat: torch.Tensor) -> torch.Tensor:
    share = mat.sigmoid()
    return grad * share * (1 + mat * (1 - share))


def _mish_parts(grad: torch.Tensor, mat: torch.Tensor) -> torch.Tensor:
    squashed = torch.nn.functional.softplus(mat).tanh()
    return grad * (squashed + mat * mat.sigmoid() * (1 - squashed * squashed))


def _wants_grad(*tensors: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


_library = torch.library.Library("aten", "IMPL")


def register() -> None:
    """Put them where autograd would be, once a process."""
    _library.impl("linear", _linear_kernel, "AutogradPrivateUse1")
    _library.impl("scaled_dot_product_attention", _attention, "AutogradPrivateUse1")
    _library.impl("silu_backward", _whole_or(_aten.silu_backward.default, _silu_parts), "AutogradPrivateUse1")
    _library.impl("mish_backward", _whole_or(_aten.mish_backward.default, _mish_parts), "AutogradPrivateUse1")
    _library.impl("one_hot", _one_hot, "AutogradPrivateUse1")
    _library.impl("dropout", _dropout, "AutogradPrivateUse1")
    _library.impl("_pack_padded_sequence", _pack_padded_sequence, "AutogradPrivateUse1")
    _library.impl("_thnn_fused_lstm_cell", _lstm_cell, "AutogradPrivateUse1")
    _library.impl("ctc_loss.Tensor", _ctc_loss, "AutogradPrivateUse1")
    _library.impl("_thnn_fused_gru_cell", _gru_cell, "AutogradPrivateUse1")


def _linear_below(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    return issue(None, func, args, kwargs)


SPECIAL[_linear] = _linear_below
SPECIAL[_aten._pack_padded_sequence.default] = lambda _, args, kwargs: _pack_padded_sequence(*args, **kwargs)
