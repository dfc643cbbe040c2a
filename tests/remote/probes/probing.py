"""How a probe is written: a small program on a device that fails by an exception, kept under a group and a name."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Probe = Callable[[torch.device], None]
PROBES: list[tuple[str, str, Probe]] = []


def probe(group: str, name: str) -> Callable[[Probe], Probe]:
    def add(function: Probe) -> Probe:
        PROBES.append((group, name, function))
        return function

    return add


def close(here: Any, there: Any, tolerance: float = 1e-5) -> None:
    if isinstance(here, (tuple, list)):
        for one, other in zip(here, there, strict=True):
            close(one, other, tolerance)
        return
    torch.testing.assert_close(there.detach().cpu().resolve_conj(), here.detach(), rtol=tolerance, atol=tolerance)


def agree(
    name: str, group: str, program: Callable[..., Any], *shapes: tuple[int, ...], tolerance: float = 1e-5
) -> None:
    """A probe that compares a function of random tensors, and its gradients where there are any."""

    def run(device: torch.device) -> None:
        generator = torch.Generator().manual_seed(7)
        inputs = [torch.randn(shape, generator=generator) for shape in shapes]
        here = [tensor.clone().requires_grad_() for tensor in inputs]
        there = [tensor.to(device).requires_grad_() for tensor in inputs]
        expected, got = program(*here), program(*there)
        close(expected, got, tolerance)
        if isinstance(expected, torch.Tensor) and expected.requires_grad and expected.is_floating_point():
            expected.square().sum().backward()
            got.square().sum().backward()
            close([tensor.grad for tensor in here], [tensor.grad for tensor in there], tolerance * 10)

    PROBES.append((group, name, run))


def module_agrees(name: str, make: Callable[[], nn.Module], *shapes: tuple[int, ...], tolerance: float = 1e-4) -> None:
    """A probe that compares a module's result and its parameters' gradients."""

    def run(device: torch.device) -> None:
        torch.manual_seed(0)
        here = make()
        there = copy.deepcopy(here).to(device)
        inputs = [torch.randn(shape) for shape in shapes]
        expected, got = here(*inputs), there(*[tensor.to(device) for tensor in inputs])
        first, second = (value[0] if isinstance(value, tuple) else value for value in (expected, got))
        close(first, second, tolerance)
        first.square().mean().backward()
        second.square().mean().backward()
        for one, other in zip(here.parameters(), there.parameters(), strict=True):
            if one.grad is not None:
                assert other.grad is not None
                close(one.grad, other.grad, tolerance)

    PROBES.append(("modules", name, run))
