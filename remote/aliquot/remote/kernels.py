"""Operators of our own, known to both ends under one schema: what would be many operators on the wire is one.

Each is written with PyTorch's own operators, in the order in which a local CPU would run them, so that results are the
same to the last bit. Being written so, each also says what its results look like when it is given meta tensors.
"""

from __future__ import annotations

import torch

_LIBRARY = torch.library.Library("aliquot", "DEF")


def _linear_backward(
    grad: torch.Tensor, mat: torch.Tensor, weight: torch.Tensor, mask: list[bool]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of a linear layer, as those of `addmm` and `mm` on the flattened input."""
    rows = grad.reshape(-1, grad.shape[-1])
    nothing = torch.empty(0, dtype=grad.dtype, device=grad.device)
    of_input = torch.mm(rows, weight).reshape(mat.shape) if mask[0] else nothing
    of_weight = torch.mm(rows.t(), mat.reshape(-1, mat.shape[-1])) if mask[1] else nothing.clone()
    of_bias = rows.sum(0) if mask[2] else nothing.clone()
    return of_input, of_weight, of_bias


def _dropout_mask(mat: torch.Tensor, p: float) -> torch.Tensor:
    """Zeros and factors, as the CPU's own dropout draws them."""
    return torch.empty_like(mat).bernoulli_(1 - p).div_(1 - p)


def _lstm_cell(
    gates_in: torch.Tensor, gates_hidden: torch.Tensor, cell: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    gates = gates_in + gates_hidden
    take, forget, new, out = gates.chunk(4, 1)
    take, forget, new, out = take.sigmoid(), forget.sigmoid(), new.tanh(), out.sigmoid()
    after = forget * cell + take * new
    return out * after.tanh(), after, torch.cat((take, forget, new, out), 1)


def _lstm_cell_backward(
    grad_hidden: torch.Tensor,
    grad_cell: torch.Tensor,
    cell: torch.Tensor,
    after: torch.Tensor,
    workspace: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    take, forget, new, out = workspace.chunk(4, 1)
    squashed = after.tanh()
    of_after = grad_cell + grad_hidden * out * (1 - squashed * squashed)
    gates = torch.cat(
        (
            of_after * new * take * (1 - take),
            of_after * cell * forget * (1 - forget),
            of_after * take * (1 - new * new),
            grad_hidden * squashed * out * (1 - out),
        ),
        1,
    )
    return gates, of_after * forget


_LIBRARY.define("linear_backward(Tensor grad, Tensor mat, Tensor weight, bool[3] mask) -> (Tensor, Tensor, Tensor)")
_LIBRARY.impl("linear_backward", _linear_backward, "CompositeExplicitAutograd")
_LIBRARY.define("dropout_mask(Tensor mat, float p) -> Tensor")
_LIBRARY.impl("dropout_mask", _dropout_mask, "CompositeExplicitAutograd")
_LIBRARY.define("lstm_cell(Tensor gates_in, Tensor gates_hidden, Tensor cell) -> (Tensor, Tensor, Tensor)")
_LIBRARY.impl("lstm_cell", _lstm_cell, "CompositeExplicitAutograd")
_LIBRARY.define(
    "lstm_cell_backward(Tensor grad_hidden, Tensor grad_cell, Tensor cell, Tensor after, Tensor workspace)"
    " -> (Tensor, Tensor)"
)
_LIBRARY.impl("lstm_cell_backward", _lstm_cell_backward, "CompositeExplicitAutograd")

RANDOM = frozenset({"aliquot::dropout_mask"})
"""Of these, what draws from the session's generator."""
