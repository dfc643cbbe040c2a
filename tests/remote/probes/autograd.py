"""Gradients."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.remote.probes.probing import close, probe


@probe("autograd", "gradients of gradients")
def _(device: torch.device) -> None:
    def program(where: Any) -> torch.Tensor:
        x = torch.tensor([1.0, 2.0], device=where, requires_grad=True)
        weight = torch.tensor([[1.0, 0.5], [0.2, 1.0]], device=where, requires_grad=True)
        (first,) = torch.autograd.grad(functional.linear(x[None], weight).pow(3).sum(), x, create_graph=True)
        first.square().sum().backward()
        assert x.grad is not None
        return x.grad

    close(program("cpu"), program(device))


@probe("autograd", "custom functions")
def _(device: torch.device) -> None:
    class Clamp(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.clamp(0, 1)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            product: torch.Tensor = grad * (x > 0)
            return product

    x = torch.tensor([-1.0, 2.0], device=device, requires_grad=True)
    clamp: Any = Clamp.apply
    clamp(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 1]


@probe("autograd", "an exception inside backward comes out of it")
def _(device: torch.device) -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            raise ValueError("on purpose")

    x = torch.ones(2, device=device, requires_grad=True)
    fails: Any = Fails.apply
    with pytest.raises(ValueError, match="on purpose"):
        fails(x).sum().backward()
    assert (x * 2).sum().item() == 4


@probe("autograd", "checkpointing")
def _(device: torch.device) -> None:
    from torch.utils.checkpoint import checkpoint

    layer = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).to(device)
    x = torch.ones(2, 3, device=device, requires_grad=True)
    checkpoint(layer, x, use_reentrant=False).sum().backward()
    assert x.grad is not None


@probe("autograd", "accumulated gradients, clipping, no_grad, detach")
def _(device: torch.device) -> None:
    def program(where: Any) -> torch.Tensor:
        torch.manual_seed(0)
        layer = nn.Linear(3, 2)
        layer.to(where)
        for factor in (1.0, 2.0):
            layer(torch.full((2, 3), factor, device=where)).sum().backward()
        nn.utils.clip_grad_norm_(layer.parameters(), 0.5)
        with torch.no_grad():
            for parameter in layer.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad)
        return layer.weight.detach()

    close(program("cpu"), program(device))


@probe("autograd", "torch.func: grad, vmap, functional_call")
def _(device: torch.device) -> None:
    x = torch.arange(3.0, device=device)
    assert torch.func.grad(lambda y: (y**2).sum())(x).tolist() == [0, 2, 4]
    assert torch.func.vmap(lambda y: y * 2)(x).tolist() == [0, 2, 4]


@probe("autograd", "jacobians and anomaly detection")
def _(device: torch.device) -> None:
    x = torch.arange(3.0, device=device)
    jacobian = torch.autograd.functional.jacobian(lambda y: y**2, x)
    close(torch.diag(2 * torch.arange(3.0)), jacobian)


@probe("autograd", "several threads, each with its own backward")
def _(device: torch.device) -> None:
    failures: list[Exception] = []

    def work(seed: int) -> None:
        try:
            x = torch.full((4,), float(seed), device=device, requires_grad=True)
            for _ in range(30):
                x.grad = None
                (x * x).sum().backward()
                grad: Any = x.grad
                assert grad.tolist() == [2.0 * seed] * 4
        except Exception as error:  # noqa: BLE001 - told by the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
