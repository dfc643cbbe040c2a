"""Four leases that train on one device at once: what each gets, beside what one alone gets.

    python bench/remote_leases.py --json

Each lease is a serving process and a program of its own. One core stands for the device: the serving processes keep to
it, the programs to the others, so that one alone can use all of the device and four must share it. Turns of one alone
and of all at once follow each other; medians are compared. `shares` is what each gets at once, divided by a quarter
of what one gets alone; the bar is 0.9 to 1.1 for each. `sum_ratio` is what all get, divided by what one gets alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.lib.remote_server import ServerProcess, channel

LEASES = 4


class Program:
    """A program that trains when it is told to: `SECONDS` goes in, steps a second come out."""

    def __init__(self, endpoint: str, cores: str) -> None:
        command = [sys.executable, __file__, "--train", endpoint, "--cores", cores]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.read()

    def begin(self, seconds: float) -> None:
        """Train for so long."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{seconds}\n")

    def read(self) -> float:
        """What it says."""
        assert self.process.stdout is not None
        return float(self.process.stdout.readline())

    def close(self) -> None:
        """End it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(30)
        self.process.stdout.close()


def train(endpoint: str, cores: str) -> None:
    """The program."""
    import torch  # noqa: PLC0415 - the process that measures does without

    import aliquot.remote.torch as remote  # noqa: PLC0415
    from bench.lib.remote_programs import transformer  # noqa: PLC0415

    os.sched_setaffinity(0, {int(each) for each in cores.split(",")})
    torch.set_num_threads(1)
    device = remote.attach(channel(endpoint, "torch"))
    step, _ = transformer(device, capturable=True)
    captured = remote.capture(step)
    for _ in range(5):
        captured().item()
    print(0, flush=True)
    for line in sys.stdin:
        started, steps = time.monotonic(), 0
        while (taken := time.monotonic() - started) < float(line):
            captured().item()
            steps += 1
        print(steps / taken, flush=True)
    remote.detach(device)


def measure(rounds: int, seconds: float) -> dict[str, object]:
    """Turns of one alone and of all at once."""
    cores = sorted(os.sched_getaffinity(0))
    device, others = cores[0], ",".join(map(str, cores[1:] or cores))
    servers = [ServerProcess(core=device) for _ in range(LEASES)]
    programs = [Program(server.endpoint, others) for server in servers]
    alone: list[float] = []
    together: list[list[float]] = [[] for _ in programs]
    try:
        for turn in range(rounds):
            one = programs[turn % LEASES]
            one.begin(seconds)
            alone.append(one.read())
            for program in programs:
                program.begin(seconds)
            for index, program in enumerate(programs):
                together[index].append(program.read())
    finally:
        for program in programs:
            program.close()
        for server in servers:
            server.close()
    one_alone = statistics.median(alone)
    each_got = [statistics.median(rates) for rates in together]
    shares = [round(got / (one_alone / LEASES), 3) for got in each_got]
    return {
        "alone_steps_s": round(one_alone, 2),
        "together_steps_s": [round(got, 2) for got in each_got],
        "shares": shares,
        "share_min": min(shares),
        "share_max": max(shares),
        "sum_ratio": round(sum(each_got) / one_alone, 3),
        "even": round(min(each_got) / max(each_got), 3),
        "load_average": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each turn")
    parser.add_argument("--train", metavar="ENDPOINT", help=argparse.SUPPRESS)
    parser.add_argument("--cores", default="0", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.train, arguments.cores)
        return
    fields = measure(arguments.rounds, arguments.seconds)
    print(json.dumps(fields, indent=None if arguments.json else 2))


if __name__ == "__main__":
    main()
