"""A small training program that uses the lease that it was started for, to see that all of it works.

    aliquot run --remote --gpu "0.25(A100),4Gi" --preemptible -- python -m aliquot.remote.trial

It fits a line through points that it makes up, until it is told that its lease will be taken back; then it saves what
it has learnt and ends. Where PyTorch is installed it trains by PyTorch's operators; else (`--engine cuda`) by two
kernels of its own. What it does is said on standard output, a line of JSON for each step.
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

from aliquot import remote
from aliquot.common.errors import AliquotError
from aliquot.remote import cuda
from aliquot.remote.session import Session

KERNELS = Path(__file__).with_suffix(".ptx")
POINTS = 256
_SLOPE, _OFFSET = 2.0, -1.0
_PAUSE_S = 0.02
"""Between steps: this is to be watched, not to be fast."""

Step = Callable[[], float]
"""One step of training; its loss."""
Learnt = Callable[[], Sequence[float]]


def by_operators(session: Session) -> tuple[Step, Learnt]:
    """By PyTorch's operators."""
    import torch  # noqa: PLC0415 - where it is installed

    import aliquot.remote.torch as remote_torch  # noqa: PLC0415

    torch.manual_seed(0)
    device = remote_torch.attach(session.open(engine="torch"))
    model = torch.nn.Linear(1, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.rand(POINTS, 1)
    wanted = (inputs * _SLOPE + _OFFSET).to(device)
    inputs = inputs.to(device)

    def step() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, lambda: [float(each) for each in (model.weight.cpu(), model.bias.cpu())]


def by_kernels(session: Session) -> tuple[Step, Learnt]:
    """By kernels of our own, in the raw lane."""
    device = cuda.open_device(session)
    module = device.load(KERNELS.read_text())
    saxpy = module.function("saxpy", ["pointer", "pointer", "f32", "u32"])
    dot = module.function("dot", ["pointer", "pointer", "pointer", "u32"])
    chance = random.Random(0)  # noqa: S311 - points, no secrets
    points = [chance.random() for _ in range(POINTS)]
    size = 4 * POINTS
    inputs, ones, wanted, error = (device.allocate(size) for _ in range(4))
    sums = device.allocate(3 * 4)
    inputs.write(struct.pack(f"<{POINTS}f", *points))
    ones.write(struct.pack(f"<{POINTS}f", *[1.0] * POINTS))
    wanted.write(struct.pack(f"<{POINTS}f", *[point * _SLOPE + _OFFSET for point in points]))
    learnt = [0.0, 0.0]

    def step() -> float:
        error.fill(0)
        for vector, factor in ((inputs, learnt[0]), (ones, learnt[1]), (wanted, -1.0)):
            saxpy.launch((POINTS + 127) // 128, 128, [error, vector, factor, POINTS])
        for place, vector in enumerate((error, inputs, ones)):
            dot.launch(1, 1, [sums + 4 * place, error, vector, POINTS])
        square, along, across = struct.unpack("<3f", sums.read())
        learnt[0] -= 0.1 * 2 * along / POINTS
        learnt[1] -= 0.1 * 2 * across / POINTS
        return float(square / POINTS)

    return step, lambda: list(learnt)


def main(arguments: list[str] | None = None) -> int:
    """0: told to make way and saved, or `--steps` were done. 1: it could not begin or go on."""
    parser = argparse.ArgumentParser(prog="python -m aliquot.remote.trial", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--engine", choices=("torch", "cuda"), help="default: torch where PyTorch is installed")
    parser.add_argument("--steps", type=int, default=0, help="end after so many (default: until told)")
    parser.add_argument("--save", type=Path, help="where to save what was learnt")
    options = parser.parse_args(arguments)
    engine = options.engine or ("torch" if find_spec("torch") is not None else "cuda")
    told = threading.Event()

    def notice(of: remote.Notice) -> None:
        _say(notice=of.reason, grace_s=round(of.grace_s, 1), detail=of.detail)
        told.set()

    try:
        with remote.connect(on_notice=notice) as session:
            part = session.parts[0]
            _say(engine=engine, lease=session.lease_id, model=part.device_model, share_milli=part.share_milli)
            step, learnt = (by_operators if engine == "torch" else by_kernels)(session)
            done = 0
            while not told.is_set() and not 0 < options.steps <= done:
                loss = step()
                done += 1
                _say(step=done, loss=round(loss, 6))
                time.sleep(_PAUSE_S)
            found = [round(each, 4) for each in learnt()]
            if options.save is not None:
                options.save.write_text(json.dumps({"steps": done, "learnt": found}), encoding="utf-8")
            _say(saved=done, learnt=found)
    except AliquotError as error:
        sys.stderr.write(f"trial: {error.explain()}\n")
        return 1
    return 0


def _say(**what: object) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
