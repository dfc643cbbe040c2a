"""Gradient checkpointing: both kinds, sequential, with dropout that must be the same again, and memory compared."""

import torch
import torch.nn as nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

device = torch.device("cuda")
torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.GELU(), nn.Dropout(0.2), nn.Linear(4 * d, d))

    def forward(self, x):
        return x + self.net(x)


blocks = nn.ModuleList([Block(32) for _ in range(4)]).to(device)
x = torch.randn(64, 32, device=device, requires_grad=True)


def run(how):
    torch.manual_seed(7)
    torch.cuda.manual_seed_all(7)
    x.grad = None
    blocks.zero_grad()
    torch.cuda.reset_peak_memory_stats()
    h = x
    for block in blocks:
        h = block(h) if how is None else checkpoint(block, h, use_reentrant=how)
    h.square().mean().backward()
    return x.grad.clone(), torch.cuda.max_memory_allocated()


plain, memory_plain = run(None)
for how in (False, True):
    got, memory = run(how)
    torch.testing.assert_close(got, plain)
    print(how, memory < memory_plain)
out = checkpoint_sequential(nn.Sequential(*blocks), 2, x, use_reentrant=False)
out.sum().backward()
with torch.autocast("cuda", dtype=torch.bfloat16):
    checkpoint(blocks[0], x, use_reentrant=False).sum().backward()
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts
from functools import partial


def policy(ctx, op, *args, **kwargs):
    return CheckpointPolicy.MUST_SAVE if op == torch.ops.aten.addmm.default else CheckpointPolicy.PREFER_RECOMPUTE


checkpoint(
    blocks[1], x, use_reentrant=False, context_fn=partial(create_selective_checkpoint_contexts, policy)
).sum().backward()
with torch.autograd.graph.save_on_cpu(pin_memory=True):
    y = blocks[2](x)
y.sum().backward()
print("saved on the CPU", x.grad.isfinite().all().item())
