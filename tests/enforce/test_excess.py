"""What a lease holds beyond its own account is found by comparing two things that move; a job that only gives memory
back must never look like one that holds too much.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from aliquot.agent import simgpu
from aliquot.agent.core.model import SliceSpec
from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.enforce.base import Limited
from aliquot.agent.enforce.preload import PreloadEnforcer

GIB = 1 << 30
RELEASING = """
import sys
from aliquot.agent.doctor.cuda import Driver
from aliquot.agent.doctor.ways import WAYS
driver = Driver()
held = [WAYS["malloc"](driver, 512 << 20) for _ in range(4)]
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
            [sys.executable, "-c", RELEASING],
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
