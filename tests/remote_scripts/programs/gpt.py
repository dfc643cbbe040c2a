"""A small GPT: causal attention, weight tying, AdamW in groups, clipping, accumulation of gradients, sampling."""

import math

import torch
from torch import nn
from torch.nn import functional

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(1337)
WIDTH, HEADS, LAYERS, CONTEXT, VOCABULARY = 32, 4, 2, 16, 40


class Layer(nn.Module):
    """Attention and a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, HEADS, width // HEADS).transpose(1, 2)
            for part in self.mix(self.first(x)).split(width, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).contiguous().view(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Model(nn.Module):
    """The whole."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.tokens.weight = self.head.weight

    def forward(
        self, ids: torch.Tensor, targets: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits[:, [-1], :], None
        return logits, functional.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1), ignore_index=-1)


text = torch.randint(0, VOCABULARY, (400,))
model = Model()
model.to(device)
decayed = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
optimizer = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=1e-2, betas=(0.9, 0.95)
)


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Pieces of the text, sent up ahead of need."""
    starts = torch.randint(len(text) - CONTEXT - 1, (8,))
    x = torch.stack([text[start : start + CONTEXT] for start in starts])
    y = torch.stack([text[start + 1 : start + 1 + CONTEXT] for start in starts])
    if device == "cuda":
        return x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
    return x, y


for step in range(12):
    for group in optimizer.param_groups:
        group["lr"] = 1e-2 * 0.5 * (1 + math.cos(math.pi * step / 12))
    for _ in range(2):
        _, loss = model(*batch())
        (loss / 2).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if step % 4 == 3:
        print(step, loss.item(), norm.item())
model.eval()
with torch.inference_mode():
    ids = torch.zeros((1, 1), dtype=torch.long, device=device)
    for _ in range(8):
        logits, _ = model(ids[:, -CONTEXT:])
        best = torch.topk(functional.softmax(logits[:, -1] / 0.8, dim=-1), 5)
        ids = torch.cat((ids, best.indices[:, :1]), dim=1)
print(ids[0].tolist())
