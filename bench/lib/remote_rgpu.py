"""The programs of `bench/remote.py` on the published `rgpu`, by an interpreter that has it. Prints one line of JSON."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from bench.lib.remote_programs import OPERATORS, mlp, operator_us, transformer


def milliseconds(step: Callable[[], torch.Tensor], rounds: int, count: int) -> float:
    """Median time of a step; each round ends with its loss."""
    taken = []
    for number in range(rounds + 2):
        start = time.perf_counter()
        for _ in range(count - 1):
            step()
        loss = step()
        loss.item()
        if number >= 2:
            taken.append((time.perf_counter() - start) / count)
    return statistics.median(taken) * 1e3


def main() -> None:
    """Measure on the device named by the first argument."""
    import rgpu  # type: ignore[import-not-found]  # noqa: F401, PLC0415 - makes the device

    torch.set_num_threads(1)
    device = sys.argv[1]
    print(
        json.dumps(
            {
                "operators_us": [operator_us(name, device) for name in OPERATORS],
                "mlp_ms": milliseconds(mlp(device)[0], 5, 5),
                "transformer_ms": milliseconds(transformer(device)[0], 5, 1),
            }
        )
    )


if __name__ == "__main__":
    main()
