"""What stands around a model: saving, compiling, profiling."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import aliquot.remote.torch as remote
from tests.remote.probes.probing import close, probe


@probe("tools", 'torch.compile(backend="aliquot"): training by two messages a step')
def _(device: torch.device) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(device)
    x, compiled = torch.randn(2, 3, device=device), torch.compile(model, backend="aliquot", fullgraph=True)
    compiled(x).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    session = remote.session_of(device)
    before = session.counters.operators
    result = compiled(x)
    assert session.counters.operators == before + 1
    result.sum().backward()
    close(model(x).cpu(), result)
    for gradient, parameter in zip(gradients, model.parameters(), strict=True):
        assert gradient is not None
        close(gradient.cpu(), parameter.grad)
    torch._dynamo.reset()


@probe("tools", "torch.compile by other backends (leaves our tensors to the eager lane: it runs, and gains nothing)")
def _(device: torch.device) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(device)
    x = torch.randn(2, 3, device=device)
    close(model(x).cpu(), torch.compile(model, backend="aot_eager")(x))
    torch._dynamo.reset()


@probe("tools", "a forward pass sent once and run by its number")
def _(device: torch.device) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).to(device)
    model.eval()
    x = torch.randn(2, 1, 6, 6, device=device)
    run = torch.compile(model, backend="aliquot")
    session = remote.session_of(device)
    with torch.no_grad():
        run(x)
        before = session.counters.operators
        result = run(x)
    torch._dynamo.reset()
    assert session.counters.operators == before + 1
    close(model(x).cpu(), result)


@probe("tools", "torch.fx tracing")
def _(device: torch.device) -> None:
    model = torch.fx.symbolic_trace(nn.Sequential(nn.Linear(3, 3), nn.ReLU())).to(device)
    assert tuple(model(torch.ones(1, 3, device=device)).shape) == (1, 3)


@probe("tools", "events and streams")
def _(device: torch.device) -> None:
    module: Any = torch.get_device_module("aliquot")
    start, end = module.Event(enable_timing=True), module.Event(enable_timing=True)
    start.record()
    torch.ones(3, device=device).mul_(2)
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) >= 0
    with module.stream(module.current_stream()):
        module.synchronize()


@probe("tools", "memory statistics")
def _(device: torch.device) -> None:
    module: Any = torch.get_device_module("aliquot")
    before = module.memory_allocated(device)
    kept = torch.empty(1000, device=device)
    assert module.memory_allocated(device) == before + 4000
    free, total = module.mem_get_info(device)
    assert 0 < free < total
    del kept


@probe("tools", "out of memory is an exception that can be caught")
def _(device: torch.device) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 44, device=device).sum().item()
    assert torch.ones(2, device=device).sum().item() == 2


@probe("tools", "quantized tensors")
def _(device: torch.device) -> None:
    x = torch.quantize_per_tensor(torch.randn(4).to(device), 0.1, 0, torch.qint8)
    x.dequantize().sum().item()


@probe("tools", "sparse tensors")
def _(device: torch.device) -> None:
    x = torch.eye(3, device=device).to_sparse()
    assert (x @ torch.ones(3, 1, device=device)).sum().item() == 3


@probe("tools", "the profiler")
def _(device: torch.device) -> None:
    with torch.profiler.profile() as profile:
        torch.ones(3, device=device).sum().item()
    assert profile.key_averages()
