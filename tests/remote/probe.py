"""What PyTorch's users do, each as a small program that says by itself whether it worked.

    python -m tests.remote.probe                              # a line for each
    python -m tests.remote.probe --write docs/remote-features.md

Where a CPU gives a result to compare with, it is compared with that.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

import aliquot.remote.torch as remote
from tests.remote.channels import ServerProcess

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


# ---------------------------------------------------------------------------------------------------------- tensors

agree(
    "arithmetic, comparison, broadcasting",
    "tensors",
    lambda x, y: torch.where(x > y, x * 2 + y, x / (y * y + 1)),
    (4, 3),
    (3,),
)
agree(
    "views: slices, transposes, unfold, diagonal",
    "tensors",
    lambda x: x.t()[1:].unfold(1, 2, 1).diagonal(dim1=0, dim2=1),
    (4, 5),
)
agree("reductions and norms", "tensors", lambda x: x.var(1) + x.norm(dim=1) + x.amax(1) + x.logsumexp(1), (4, 5))
agree(
    "sort, topk, cumulative sums",
    "tensors",
    lambda x: x.sort(1)[0].cumsum(1) + x.topk(4, 1)[0].sum(1, keepdim=True),
    (3, 6),
)
agree(
    "gather, scatter, index_select",
    "tensors",
    lambda x: x.gather(1, x.argsort(1)).scatter_add(1, x.argmax(1, keepdim=True), x[:, :1]),
    (3, 4),
)
agree(
    "einsum, matmul, bmm, outer", "tensors", lambda x, y: torch.einsum("bij,bjk->bik", x, y) @ x, (2, 3, 4), (2, 4, 3)
)
agree(
    "cat, stack, split, chunk, pad, roll, flip",
    "tensors",
    lambda x: torch.cat([functional.pad(p, (1, 1)) for p in x.roll(1, 0).flip(1).chunk(2)]),
    (4, 3),
)
agree(
    "linear algebra: solve, cholesky, svd",
    "tensors",
    lambda x: torch.linalg.cholesky(x @ x.t() + 4 * torch.eye(4, device=x.device)) + torch.linalg.svd(x)[1].sum(),
    (4, 4),
    tolerance=1e-3,
)


@probe("tensors", "eigenvalues of a symmetric matrix, inverse, determinant")
def _(device: torch.device) -> None:
    x = torch.randn(4, 4, dtype=torch.float64)
    x = x @ x.t() + torch.eye(4)
    there = x.to(device)
    close(torch.linalg.eigvalsh(x), torch.linalg.eigvalsh(there))
    close(torch.linalg.inv(x), torch.linalg.inv(there))
    close(torch.linalg.det(x), torch.linalg.det(there))


@probe("tensors", "boolean masks, nonzero, unique")
def _(device: torch.device) -> None:
    x = torch.tensor([3.0, 1.0, 3.0, 0.0])
    there = x.to(device)
    close(x[x > 0].unique(), there[there > 0].unique())
    there[there == 3] = -1
    assert there.tolist() == [-1, 1, -1, 0]


@probe("tensors", "in-place operators, also through views")
def _(device: torch.device) -> None:
    x = torch.zeros(3, 4, device=device)
    x[1:, ::2].add_(1).mul_(3)
    x.t().fill_diagonal_(9)
    here = torch.zeros(3, 4)
    here[1:, ::2].add_(1).mul_(3)
    here.t().fill_diagonal_(9)
    close(here, x)


@probe("tensors", "changing a tensor's own shape in place (t_, unsqueeze_)")
def _(device: torch.device) -> None:
    x = torch.arange(6.0, device=device).view(2, 3)
    x.t_()
    x.unsqueeze_(0)
    assert tuple(x.shape) == (1, 3, 2)
    assert x.tolist() == torch.arange(6.0).view(2, 3).t().unsqueeze(0).tolist()


@probe("tensors", "resize_")
def _(device: torch.device) -> None:
    x = torch.arange(4.0, device=device)
    x.resize_(6)
    assert x[:4].tolist() == [0, 1, 2, 3]
    assert x.numel() == 6


@probe("tensors", "complex numbers and FFT")
def _(device: torch.device) -> None:
    x = torch.randn(8)
    there = x.to(device)
    close(torch.fft.fft(x).conj() * 2j, torch.fft.fft(there).conj() * 2j)
    close(torch.view_as_real(torch.fft.rfft(x)), torch.view_as_real(torch.fft.rfft(there)))
    close(torch.fft.fft(x).abs(), torch.fft.fft(there).abs())
    close(torch.fft.fft(x).imag, torch.fft.fft(there).imag)


@probe("tensors", "types: float16, bfloat16, float8, integers, bool")
def _(device: torch.device) -> None:
    x = torch.randn(4, 4)
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int8, torch.bool):
        close(x.to(dtype), x.to(device).to(dtype))
    down = x.to(device).to(torch.float8_e4m3fn)
    close(x.to(torch.float8_e4m3fn).float(), down.float())


@probe("tensors", "factories: arange, linspace, eye, tril_indices, full_like, tensor")
def _(device: torch.device) -> None:
    close(torch.arange(2, 9, 3), torch.arange(2, 9, 3, device=device))
    close(torch.linspace(0, 1, 5), torch.linspace(0, 1, 5, device=device))
    close(torch.eye(3), torch.eye(3, device=device))
    close(torch.tril_indices(3, 3), torch.tril_indices(3, 3, device=device))
    close(torch.full_like(torch.ones(2), 7), torch.full_like(torch.ones(2, device=device), 7))
    close(torch.tensor([[1, 2]]), torch.tensor([[1, 2]], device=device))
    close(torch.ones(3).new_zeros(2), torch.ones(3, device=device).new_zeros(2))
    with torch.device(device):
        assert torch.zeros(2).device == device


@probe("tensors", "random numbers from one seed as on the CPU")
def _(device: torch.device) -> None:
    def draw(where: Any) -> list[torch.Tensor]:
        torch.manual_seed(11)
        return [
            torch.randn(5, device=where),
            torch.rand(5, device=where),
            torch.randint(0, 9, (5,), device=where),
            torch.randperm(6, device=where),
            torch.bernoulli(torch.full((5,), 0.4, device=where)),
            torch.multinomial(torch.ones(4, device=where), 3),
        ]

    if remote.session_of(device).welcome.device == "cpu":
        close(draw("cpu"), draw(device))
    close([value.cpu() for value in draw(device)], draw(device))


@probe("tensors", "state of the random generator, saved and restored")
def _(device: torch.device) -> None:
    module = torch.get_device_module("aliquot")
    state = module.get_rng_state()
    first = torch.rand(3, device=device).tolist()
    module.set_rng_state(state)
    assert torch.rand(3, device=device).tolist() == first


@probe("tensors", "an explicit generator")
def _(device: torch.device) -> None:
    generator = torch.Generator(device=device).manual_seed(3)
    torch.rand(3, device=device, generator=generator)


@probe("tensors", "item, tolist, bool, len, iteration, formatting")
def _(device: torch.device) -> None:
    x = torch.arange(3, device=device)
    assert x[2].item() == 2
    assert bool(x[1])
    assert len(x) == 3
    assert [int(value) for value in x] == [0, 1, 2]
    assert f"{x.float().mean():.2f}" == "1.00"
    assert int(x[2]) in range(3)


@probe("tensors", "printing")
def _(device: torch.device) -> None:
    text = repr(torch.arange(3.0, device=device))
    assert "2." in text
    assert "aliquot:0" in text or f"{device}" in text
    str(nn.Parameter(torch.ones(2, device=device)))


@probe("tensors", "NumPy through .cpu()")
def _(device: torch.device) -> None:
    assert torch.ones(2, device=device).cpu().numpy().sum() == 2


@probe("tensors", ".to() with types, copies and non_blocking")
def _(device: torch.device) -> None:
    x = torch.randn(3, 4)
    there = x.to(device, non_blocking=True)
    assert there.to(device) is there
    close(x.half(), there.to("cpu", torch.float16))
    close(x, there.to(device, copy=True))
    buffer = torch.empty(3, 4)
    buffer.copy_(there, non_blocking=True)
    close(x, buffer)
    close(x.to(memory_format=torch.contiguous_format), there.cpu())


@probe("tensors", "channels_last")
def _(device: torch.device) -> None:
    x = torch.randn(2, 3, 4, 4)
    there = x.to(device, memory_format=torch.channels_last)
    assert there.is_contiguous(memory_format=torch.channels_last)
    close(functional.max_pool2d(x, 2), functional.max_pool2d(there, 2))


# ---------------------------------------------------------------------------------------------------------- modules

module_agrees(
    "linear layers, activations, layer norm",
    lambda: nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.LayerNorm(8), nn.SiLU(), nn.Linear(8, 2)),
    (4, 5),
)
module_agrees(
    "convolutions, batch norm, pooling",
    lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 4, 3, groups=2),
        nn.AdaptiveAvgPool2d(1),
    ),
    (2, 3, 8, 8),
)
module_agrees(
    "transposed convolutions, group norm, upsampling",
    lambda: nn.Sequential(
        nn.ConvTranspose2d(3, 6, 2, stride=2), nn.GroupNorm(2, 6), nn.Upsample(scale_factor=2, mode="bilinear")
    ),
    (2, 3, 4, 4),
)
module_agrees(
    "one- and three-dimensional convolutions",
    lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.Unflatten(1, (4, 1, 1)), nn.Conv3d(4, 2, (1, 1, 3))),
    (2, 3, 9),
)
module_agrees("LSTM", lambda: nn.LSTM(4, 6, num_layers=2, batch_first=True), (3, 5, 4))
module_agrees("GRU and RNN, bidirectional", lambda: nn.GRU(4, 6, bidirectional=True), (5, 3, 4))
module_agrees(
    "multi-head attention", lambda: nn.MultiheadAttention(8, 2, batch_first=True), (2, 5, 8), (2, 5, 8), (2, 5, 8)
)
module_agrees(
    "transformer encoder",
    lambda: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False
    ),
    (2, 5, 8),
)


@probe("modules", "transformer encoder for inference, with its fast path")
def _(device: torch.device) -> None:
    torch.manual_seed(0)
    here = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    there = copy.deepcopy(here).to(device)
    x = torch.randn(2, 5, 8)
    with torch.inference_mode():
        close(here(x), there(x.to(device)), 1e-4)


@probe("modules", "embeddings and embedding bags")
def _(device: torch.device) -> None:
    torch.manual_seed(0)
    for here in (nn.Embedding(9, 4, padding_idx=0), nn.EmbeddingBag(9, 4, mode="mean")):
        there = copy.deepcopy(here).to(device)
        tokens = torch.randint(0, 9, (3, 5))
        one, other = here(tokens), there(tokens.to(device))
        close(one, other)
        one.sum().backward()
        other.sum().backward()
        close(here.weight.grad, there.weight.grad)


@probe("modules", "scaled dot product attention with masks")
def _(device: torch.device) -> None:
    q, k, v = (torch.randn(2, 2, 5, 8) for _ in range(3))
    mask = torch.rand(5, 5) > 0.3
    mask.fill_diagonal_(True)
    choices: tuple[dict[str, Any], ...] = ({}, {"is_causal": True}, {"attn_mask": mask}, {"attn_mask": mask.float()})
    for options in choices:
        there: dict[str, Any] = {
            name: value.to(device) if isinstance(value, torch.Tensor) else value for name, value in options.items()
        }
        close(
            functional.scaled_dot_product_attention(q, k, v, **options),
            functional.scaled_dot_product_attention(q.to(device), k.to(device), v.to(device), **there),
        )


@probe("modules", "dropout draws anew each time, and as on the CPU")
def _(device: torch.device) -> None:
    x = torch.ones(64, device=device)
    assert not torch.equal(functional.dropout(x), functional.dropout(x))


@probe("modules", "losses: cross entropy, BCE, MSE, KL, CTC, cosine")
def _(device: torch.device) -> None:
    torch.manual_seed(0)
    scores, targets = torch.randn(6, 5), torch.randint(0, 5, (6,))
    there, wanted = scores.to(device), targets.to(device)
    close(
        functional.cross_entropy(scores, targets, label_smoothing=0.1),
        functional.cross_entropy(there, wanted, label_smoothing=0.1),
    )
    close(
        functional.binary_cross_entropy_with_logits(scores, scores.sigmoid()),
        functional.binary_cross_entropy_with_logits(there, there.sigmoid()),
    )
    close(functional.mse_loss(scores, scores * 2), functional.mse_loss(there, there * 2))
    close(
        functional.kl_div(scores.log_softmax(1), scores.softmax(1)),
        functional.kl_div(there.log_softmax(1), there.softmax(1)),
    )
    close(
        functional.cosine_embedding_loss(scores, scores.flip(0), torch.ones(6)),
        functional.cosine_embedding_loss(there, there.flip(0), torch.ones(6, device=device)),
    )
    log_probs = torch.randn(7, 2, 5).log_softmax(2)
    lengths = (torch.tensor([7, 6]), torch.tensor([3, 2]))
    close(
        functional.ctc_loss(log_probs, torch.ones(2, 3, dtype=torch.long), *lengths),
        functional.ctc_loss(log_probs.to(device), torch.ones(2, 3, dtype=torch.long, device=device), *lengths),
    )


@probe("modules", "hooks on modules and tensors")
def _(device: torch.device) -> None:
    seen: list[Any] = []
    model = nn.Linear(2, 2).to(device)
    model.register_forward_hook(lambda *_: seen.append("forward"))
    model.register_full_backward_hook(lambda *_: seen.append("backward"))
    out = model(torch.ones(1, 2, device=device, requires_grad=True))
    out.register_hook(lambda grad: seen.append(tuple(grad.shape)))
    out.sum().backward()
    assert set(seen) == {"forward", "backward", (1, 2)}


@probe("modules", "weight norm, spectral norm, parametrizations")
def _(device: torch.device) -> None:
    torch.manual_seed(0)
    here = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))
    there = nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)).to(device)
    there.load_state_dict(here.state_dict())
    close(here(torch.ones(2, 3)), there(torch.ones(2, 3, device=device)))
    nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4).to(device))(
        torch.ones(2, 3, device=device)
    ).sum().backward()


# --------------------------------------------------------------------------------------------------------- autograd


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


# --------------------------------------------------------------------------------------------------------- training


def _trains(make: Callable[[Any], torch.optim.Optimizer], tolerance: float = 1e-5) -> Probe:
    def run(device: torch.device) -> None:
        def losses(where: Any) -> torch.Tensor:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(where)
            inputs = torch.randn(16, 4).to(where)
            optimizer = make(model.parameters())

            def closure() -> torch.Tensor:
                optimizer.zero_grad()
                loss: torch.Tensor = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
                loss.backward()
                return loss

            step: Any = optimizer.step
            return torch.tensor([step(closure).item() for _ in range(4)])

        torch.testing.assert_close(losses(device), losses("cpu"), rtol=tolerance, atol=tolerance)

    return run


PROBES.append(
    (
        "training",
        "SGD with momentum and weight decay",
        _trains(lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=0.01)),
    )
)
PROBES.append(("training", "Adam and AdamW", _trains(lambda p: torch.optim.AdamW(p, 0.01, amsgrad=True))))
PROBES.append(("training", "RMSprop, Adagrad", _trains(lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5))))
PROBES.append(("training", "LBFGS", _trains(lambda p: torch.optim.LBFGS(p, 0.1, max_iter=4), 1e-3)))
PROBES.append(("training", "a fused optimizer", _trains(lambda p: torch.optim.AdamW(p, 0.01, fused=True))))


@probe("training", "learning rate schedules")
def _(device: torch.device) -> None:
    model = nn.Linear(2, 2).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    for _ in range(3):
        model(torch.ones(1, 2, device=device)).sum().backward()
        optimizer.step()
        schedule.step()
    assert schedule.get_last_lr()[0] < 1


@probe("training", "autocast casts by policy")
def _(device: torch.device) -> None:
    model = nn.Linear(4, 4).to(device)
    x = torch.randn(2, 4, device=device)
    with torch.autocast("aliquot", dtype=torch.bfloat16):
        y = model(x)
        assert y.dtype == torch.bfloat16
        assert (x @ x.t()).dtype == torch.bfloat16
        assert y.softmax(1).dtype == torch.float32
        loss = functional.mse_loss(y, x)
        assert loss.dtype == torch.float32
    loss.backward()
    assert model.weight.grad is not None
    assert model.weight.grad.dtype == torch.float32


@probe("training", "GradScaler")
def _(device: torch.device) -> None:
    model = nn.Linear(4, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("aliquot", init_scale=8.0)
    before = model.weight.tolist()
    with torch.autocast("aliquot", dtype=torch.float16):
        loss = model(torch.ones(2, 4, device=device)).float().square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert model.weight.tolist() != before


@probe("training", "averaged models (EMA)")
def _(device: torch.device) -> None:
    model = nn.Linear(2, 2).to(device)
    average = torch.optim.swa_utils.AveragedModel(model)
    average.update_parameters(model)
    average.update_parameters(model)
    close(model.weight.cpu(), average.module.weight)


class _Squares(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(float(index * index))


@probe("training", "DataLoader with workers")
def _(device: torch.device) -> None:
    total = 0.0
    for batch in DataLoader(_Squares(), batch_size=4, num_workers=1):
        total += batch.to(device, non_blocking=True).sum().item()
    assert total == sum(index * index for index in range(8))


@probe("training", "DataLoader of a dataset on the device")
def _(device: torch.device) -> None:
    data = TensorDataset(torch.arange(8.0, device=device), torch.arange(8, device=device))
    assert sum(len(x) for x, _ in DataLoader(data, batch_size=3, shuffle=True)) == 8


@probe("training", "save and load a checkpoint, weights only")
def _(device: torch.device) -> None:
    model = nn.Linear(3, 2).to(device)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3, device=device)).sum().backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    other = nn.Linear(3, 2).to(device)
    other.load_state_dict(loaded["model"])
    close(model.weight.cpu(), other.weight)
    again = torch.optim.Adam(other.parameters())
    again.load_state_dict(loaded["optimizer"])
    again.step()


@probe("training", "load with map_location to the device")
def _(device: torch.device) -> None:
    file = io.BytesIO()
    torch.save(torch.arange(3.0), file)
    file.seek(0)
    assert torch.load(file, weights_only=True, map_location=device).device == device


@probe("training", "deepcopy of a model, parameters shared by two layers")
def _(device: torch.device) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model.to(device)
    assert model[0].weight is model[1].weight
    copied = copy.deepcopy(model)
    assert copied[0].weight is copied[1].weight
    assert copied[0].weight is not model[0].weight


@probe("training", "a captured step")
def _(device: torch.device) -> None:
    x = torch.zeros(2, device=device)
    step = remote.capture(lambda: x.add_(1))
    for _ in range(5):
        step()
    assert x.tolist() == [5, 5]


# ------------------------------------------------------------------------------------------------------------ tools


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
    run = remote.graph(model)
    run(x)
    session = remote.session_of(device)
    before = session.counters.operators
    result = run(x)
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


def run(device: torch.device) -> list[tuple[str, str, str]]:
    """Group, name, and what went wrong (empty where nothing did)."""
    results = []
    for group, name, function in PROBES:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                function(device)
            results.append((group, name, ""))
        except Exception as error:  # noqa: BLE001 - that is what is asked
            text = str(error).strip().split("\n")[0]
            results.append((group, name, f"{type(error).__name__}: {text}"[:160]))
            with contextlib.suppress(remote.RemoteError):
                remote.session_of(device).synchronize()
    return results


def table(results: list[tuple[str, str, str]]) -> str:
    passed = sum(not error for _, _, error in results)
    lines = [
        "# What works on a remote device",
        "",
        "Generated by `python -m tests.remote.probe --write docs/remote-features.md`; each row is a small program in",
        f"`tests/remote/probe.py`. **{passed} of {len(results)} work.** What does not is an error that says so,",
        "never a wrong result.",
        "",
        "| | feature | works |",
        "|---|---|---|",
    ]
    last = ""
    for group, name, error in results:
        lines.append(f"| {group if group != last else ''} | {name} | {'yes' if not error else 'no'} |")
        last = group
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="write the table there")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    server = ServerProcess()
    device = remote.attach(server.connect())
    results = run(device)
    remote.detach(device)
    server.close()
    for group, name, error in results:
        sys.stdout.write(f"{'ok  ' if not error else 'FAIL'} {group}: {name}{f'  ({error})' if error else ''}\n")
    sys.stdout.write(f"{sum(not error for _, _, error in results)} of {len(results)}\n")
    if arguments.write is not None:
        arguments.write.write_text(table(results))


if __name__ == "__main__":
    main()
