"""A training job in miniature: holds device memory, keeps the device busy, ends.

    python -m aliquot.simgpu.burn --bytes 4Gi --seconds 10
    python -m aliquot.simgpu.burn --bytes 4Gi --grow 1Gi --step-seconds 0.5 --percent 60

It says on standard output what it holds, one line for each step. Exit codes: 0 done, 3 the driver refused memory
(with what it held until then), 4 no usable device, 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from aliquot.common.cuda import OUT_OF_MEMORY, DriverError, DriverMissing
from aliquot.common.errors import AliquotError
from aliquot.common.quantity import human_bytes, parse_bytes
from aliquot.simgpu.cuda import SPIN_KERNEL, Cuda

EXIT_OUT_OF_MEMORY = 3
EXIT_NO_DEVICE = 4
_KERNEL_NS = 1_000_000
_PERIOD_S = 0.1


def main(arguments: list[str] | None = None) -> int:
    """Runs the job; its exit code."""
    options = _parse(arguments)
    try:
        _run(Cuda(options.device), options)
    except DriverError as error:
        _say(str(error))
        return EXIT_OUT_OF_MEMORY if error.code == OUT_OF_MEMORY else EXIT_NO_DEVICE
    except DriverMissing as error:
        sys.stderr.write(f"burn: {error.explain()}\n")
        return EXIT_NO_DEVICE
    _say("done")
    return 0


def _run(cuda: Cuda, options: argparse.Namespace) -> None:
    now = next_step = time.monotonic()
    deadline = now + options.seconds
    held_bytes, wanted_bytes = 0, options.bytes
    spin = cuda.load_kernel(SPIN_KERNEL, "spin") if options.percent else None
    while True:
        if now >= next_step and held_bytes < wanted_bytes:
            _grow(cuda, held_bytes, wanted_bytes)
            held_bytes, wanted_bytes = wanted_bytes, wanted_bytes + options.grow
            next_step = now + options.step_seconds
        if now >= deadline:
            return
        period_s = min(_PERIOD_S, deadline - now)
        if spin is not None:
            for _ in range(int(period_s * options.percent / 100 * 1e9 / _KERNEL_NS)):
                cuda.launch(spin, _KERNEL_NS)
            cuda.synchronize()
        time.sleep(max(0.0, now + period_s - time.monotonic()))
        now = time.monotonic()


def _grow(cuda: Cuda, held_bytes: int, wanted_bytes: int) -> None:
    more_bytes = wanted_bytes - held_bytes
    try:
        cuda.allocate(more_bytes)
    except DriverError:
        _say(f"refused {human_bytes(more_bytes)} while holding {human_bytes(held_bytes)}")
        raise
    _say(f"holds {human_bytes(wanted_bytes)} ({wanted_bytes} bytes)")


def _say(text: str) -> None:
    sys.stdout.write(f"burn[{os.getpid()}] {text}\n")
    sys.stdout.flush()


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m aliquot.simgpu.burn", description="Hold device memory and keep the device busy."
    )
    parser.add_argument("--bytes", type=_bytes, required=True, help="memory to hold beside the context, as 4Gi")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to run (default %(default)s)")
    parser.add_argument("--device", type=int, default=0, help="CUDA's ordinal of the device (default %(default)s)")
    parser.add_argument("--grow", type=_bytes, default=0, metavar="BYTES", help="memory to add with every step")
    parser.add_argument("--step-seconds", type=float, default=1.0, help="time between steps (default %(default)s)")
    parser.add_argument("--percent", type=int, default=0, help="how busy to keep the device")
    return parser.parse_args(arguments)


def _bytes(text: str) -> int:
    try:
        return parse_bytes(text)
    except AliquotError as error:
        raise argparse.ArgumentTypeError(error.explain()) from error


if __name__ == "__main__":
    sys.exit(main())
