"""The throttle: a lease alone on its device is held to about its share of the time, and nobody else is slowed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.agent import simgpu
from aliquot.agent.enforce.preload import built_library
from aliquot.agent.enforce.preload_files import DeviceLimit, LeaseFiles

LAUNCHING = """
import json, time
from aliquot.agent.simgpu.cuda import SPIN_KERNEL, Cuda
cuda = Cuda()
kernel = cuda.load_kernel(SPIN_KERNEL, "spin")
seconds = []
for _ in range(8):
    end, launches = time.monotonic() + 1, 0
    while time.monotonic() < end:
        for _ in range(5):
            cuda.launch(kernel, 2_000_000)
            launches += 1
        cuda.synchronize()
    seconds.append(launches)
print(json.dumps(seconds))
"""


@pytest.mark.slow
def test_launches_are_paced_to_the_share(tmp_path: Path) -> None:
    rates = {}
    for share_milli in (0, 250):
        with simgpu.create(tmp_path / f"gpus{share_milli}", ["A100-40"], host=f"throttle{share_milli}") as scenario:
            files = LeaseFiles(tmp_path / f"lease{share_milli}", "paced")
            files.create(built_library())
            files.set_limit(scenario.devices()[0].uuid, DeviceLimit(4 << 30, share_milli=share_milli))
            done = subprocess.run(
                [sys.executable, "-c", LAUNCHING],
                env=os.environ | simgpu.environment(scenario.path) | {"LD_PRELOAD": str(files.library)},
                capture_output=True,
                text=True,
                check=True,
            )
        # The first seconds are for measuring what a launch costs.
        rates[share_milli] = sum(json.loads(done.stdout)[4:])
    assert rates[250] * 1000 // rates[0] in range(100, 450), rates
