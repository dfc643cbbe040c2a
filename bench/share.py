"""What shares of compute are worth beside other tenants, on the model of a card's time (native/common/sharing.c).

    python bench/share.py --json [--tier preload] [--measure 15] [--settle 12] [--off] [--case NAME]

Each case has tenants that want all of the card, all the time, but for `half idle`, where one is idle for half of it.
The model's own count of time decides, over `--measure` seconds after `--settle` seconds.

`worst_error_points` is the largest distance, in hundredths of the card, between what a tenant had and its share, over
all cases where all are busy; `used_pct` the least part of the card's time that was used in any case; `starved` how many
seconds of a tenant's passed in which it had less than a fifth of its share; `overhead_pct` what the library adds to a
tenant alone that launches kernels of 20 µs. `--off`: with the agent's setting `enforcement.throttle` off.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from aliquot import simgpu  # noqa: E402
from aliquot.agent.enforce.preload import UNLIMITED_BYTES, built_library  # noqa: E402
from aliquot.agent.enforce.preload_files import DeviceLimit, LeaseFiles  # noqa: E402
from aliquot.common.tiers import parse_tier  # noqa: E402
from tests.agent.harness import desired  # noqa: E402
from tests.enforce.world import LIMIT_BYTES, Program, World  # noqa: E402

SOURCE = ROOT / "bench/lib/keep_busy.c"
KERNEL_NS = 1_000_000
STEP = 8
SMALL_KERNEL_NS = 20_000
ROUNDS = 5


@dataclass(frozen=True)
class Case:
    """Tenants side by side: what each may have, how many processes each starts, and who is idle half of the time."""

    name: str
    shares_milli: tuple[int, ...]
    processes: tuple[int, ...] = ()
    idle: int | None = None


CASES = (
    Case("two equal", (500, 500)),
    Case("two unequal", (750, 250)),
    Case("two equal, one greedy", (500, 500), (1, 4)),
    Case("four equal", (250,) * 4),
    Case("four unequal", (400, 300, 200, 100)),
    Case("four equal, one greedy", (250,) * 4, (1, 1, 1, 4)),
    Case("two unequal, the smaller one greedy", (750, 250), (1, 4)),
    Case("two equal, one half idle", (500, 500), idle=1),
)


class Shared(World):
    """A card with the leases of a case."""

    def __init__(self, directory: Path, tier: str, case: Case, *, throttle: bool, mps_protocol: int) -> None:
        self._case = case
        environment = {"ALIQUOT_AGENT_ENFORCEMENT_THROTTLE": "yes" if throttle else "no"}
        super().__init__(directory, parse_tier(tier, "tier"), 1000, environment, mps_protocol=mps_protocol)

    def grant(self, *leases: str, share_milli: int = 0, full: bool = False) -> None:
        """Those of the case instead."""
        del leases, share_milli
        self.order(
            *(
                desired(
                    self.device_uuid,
                    slice_id=f"{lease_of(number)}.1.0",
                    lease_id=lease_of(number),
                    tenant=lease_of(number),
                    share_milli=share_milli,
                    memory_bytes=LIMIT_BYTES,
                )
                for number, share_milli in enumerate(self._case.shares_milli)
            ),
            full=full,
        )

    def used_ns(self, programs: list[list[Program]]) -> list[int]:
        """The card's time that each tenant's programs have had."""
        used = {process.pid: process.used_ns for process in self.node.scenario.devices()[0].processes}
        return [sum(used.get(program.pid, 0) for program in tenant) for tenant in programs]


def lease_of(number: int) -> str:
    """The lease of a case's tenant."""
    return f"l-{number}"


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    parser.add_argument("--tier", default="preload", help="by which memory is held; several with commas between")
    parser.add_argument("--measure", type=float, default=15, help="seconds")
    parser.add_argument("--settle", type=float, default=12, help="seconds before that")
    parser.add_argument("--off", action="store_true", help="leases are not held to their shares")
    parser.add_argument("--mps-protocol", type=int, default=3, help="2: a server for each tenant; 3: one for all")
    parser.add_argument("--case", default="", help="only cases with this in their names")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory(prefix="aliquot-bench-") as folder:
        directory = Path(folder)
        directory.chmod(0o755)
        program = directory / "keep_busy"
        subprocess.run(["cc", "-O2", "-o", str(program), str(SOURCE), "-ldl"], check=True)
        for tier in options.tier.split(","):
            for number, case in enumerate(case for case in CASES if options.case in case.name):
                place = directory / f"{tier}{number}"
                place.mkdir()
                measured = measure(place, program, tier, case, options)
                results.append(measured)
                sys.stderr.write(f"{tier:9} {case.name:38} {json.dumps(measured)}\n")
        overhead = overhead_pct(directory, program)
    summary = {
        "tier": options.tier,
        "tenants": max(len(result["got_points"]) for result in results),
        "worst_error_points": max(result["error_points"] for result in results if result["busy"]),
        "used_pct": min(result["used_pct"] for result in results),
        "starved": sum(result["starved"] for result in results),
        "overhead_pct": overhead,
    }
    if options.json:
        print(json.dumps(summary))
    else:
        for name, value in summary.items():
            print(f"{name:30} {value}")
    return 0


