"""Operators one by one: the same values as on a CPU here, to the last bit, and the same errors."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import aliquot.remote.torch as remote
from aliquot.remote import errors
from bench.lib.remote_programs import Transformer
from tests.remote.channels import ServerProcess


def same(here: torch.Tensor, there: torch.Tensor) -> bool:
    down = there.detach().cpu()
    return here.dtype == down.dtype and here.shape == down.shape and torch.equal(here, down)


def test_what_goes_up_comes_down(device: torch.device) -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64):
        here = torch.randn(3, 5).mul(4).to(dtype)
        assert same(here, here.to(device))
        assert same(here.t(), here.t().to(device)), "a view goes up as it looks"
        assert here.t().to(device).stride() == here.t().stride()
    assert same(torch.empty(0, 3), torch.empty(0, 3).to(device))
    assert same(torch.tensor(3.5), torch.tensor(3.5, device=device))


def test_views_share_their_allocation(device: torch.device) -> None:
    here = torch.arange(24.0).view(4, 6)
    there = here.to(device)
    before = remote.session_of(device).statistics()["allocations"]
    for tensor in (here, there):
        view = tensor.t()[1:5:2].unsqueeze(0)[..., ::2]
        view.mul_(10)
        tensor[2].add_(1)
        tensor.select(1, -1).zero_()
        tensor.view(-1)[3:7] = 5
    assert same(here, there)
    gc.collect()
    assert remote.session_of(device).statistics()["allocations"] == before


def test_what_is_cut_into_several_is_written_through_each(device: torch.device) -> None:
    cuts: tuple[Callable[[torch.Tensor], Sequence[torch.Tensor]], ...] = (
        lambda x: x.unbind(0),
        lambda x: torch.split(x, 2),
        lambda x: torch.split(x, [1, 3]),
        lambda x: x.chunk(3, 1),
        lambda x: x.tensor_split((1, 2)),
    )
    for cut in cuts:
        here, there = torch.zeros(4, 6), torch.zeros(4, 6, device=device)
        session = remote.session_of(device)
        issued = session.counters.operators
        cut(there)
        assert session.counters.operators == issued, "views are made here"
        for tensor in (here, there):
            for number, part in enumerate(cut(tensor)):
                part.add_(number + 1)
        assert same(here, there)


def test_a_base_lives_as_long_as_a_view_of_it(device: torch.device) -> None:
    base = torch.arange(10.0, device=device)
    view = base[3:5]
    del base
    gc.collect()
    assert view.tolist() == [3.0, 4.0]
    assert remote.session_of(device).statistics()["used_bytes"] == 40


def test_what_is_let_go_is_free_to_the_byte(device: torch.device) -> None:
    session = remote.session_of(device)
    start = session.statistics()["used_bytes"]
    x = torch.ones(100, device=device)
    for _ in range(10_000):
        x = x * 1.0
    assert session.statistics()["used_bytes"] == start + 400
    del x
    assert session.statistics()["used_bytes"] == start


@pytest.mark.parametrize("foreach", [True, False])
def test_training_with_dropout_is_the_same_to_the_last_bit(device: torch.device, foreach: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, 16),
        nn.LayerNorm(16),
        nn.GELU(),
        nn.Dropout(0.3),
        nn.Linear(16, 16),
        nn.BatchNorm1d(16),
        nn.Linear(16, 4),
    )
    inputs, targets = torch.randn(32, 8), torch.randint(0, 4, (32,))

    def losses(where: torch.device | str) -> list[float]:
        copied = copy.deepcopy(model).to(where)
        optimizer = torch.optim.AdamW(copied.parameters(), lr=0.01, foreach=foreach)
        torch.manual_seed(1)
        curve = []
        for _ in range(10):
            optimizer.zero_grad()
            loss = functional.cross_entropy(copied(inputs.to(where)), targets.to(where))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(copied.parameters(), 1.0)
            optimizer.step()
            curve.append(loss.item())
        return curve

    assert losses("cpu") == losses(device)


@pytest.mark.parametrize("name", ["silu", "mish", "gelu", "hardswish", "softsign", "elu"])
def test_activations_have_the_same_gradients_to_the_last_bit(device: torch.device, name: str) -> None:
    function = getattr(functional, name)
    here = torch.randn(40, generator=torch.Generator().manual_seed(1)).requires_grad_()
    there = here.detach().to(device).requires_grad_()
    for tensor in (here, there):
        (first,) = torch.autograd.grad(function(tensor).square().sum(), tensor, create_graph=True)
        first.sum().backward()
        function(tensor).cos().sum().backward()
    first_here, first_there = (torch.autograd.grad(function(x).square().sum(), x)[0] for x in (here, there))
    assert same(first_here, first_there)
    assert here.grad is not None
    assert there.grad is not None
    assert torch.allclose(here.grad, there.grad.cpu(), rtol=1e-5), "of gradients, too"


def test_a_transformer_trains_the_same_to_the_last_bit(device: torch.device) -> None:
    def losses(where: torch.device | str) -> list[float]:
        torch.manual_seed(0)
        model = Transformer(width=32, layers=2).to(where)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        tokens = torch.randint(0, 256, (2, 16)).to(where)
        curve = []
        for _ in range(5):
            loss = functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            curve.append(loss.item())
        return curve

    assert losses("cpu") == losses(device)


def test_results_that_depend_on_elements_are_asked_for(device: torch.device) -> None:
    here = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    there = here.to(device)
    assert same(here.nonzero(), there.nonzero())
    assert same(here[here > 0], there[there > 0])
    for one, other in zip(torch.unique(here, return_counts=True), torch.unique(there, return_counts=True), strict=True):
        assert same(one, other)
    assert torch.equal(there, there.clone())
    there[there > 1] = 7
    assert there.tolist() == [[1.0, 0.0], [0.0, 7.0]]


def test_devices_are_not_mixed(device: torch.device, server: ServerProcess) -> None:
    there = torch.ones(2, device=device)
    with pytest.raises(RuntimeError, match="same device"):
        there + torch.ones(2)
    assert (there + torch.tensor(2.0)).tolist() == [3.0, 3.0], "a scalar of the CPU is welcome"
    second = remote.attach(server.connect())
    try:
        assert second != device
        with pytest.raises(RuntimeError, match="same device"):
            there + torch.ones(2, device=second)
        assert there.to(second).tolist() == [1.0, 1.0]
    finally:
        remote.detach(second)


def test_out_of_memory_is_exact_and_leaves_things_as_they_were(device: torch.device) -> None:
    session = remote.session_of(device)
    room = session.statistics()["limit_bytes"] - session.statistics()["used_bytes"]
    exact = torch.empty(room, dtype=torch.uint8, device=device)
    session.synchronize()
    del exact
    kept = torch.ones(4, device=device)
    with pytest.raises(remote.RemoteOutOfMemoryError, match=r"test_eager\.py") as caught:
        torch.empty(room, dtype=torch.uint8, device=device)  # and not where somebody waits next
    assert isinstance(caught.value, torch.OutOfMemoryError)
    assert caught.value.asked_bytes == room
    assert caught.value.operator == "aten::empty_strided"
    assert kept.tolist() == [1.0] * 4
    assert session.statistics()["used_bytes"] == 16


def test_an_error_names_its_line(device: torch.device) -> None:
    table = torch.zeros(3, 2, device=device)
    rows = torch.tensor([7], device=device)
    table.index_select(0, rows)  # the line that fails
    with pytest.raises(errors.RemoteOperatorError, match=r"index_select.*\n.*test_eager\.py") as caught:
        torch.ones(1, device=device).item()
    line = int(caught.value.site.split("line ")[1].split(",")[0])
    assert "the line that fails" in Path(__file__).read_text().splitlines()[line - 1]
    assert torch.ones(1, device=device).item() == 1


def test_wrong_shapes_fail_where_they_are_called(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="reduction dim"):
        torch.ones(2, 3, device=device) @ torch.ones(2, 3, device=device)


def test_writing_where_elements_coincide_is_refused(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.ones(1, device=device).expand(4).add_(1)


@pytest.mark.parametrize(
    "program",
    [
        torch.linalg.svd,
        torch.linalg.qr,
        lambda x: x.cumsum(1).sort(descending=True),
        lambda x: x.view(torch.int32),
        lambda x: torch.view_as_complex(x.view(6, 2, 2)),
        lambda x: torch.fft.fft(x).conj(),
        lambda x: x.softmax(-1).topk(2),
        lambda x: functional.conv2d(x.view(1, 1, 6, 4), torch.ones_like(x).view(1, 1, 6, 4)[..., :3, :3]),
        lambda x: functional.interpolate(x.view(1, 1, 6, 4), scale_factor=2.0, mode="bilinear"),
        lambda x: torch.einsum("ij,kj->ik", x, x),
        lambda x: x.clone().t_(),
        lambda x: torch.where(x > 0, x, -1),
        lambda x: torch.stack(x.unbind(0)[::2]),
        lambda x: x.to(memory_format=torch.contiguous_format).to(torch.float16).float(),
    ],
)
def test_operators_agree_with_the_cpu(device: torch.device, program: Callable[[torch.Tensor], object]) -> None:
    here = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    expected, got = program(here), program(here.to(device))
    for one, other in zip(
        expected if isinstance(expected, tuple) else (expected,), got if isinstance(got, tuple) else (got,), strict=True
    ):
        assert same(one.resolve_conj(), other)


def test_batch_norm_of_a_model_that_is_evaluated(device: torch.device) -> None:
    torch.manual_seed(0)
    here = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)).eval()
    there = copy.deepcopy(here).to(device)
    x = torch.randn(2, 1, 6, 6)
    for context in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with context():
            assert same(here(x).detach(), there(x.to(device)))


TWO = """
import sys, torch
import aliquot.remote.torch as remote
from tests.remote.channels import ProcessChannel
one, other = (remote.attach(ProcessChannel(sys.argv[1], 1 << 20)) for _ in range(2))
x = torch.ones(2, device=other, requires_grad=True)
(x * 3).to(one).sum().backward()
print(x.grad.tolist())
"""


def test_gradients_go_through_a_second_device(server: ServerProcess) -> None:
    done = subprocess.run([sys.executable, "-c", TWO, server.path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[3.0, 3.0]\n"), done.stderr
