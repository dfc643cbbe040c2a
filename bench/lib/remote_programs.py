"""Programs that `bench/remote.py` runs, here and on a remote device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

OPERATORS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "mul": torch.mul,
    "relu": lambda x, _: torch.relu(x),
    "mm": torch.mm,
    "softmax": lambda x, _: torch.softmax(x, 1),
}


def operator_us(name: str, device: torch.device | str, rounds: int = 7, count: int = 200) -> float:
    """Median time of one operator on small tensors, until the last one's result is here."""
    operator = OPERATORS[name]
    x, y = torch.rand(8, 8).to(device), torch.rand(8, 8).to(device)
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        z = x
        for _ in range(count):
            z = operator(x, y)
        z.sum().item()
        taken.append((time.perf_counter() - start) / count)
    return statistics.median(taken) * 1e6


class Block(nn.Module):
    """A transformer's layer: attention and two linear layers, normed before."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention and the layers behind it."""
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        widened: torch.Tensor = self.down(functional.gelu(self.up(self.norm2(x))))
        return x + widened


class Transformer(nn.Module):
    """4 layers of width 256 over a vocabulary of 256."""

    def __init__(self, width: int = 256, layers: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of each next token."""
        scores: torch.Tensor = self.head(self.norm(self.blocks(self.embedding(tokens))))
        return scores


def transformer(
    device: torch.device | str, *, capturable: bool = False
) -> tuple[Callable[[], torch.Tensor], nn.Module]:
    """A training step of the transformer at batch 4, length 64, and its model."""
    torch.manual_seed(0)
    model = Transformer().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True, capturable=capturable)
    tokens = torch.randint(0, 256, (4, 64)).to(device)
    targets = torch.randint(0, 256, (4, 64)).to(device)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, model


def mlp(device: torch.device | str, *, capturable: bool = False) -> tuple[Callable[[], torch.Tensor], nn.Module]:
    """A training step of three linear layers at batch 64, and its model."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True, capturable=capturable)
    inputs = torch.randn(64, 784).to(device)
    targets = torch.randint(0, 10, (64,)).to(device)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, model