def measure(directory: Path, program: Path, tier: str, case: Case, options: argparse.Namespace) -> dict[str, Any]:
    """One case in one tier."""
    made = Shared(directory, tier, case, throttle=not options.off, mps_protocol=options.mps_protocol)
    try:
        programs = []
        for number in range(len(case.shares_milli)):
            idle_us = STEP * KERNEL_NS // 1000 if number == case.idle else 0
            words = (str(program), str(KERNEL_NS), str(STEP), str(idle_us))
            count = case.processes[number] if case.processes else 1
            programs.append([made.start(*words, lease=lease_of(number)) for _ in range(count)])
        for each in [each for tenant in programs for each in tenant]:
            if each.answer() is None:
                raise SystemExit(f"a program ended: {each.said}")
        time.sleep(options.settle)
        seconds: list[tuple[int, list[int]]] = []
        while len(seconds) <= options.measure:
            seconds.append((time.monotonic_ns(), made.used_ns(programs)))
            time.sleep(1)
        return judged(case, seconds)
    finally:
        made.close()


def judged(case: Case, seconds: list[tuple[int, list[int]]]) -> dict[str, Any]:
    """What each tenant had between the first look and the last, and in each second between."""
    (begun_ns, before), (ended_ns, after) = seconds[0], seconds[-1]
    points = [100 * (b - a) / (ended_ns - begun_ns) for a, b in zip(before, after, strict=True)]
    errors = [abs(had - share / 10) for had, share in zip(points, case.shares_milli, strict=True)]
    starved = sum(
        1000 * (now - last) < case.shares_milli[tenant] // 5 * (at_ns - last_ns)
        for (last_ns, lasts), (at_ns, nows) in itertools.pairwise(seconds)
        for tenant, (last, now) in enumerate(zip(lasts, nows, strict=True))
    )
    return {
        "got_points": [round(had, 1) for had in points],
        "error_points": round(max(errors), 1),
        "used_pct": round(sum(points), 1),
        "starved": starved,
        "busy": case.idle is None,
    }


def overhead_pct(directory: Path, program: Path) -> float:
    """How much less a tenant alone gets done with the library than without, as the median of pairs."""
    lost = []
    with simgpu.create(directory / "alone", ["A100-40"]) as scenario:
        files = LeaseFiles(directory / "lease", "alone")
        files.create(built_library())
        files.set_limit(scenario.devices()[0].uuid, DeviceLimit(UNLIMITED_BYTES, paced=True))
        bare = os.environ | simgpu.environment(scenario.path)
        for _ in range(ROUNDS):
            done = [
                launches_a_second(program, environment)
                for environment in (bare, bare | {"LD_PRELOAD": str(files.library)})
            ]
            lost.append(100 * (1 - done[1] / done[0]))
    return round(statistics.median(lost), 2)


def launches_a_second(program: Path, environment: dict[str, str]) -> float:
    """Of a program alone on the card."""
    words = [str(program), str(SMALL_KERNEL_NS), "64"]
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        begun = time.monotonic()
        time.sleep(2)
        process.stdin.close()
        launched = json.loads(process.stdout.read())["launched"]
        return float(launched) / (time.monotonic() - begun)


if __name__ == "__main__":
    sys.exit(main())
