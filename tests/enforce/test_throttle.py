"""The throttle: a lease alone on its device is held to about its share of the time, and nobody else is slowed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot import simgpu
from aliquot.agent.enforce.preload import built_library
from aliquot.agent.enforce.preload_files import DeviceLimit, LeaseFiles

LAUNCHING = """
import time
from aliquot.simgpu.cuda import SPIN_KERNEL, Cuda
cuda = Cuda()
kernel = cuda.load_kernel(SPIN_KERNEL, "spin")

def busy_milli(seconds):
    begun, launches = time.monotonic(), 0
    while (passed := time.monotonic() - begun) < seconds:
        for _ in range(5):
            cuda.launch(kernel, 2_000_000)  # nanoseconds that the device is busy
            launches += 1
        cuda.synchronize()
    return int(launches * 2 / passed)

busy_milli(4)  # for measuring what a launch costs
print(busy_milli(4))
"""


@pytest.mark.slow
def test_launches_are_paced_to_the_share(tmp_path: Path) -> None:
    with simgpu.create(tmp_path / "gpus", ["A100-40"]) as scenario:
        files = LeaseFiles(tmp_path / "lease", "paced")
        files.create(built_library())
        files.set_limit(scenario.devices()[0].uuid, DeviceLimit(4 << 30, share_milli=250))
        done = subprocess.run(
            [sys.executable, "-c", LAUNCHING],
            env=os.environ | simgpu.environment(scenario.path) | {"LD_PRELOAD": str(files.library)},
            capture_output=True,
            text=True,
            check=True,
        )
    # Of the device's time, not of what a busy machine lets a program use of it: that may be less.
    assert 0 < int(done.stdout) < 450
