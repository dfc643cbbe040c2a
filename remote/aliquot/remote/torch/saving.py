"""Printing, saving and copying tensors whose elements are elsewhere."""

from __future__ import annotations

from typing import Any

import torch


def describe(tensor: torch.Tensor) -> str:
    """As PyTorch prints a tensor of another device. Waits for its elements."""
    with torch.no_grad():
        text = repr(tensor.detach().cpu())
    extra = f", device='{tensor.device}'"
    if tensor.grad_fn is not None:
        extra += f", grad_fn=<{type(tensor.grad_fn).__name__}>"
    elif tensor.requires_grad:
        extra += ", requires_grad=True"
    text = text.removesuffix(")") + extra + ")"
    return f"Parameter containing:\n{text}" if isinstance(tensor, torch.nn.Parameter) else text


def reduce(tensor: torch.Tensor, protocol: object) -> Any:
    """Saved as a CPU tensor, so that whoever loads it needs neither a remote device nor more than weights."""
    here = tensor.detach().cpu().requires_grad_(tensor.requires_grad)
    if isinstance(tensor, torch.nn.Parameter):
        here = torch.nn.Parameter(here, tensor.requires_grad)
    return here.__reduce_ex__(protocol)


def deep_copy(tensor: torch.Tensor, memo: dict[int, Any]) -> Any:
    """A copy there.

    Raises:
        RuntimeError: it is no leaf, as with any tensor.
    """
    if id(tensor) in memo:
        return memo[id(tensor)]
    if not tensor.is_leaf:
        raise RuntimeError("Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol")
    with torch.no_grad():
        copied: torch.Tensor = tensor.detach().clone()
    if isinstance(tensor, torch.nn.Parameter):
        copied = torch.nn.Parameter(copied, tensor.requires_grad)
    else:
        copied.requires_grad_(tensor.requires_grad)
    if tensor.grad is not None:
        copied.grad = deep_copy(tensor.grad, memo)
    memo[id(tensor)] = copied
    return copied
