"""Two leases of half a device each, which leave nothing of it, under constant abuse: never over, never a false kill,
and nobody is refused what is within their own part.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from aliquot.common.tiers import Tier
from tests.enforce.world import NEIGHBOUR, Program, World, world

GREEDY = """
import json, random, sys, time
from aliquot.common.cuda import Driver, DriverError
from bench.lib.cuda_ways import WAYS
dice, driver, held, refused, other = random.Random(int(sys.argv[1])), Driver(), [], 0, 0
print(json.dumps({"ready": True}), flush=True)
sys.stdin.readline()
until = time.monotonic() + float(sys.argv[2])
ways = ["malloc", "pitch", "managed", "vmm", "async", "own_pool", "array", "mipmap", "graph_node"]
while time.monotonic() < until:
    try:
        held.append(WAYS[dice.choice(ways)](driver, dice.randrange(1, 65) << 21))
    except DriverError as error:
        refused += error.code == 2
        other += error.code != 2
        for _ in range(min(len(held), dice.randrange(1, 20))):
            held.pop(dice.randrange(len(held)))()
print(json.dumps({"refused": refused, "other": other}), flush=True)
"""

MODEST = """
import json, random, sys, time
from aliquot.common.cuda import Driver, DriverError
from bench.lib.cuda_ways import WAYS
until, driver, rounds = time.monotonic() + float(sys.argv[2]), Driver(), 0
room = driver.memory_info()[0] // (2 << 20) * (2 << 20)
dice, failed = random.Random(int(sys.argv[1])), 0
while time.monotonic() < until:
    taken, held = 0, []
    try:
        while taken + (64 << 20) <= room:
            held.append(WAYS[dice.choice(["malloc", "vmm", "async"])](driver, 64 << 20))
            taken += 64 << 20
    except DriverError as error:
        failed += 1
        print(json.dumps({"failed": str(error), "taken": taken, "room": room}), flush=True)
        break
    for release in held:
        release()
    rounds += 1
print(json.dumps({"rounds": rounds, "failed": failed}), flush=True)
"""


def abuse(seconds: float, directory: Path) -> None:
    with world(directory / "world", Tier.PRELOAD, poll_ms=50, halves=True) as made:
        greedy = [made.python(GREEDY, str(seed), str(seconds)) for seed in range(3)]
        # Each has its context before anybody takes the rest.
        for program in greedy:
            assert program.answer() == {"ready": True}, program.said
        for program in greedy:
            program.go_on("go")
        modest = made.start(*_python(MODEST, seconds), lease=NEIGHBOUR)
        highest = watch(made, greedy, seconds)
        assert max(highest) <= made.limit_bytes, "more was booked than the lease has"
        for program in greedy:
            answer = program.answer()
            assert answer is not None, f"ended by {program.process.wait()}: {program.said}\n{made.node.log}"
            assert answer["refused"] > 0, "it never came to the limit: the test tests nothing"
            assert answer["other"] == 0
        answer = modest.answer()
        assert answer is not None, f"ended by {modest.process.wait()}: {modest.said}\n{made.node.log}"
        assert answer["failed"] == 0, "refused within its own part"
        assert answer["rounds"] > 0
        assert '"signal":' not in made.node.log, "nobody was over, so nobody may be signalled"


def _python(source: str, seconds: float) -> list[str]:
    return [sys.executable, "-c", source, "7", str(seconds)]


def watch(made: World, programs: list[Program], seconds: float) -> list[int]:
    """What the driver has booked on the abusers, looked at as often as possible."""
    highest = [0]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        highest.append(made.held_bytes(*programs))
        time.sleep(0.002)
    return highest


def test_two_leases_for_a_few_seconds(tmp_path: Path) -> None:
    abuse(3, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_two_leases_for_a_minute(tmp_path: Path) -> None:
    abuse(60, tmp_path)
