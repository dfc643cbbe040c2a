"""`torch.compile(backend="aliquot")`: the same results by a few messages, and a stated reason where it can't be."""

from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import aliquot.remote.torch as remote
from bench.lib.remote_programs import Transformer
from tests.remote.channels import ServerProcess


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    torch._dynamo.reset()


def curve(model: nn.Module, run: Any, inputs: torch.Tensor, targets: torch.Tensor) -> tuple[list[float], int]:
    """Losses of some steps, and what the last one issued."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(3)
    losses, issued = [], 0
    for _ in range(5):
        before = remote.session_of().counters.operators
        optimizer.zero_grad()
        loss = functional.cross_entropy(run(inputs).flatten(0, -2), targets.flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        issued = remote.session_of().counters.operators - before
    return losses, issued


def both(model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, device: torch.device) -> tuple[int, int]:
    """Train here, there and compiled: losses agree to the last bit. Returns what a step issues, eager and compiled."""
    here = copy.deepcopy(model)
    eager, compiled = copy.deepcopy(model).to(device), copy.deepcopy(model).to(device)
    expected, _ = curve(here, here, inputs, targets)
    got, eagerly = curve(eager, eager, inputs.to(device), targets.to(device))
    assert got == expected
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        run = torch.compile(compiled, backend="aliquot", fullgraph=True)
        got, issued = curve(compiled, run, inputs.to(device), targets.to(device))
    assert got == expected
    for one, other in zip(here.buffers(), compiled.buffers(), strict=True):
        assert torch.equal(one, other.cpu())
    return eagerly, issued


def test_a_transformer_is_trained_by_two_graphs(device: torch.device) -> None:
    torch.manual_seed(0)
    tokens = torch.randint(0, 256, (2, 16))
    eagerly, issued = both(Transformer(width=32, layers=2), tokens, tokens, device)
    assert issued < eagerly / 3


def test_dropout_and_batch_norm_are_trained_as_here(device: torch.device) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    both(model, torch.randn(5, 6), torch.randint(0, 3, (5,)), device)
    compiled = torch.compile(copy.deepcopy(model).to(device).eval(), backend="aliquot")
    inputs = torch.randn(5, 6)
    assert torch.equal(compiled(inputs.to(device)).cpu(), model.eval()(inputs)), "evaluated, with gradients wanted"
    with torch.no_grad():
        assert torch.equal(compiled(inputs.to(device)).cpu(), model(inputs))


def test_views_of_arguments_and_results_stay_views(device: torch.device) -> None:
    held = torch.full((3,), 2.0)

    def function(x: torch.Tensor) -> Any:
        y = x.add(1).mul(held.to(x.device))
        return x.t(), y, y.view(-1)[2:], y.detach(), x, y.sum()

    there = torch.arange(6.0).view(2, 3).to(device)
    compiled = torch.compile(function, backend="aliquot")
    compiled(there)
    turned, made, part, same, given, total = compiled(there)
    assert given is there
    made.zero_()
    there.mul_(10)
    assert (part.tolist(), same.tolist(), total.item()) == ([0.0] * 4, [[0.0] * 3] * 2, 42.0)
    assert turned.tolist() == there.t().tolist() == [[0.0, 30.0], [10.0, 40.0], [20.0, 50.0]]


def test_sizes_that_change_fall_back_with_the_reason(device: torch.device) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.softmax(0).square().sum()

    compiled = torch.compile(function, backend="aliquot")
    compiled(torch.ones(3, device=device))
    with pytest.warns(UserWarning, match=r"sizes changed.*dynamic=False"):
        assert compiled(torch.ones(4, device=device)).item() == function(torch.ones(4)).item()
    torch._dynamo.reset()
    each = torch.compile(function, backend="aliquot", dynamic=False)
    session = remote.session_of(device)
    there = {size: torch.ones(size, device=device) for size in (2, 3)}
    for issued in (None, None, 1, 1):
        for size, tensor in there.items():
            before = session.counters.operators
            assert each(tensor).item() == function(torch.ones(size)).item()
            assert issued in {None, session.counters.operators - before}


def test_what_can_not_be_sent_falls_back_with_the_reason(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.exp() + 1

    with pytest.warns(UserWarning, match="no tensor of a remote device"):
        assert torch.compile(function, backend="aliquot")(torch.zeros(2)).tolist() == [2.0, 2.0]

    monkeypatch.setattr("aliquot.remote.torch.graphs.GRAPHS_MAX", 0)
    compiled = torch.compile(function, backend="aliquot")
    with pytest.warns(UserWarning, match="more than 0 graphs"):
        assert compiled(torch.zeros(2, device=device)).tolist() == [2.0, 2.0]
    assert compiled(torch.zeros(2, device=device)).tolist() == [2.0, 2.0]


def test_a_program_with_control_flow_and_waits_is_cut_where_it_waits(device: torch.device) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y + 1 if y.sum().item() > 0 else y - 1

    compiled = torch.compile(function, backend="aliquot")
    for sign in (1, -1, 1):
        assert compiled(sign * torch.ones(2, device=device)).tolist() == [3.0 * sign] * 2


SERVES = """
from aliquot.remote.server import pytorch
pytorch.prepare()
"""
WORKS = """
import sys
import torch
from torch import nn
import aliquot.remote.torch as remote
from tests.remote.channels import ProcessChannel
device = remote.attach(ProcessChannel(sys.argv[1], 1 << 28))
model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU(), nn.Dropout(), nn.Linear(4, 2)).to(device)
loss = nn.functional.cross_entropy(model(torch.ones(5, 3, device=device)), torch.arange(5, device=device) % 2)
loss.backward()
assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
remote.detach(device)
"""


@pytest.mark.parametrize("program", [SERVES, WORKS], ids=["serves", "works"])
def test_the_compiler_is_not_loaded_for_who_does_not_compile(program: str, server: ServerProcess) -> None:
    """It takes a second. A step of an optimizer loads it in any case."""
    program += "import sys\nassert 'torch._dynamo' not in sys.modules\n"
    done = subprocess.run([sys.executable, "-c", program, server.path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
