"""Layers of torch.nn, with their parameters' gradients."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.remote.probes.probing import close, module_agrees, probe

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
