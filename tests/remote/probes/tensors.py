"""Tensors: arithmetic, views, indexing, random numbers, types."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

import aliquot.remote.torch as remote
from tests.remote.probes.probing import agree, close, probe

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
