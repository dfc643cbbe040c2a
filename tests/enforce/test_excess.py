"""What a lease holds beyond its own account is found by comparing two things that move; a job that only gives memory
back must never look like one that holds too much.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from aliquot import simgpu
from aliquot.agent.core.model import SliceSpec
from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.enforce import preload_files
from aliquot.agent.enforce.base import Limited
from aliquot.agent.enforce.preload import CONTEXT_MIN_BYTES, PreloadEnforcer
from aliquot.agent.enforce.preload_files import LeaseFiles

GIB = 1 << 30
RELEASING = """
import sys
from aliquot.common.cuda import Driver
from bench.lib.cuda_ways import WAYS
driver = Driver()
held = [WAYS["malloc"](driver, 512 << 20) for _ in range(int(sys.argv[1]))]
print("holds", flush=True)
for _ in sys.stdin:
    held.pop()()
    print("released", flush=True)
"""


def test_memory_given_back_between_a_look_at_the_device_and_one_at_the_account_is_no_excess(tmp_path: Path) -> None:
    with simgpu.create(tmp_path / "gpus", ["A100-40"]) as scenario:
        device = scenario.devices()[0]
        info = DeviceInfo(device.uuid, 0, device.name, "A100-40", "NVIDIA", device.total_bytes, 0)
        limited = Limited(SliceSpec("l-1.1.0", "l-1", 1, device.uuid, 250, 4 * GIB), info)
        tier = PreloadEnforcer(tmp_path / "preload")
        tier.apply(limited)
        with subprocess.Popen(
            [sys.executable, "-c", RELEASING, "4"],
            env=os.environ | simgpu.environment(scenario.path) | dict(tier.environment(limited)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as program:
            assert program.stdin is not None
            assert program.stdout is not None
            assert program.stdout.readline() == "holds\n"
            tier.observe(limited, scenario.devices()[0].used_bytes)
            for _ in range(4):
                on_device = scenario.devices()[0].used_bytes
                program.stdin.write("release\n")
                program.stdin.flush()
                assert program.stdout.readline() == "released\n"
                assert scenario.devices()[0].used_bytes < on_device
                assert tier.observe(limited, on_device) == 0
            program.stdin.close()


def test_a_large_process_does_not_make_contexts_dear_for_everybody(tmp_path: Path) -> None:
    """What is reserved for the next context is what one took, not all that a process holds."""
    with simgpu.create(tmp_path / "gpus", ["A100-40"]) as scenario:
        device = scenario.devices()[0]
        info = DeviceInfo(device.uuid, 0, device.name, "A100-40", "NVIDIA", device.total_bytes, 0)
        tier = PreloadEnforcer(tmp_path / "preload")
        large, small = (
            Limited(SliceSpec(f"l-{size}.1.0", f"l-{size}", 1, device.uuid, 250, size << 20), info)
            for size in (4096, 700)
        )
        environment = os.environ | simgpu.environment(scenario.path)

        def run(limited: Limited, pieces: str, line: str) -> subprocess.Popen[str]:
            tier.apply(limited)
            program = subprocess.Popen(
                [sys.executable, "-c", RELEASING, pieces],
                env=environment | dict(tier.environment(limited)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert program.stdout is not None
            assert program.stdout.readline() == line
            return program

        with run(large, "6", "holds\n") as program:
            tier.observe(large, scenario.devices()[0].used_bytes)
            with run(small, "0", "holds\n") as other:
                assert other.poll() is None
                tier.observe(small, None)
                limit = LeaseFiles(tmp_path / "preload/l-700.1.0", "l-700").limit_of(device.uuid)
                assert limit is not None
                assert CONTEXT_MIN_BYTES < limit.context_bytes < 700 << 20
            program.communicate("")


def test_an_account_that_was_forged_does_not_make_contexts_cheap_for_everybody(tmp_path: Path) -> None:
    info = DeviceInfo("GPU-00000000-0000-0000-0000-000000000001", 0, "NVIDIA A100", "A100-40", "NVIDIA", 40 * GIB, 0)
    mine, other = (Limited(SliceSpec(f"l-{n}.1.0", f"l-{n}", 1, info.uuid, 250, 4 * GIB), info) for n in (1, 2))
    tier = PreloadEnforcer(tmp_path / "preload")
    tier.apply(mine)
    path = Path(tier.environment(mine)["LD_PRELOAD"]).with_name("account")
    account = preload_files._AccountFile.from_buffer_copy(path.read_bytes())
    account.context[0] = 1
    path.write_bytes(bytes(account))
    tier.observe(mine, 0)
    tier.apply(other)
    limit = LeaseFiles(path.parent.with_name("l-2.1.0"), "l-2").limit_of(info.uuid)
    assert limit is not None
    assert limit.context_bytes == CONTEXT_MIN_BYTES


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_nothing_is_kept_of_a_holder_whose_device_went_first(tmp_path: Path) -> None:
    """Its limit was never cleared: there was nothing left to clear it on."""
    tier = PreloadEnforcer(tmp_path / "preload")
    before = open_files()
    for number in range(1, 4):
        info = DeviceInfo(
            f"GPU-00000000-0000-0000-0000-00000000000{number}", 0, "A100", "A100-40", "NVIDIA", 40 * GIB, 0
        )
        limited = Limited(SliceSpec(f"l-{number}.1.0", f"l-{number}", 1, info.uuid, 250, 4 * GIB), info)
        tier.apply(limited)
        tier.observe(limited, GIB)
        tier.forget(limited.spec.holder)
    assert open_files() == before
    assert not list((tmp_path / "preload").iterdir())
