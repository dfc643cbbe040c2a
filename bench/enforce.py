"""What enforcement costs, and how soon the watchdog acts.

    python bench/enforce.py --json [--rounds 15] [--kills 40]

`preload_added_us_per_alloc` is the time that the preload library adds to an allocation with its free,
`preload_added_us_per_launch` to a kernel launch while nobody has to wait: the same program runs on the simulated driver
with and without the library, alternating; medians of all rounds. `watchdog_p50_ms` and `watchdog_p99_ms` are the time
from when a process holds too much until it has ended, with an agent that polls every `poll_ms`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from aliquot import simgpu  # noqa: E402
from aliquot.agent.enforce.preload import built_library  # noqa: E402
from aliquot.agent.enforce.preload_files import DeviceLimit, LeaseFiles  # noqa: E402
from aliquot.common.tiers import Tier  # noqa: E402
from tests.enforce.world import world  # noqa: E402

PROGRAM = ROOT / "tests/enforce/programs/time_calls.c"
CALLS = 4000
POLL_MS = 1000


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--rounds", type=int, default=15, help="of the timed program, with and without the library")
    parser.add_argument("--kills", type=int, default=12, help="processes that take too much")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="aliquot-bench-") as directory:
        result = added_us(Path(directory), options.rounds) | watchdog_ms(Path(directory), options.kills)
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:30} {value}")
    return 0


def added_us(directory: Path, rounds: int) -> dict[str, float | int]:
    """The preload library against the bare simulated driver."""
    program = directory / "time_calls"
    subprocess.run(["cc", "-O2", "-o", str(program), str(PROGRAM), "-ldl"], check=True)
    with simgpu.create(directory / "gpus", ["A100-40"]) as scenario:
        files = LeaseFiles(directory / "lease", "bench")
        files.create(built_library())
        files.set_limit(scenario.devices()[0].uuid, DeviceLimit(8 << 30, paced=True))
        bare = os.environ | simgpu.environment(scenario.path)
        held = bare | {"LD_PRELOAD": str(files.library)}
        samples: dict[str, list[dict[str, float]]] = {"bare": [], "held": []}
        for _ in range(rounds):
            for name, environment in (("bare", bare), ("held", held)):
                done = subprocess.run(
                    [str(program), str(CALLS)], env=environment, capture_output=True, text=True, check=True
                )
                samples[name].append(json.loads(done.stdout))

    def median(name: str, field: str) -> float:
        return statistics.median(sample[field] for sample in samples[name])

    return {
        "preload_added_us_per_alloc": round((median("held", "alloc_ns") - median("bare", "alloc_ns")) / 1000, 3),
        "preload_added_us_per_launch": round((median("held", "launch_ns") - median("bare", "launch_ns")) / 1000, 3),
        "bare_us_per_alloc": round(median("bare", "alloc_ns") / 1000, 3),
        "bare_us_per_launch": round(median("bare", "launch_ns") / 1000, 3),
        "rounds": rounds,
    }


def watchdog_ms(directory: Path, kills: int) -> dict[str, float | int]:
    """How long processes that hold too much survive."""
    taken: list[float] = []
    with world(directory / "watchdog", Tier.WATCHDOG, POLL_MS) as made:
        for _ in range(kills):
            job = made.probe("--piece", str(6 << 30), "--most", str(6 << 30))
            job.answer()
            begun = time.monotonic()
            job.process.wait(30)
            taken.append((time.monotonic() - begun) * 1000)
            with contextlib.suppress(OSError):
                made.settle()
            made.renew()
    taken.sort()
    return {
        "watchdog_p50_ms": round(statistics.median(taken), 1),
        "watchdog_p99_ms": round(taken[min(len(taken) - 1, int(len(taken) * 0.99))], 1),
        "kills": kills,
        "poll_ms": POLL_MS,
    }


if __name__ == "__main__":
    sys.exit(main())
