#!/usr/bin/env python3
"""A script like any other: it says `cuda`, and knows nothing of aliquot.

On a machine without a GPU, logged in to a pool whose nodes serve leases (docs/remote-scripts.md):

    aliquot run --remote --gpu "0.25(A100),10Gi" -- python examples/remote_training.py
"""

from __future__ import annotations

import sys

import torch
from torch import nn


def main() -> None:
    """Learn which of two rings a point lies on."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    rings = torch.randint(0, 2, (512,))
    angles = torch.rand(512) * 2 * torch.pi
    points = torch.stack((angles.cos(), angles.sin()), dim=1) * (1 + rings[:, None]) + 0.1 * torch.randn(512, 2)
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    points, rings = points.to(device), rings.to(device)
    for step in range(100):
        loss = nn.functional.cross_entropy(model(points), rings)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 24:  # each look at a number waits for the device, so there are few
            right = (model(points).argmax(1) == rings).float().mean().item()
            sys.stdout.write(f"step {step + 1}: loss {loss.item():.3f}, {right:.0%} right, on {points.device}\n")


if __name__ == "__main__":
    main()
