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
from collections.abc import Callable

from aliquot.common.cuda import OUT_OF_MEMORY, DriverError, DriverMissing
from aliquot.common.errors import AliquotError
from aliquot.common.pieces import Refused
from aliquot.common.quantity import human_bytes, parse_bytes
from aliquot.simgpu.cuda import SPIN_KERNEL, Cuda

EXIT_OUT_OF_MEMORY = 3
EXIT_NO_DEVICE = 4
_KERNEL_NS = 1_000_000
_PERIOD_S = 0.1


def main(arguments: list[str] | None = None) -> int:
    """Runs the job; its exit code."""
    options = parser("python -m aliquot.simgpu.burn").parse_args(arguments)
    try:
        cuda = Cuda(options.device)
        spin = cuda.load_kernel(SPIN_KERNEL, "spin") if options.percent else None

        def work(seconds: float) -> None:
            if spin is not None:
                for _ in range(int(seconds * options.percent / 100 * 1e9 / _KERNEL_NS)):
                    cuda.launch(spin, _KERNEL_NS)
                cuda.synchronize()

        def take(more_bytes: int) -> None:
            try:
                cuda.allocate(more_bytes)
            except DriverError as error:
                if error.code != OUT_OF_MEMORY:
                    raise
                raise Refused(error.code) from error

        return run(options, take, work)
    except DriverError as error:
        say(str(error))
        if error.code == OUT_OF_MEMORY:  # of the context
            return EXIT_OUT_OF_MEMORY
    except DriverMissing as error:
        sys.stderr.write(f"burn: {error.explain()}\n")
    return EXIT_NO_DEVICE


def run(
    options: argparse.Namespace, take: Callable[[int], None], work: Callable[[float], None] = lambda seconds: None
) -> int:
    """Runs the job on any kind of card; its exit code. `take` takes so many bytes more, or raises `Refused`; `work`
    keeps the card busy for a part of these seconds.
    """
    now = next_step = time.monotonic()
    deadline = now + options.seconds
    held_bytes, wanted_bytes = 0, options.bytes
    while True:
        if now >= next_step and held_bytes < wanted_bytes:
            more_bytes = wanted_bytes - held_bytes
            try:
                take(more_bytes)
            except Refused as error:
                say(f"refused {human_bytes(more_bytes)} while holding {human_bytes(held_bytes)}: {error}")
                return EXIT_OUT_OF_MEMORY
            say(f"holds {human_bytes(wanted_bytes)} ({wanted_bytes} bytes)")
            held_bytes, wanted_bytes = wanted_bytes, wanted_bytes + options.grow
            next_step = now + options.step_seconds
        if now >= deadline:
            say("done")
            return 0
        period_s = min(_PERIOD_S, deadline - now)
        work(period_s)
        time.sleep(max(0.0, now + period_s - time.monotonic()))
        now = time.monotonic()


def say(text: str) -> None:
    """A line for whoever follows the job."""
    sys.stdout.write(f"burn[{os.getpid()}] {text}\n")
    sys.stdout.flush()


def parser(program: str) -> argparse.ArgumentParser:
    """What a job can be told."""
    made = argparse.ArgumentParser(prog=program, description="Hold device memory and keep the device busy.")
    made.add_argument("--bytes", type=bytes_of, required=True, help="memory to hold beside the context, as 4Gi")
    made.add_argument("--seconds", type=float, default=10.0, help="how long to run (default %(default)s)")
    made.add_argument("--device", type=int, default=0, help="CUDA's ordinal of the device (default %(default)s)")
    made.add_argument("--grow", type=bytes_of, default=0, metavar="BYTES", help="memory to add with every step")
    made.add_argument("--step-seconds", type=float, default=1.0, help="time between steps (default %(default)s)")
    made.add_argument("--percent", type=int, default=0, help="how busy to keep the device")
    return made


def bytes_of(text: str) -> int:
    """An amount on a command line."""
    try:
        return parse_bytes(text)
    except AliquotError as error:
        raise argparse.ArgumentTypeError(error.explain()) from error


if __name__ == "__main__":
    sys.exit(main())
