"""How active devices and processes are: by the card's counters where it has them, unknown where nothing tells."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from aliquot import simgpu
from aliquot.agent.core.accounting import ProcessUse, SliceUsage
from aliquot.agent.core.model import Reservation, SliceSpec
from aliquot.agent.core.samples import ActivitySource, DeviceInfo, LoadSample
from aliquot.agent.state import DeviceState
from aliquot.agent.wire import device_report, slice_activity
from tests.agent.harness import GIB

_LOOK = """
import json, time
from aliquot.agent.devices.nvml import NvmlBackend
backend = NvmlBackend()
backend.open()
said = {}
for info in backend.discover().devices:
    backend.load(info.uuid)
    time.sleep(0.15)  # the counters compare two samples that are a moment apart
    load = backend.load(info.uuid)
    means, peaks = backend.process_load(info.uuid), backend.process_peaks(info.uuid)
    said[info.model] = [load.activity_percent, load.activity_source, load.power_limit_mw is not None, means, peaks]
    backend.load(info.uuid)  # too soon for them: unknown, and no error
backend.close()
print(json.dumps(said))
"""


def test_counters_where_there_are_some_else_kernels_and_processes_on_both(tmp_path: Path) -> None:
    with simgpu.create(tmp_path / "gpus", ["H100-80", "A100-40"], host="activity") as scenario:
        for device in scenario.devices():
            scenario.add_foreign(device.uuid, GIB, sm_percent=40)
        environment = {**os.environ, **simgpu.environment(tmp_path / "gpus")}
        said = json.loads(subprocess.check_output([sys.executable, "-c", _LOOK], env=environment))
    hopper, ampere = said["H100-80"], said["A100-40"]
    assert hopper[:3] == [40, ActivitySource.COUNTERS, True]
    assert ampere[:3] == [40, ActivitySource.KERNELS, True]
    for device in (hopper, ampere):
        assert list(device[3].values()) == [40]
        assert device[3] == device[4]


_BURST = """
import json, sys, time
import pynvml
from aliquot import simgpu
from aliquot.agent.core.energy import Meter
from aliquot.agent.devices.nvml import NvmlBackend
scenario = simgpu.Scenario(sys.argv[1])
backend = NvmlBackend()
backend.open()
(info,) = backend.discover().devices
scenario.set(0, power_mw=60_000)
meter = Meter()
def mean():
    meter.take(backend.load(info.uuid).energy_mj, time.monotonic_ns() // 10**6, {}, 0)
    return meter.mean_power_mw
first, again = mean(), mean()  # the second is too soon: unknown, and no error
scenario.set(0, power_mw=360_000)
time.sleep(0.2)
pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByIndex(0))  # the stand-in counts when asked
scenario.set(0, power_mw=60_000)
time.sleep(0.2)
then = [backend.load(info.uuid).power_mw, mean()]
backend.close()
print(json.dumps([first, again, *then]))
"""


def test_a_burst_between_two_samples_is_seen_by_the_energy_that_it_took(tmp_path: Path) -> None:
    with simgpu.create(tmp_path / "gpus", ["A100-40"], host="energy"):
        environment = {**os.environ, **simgpu.environment(tmp_path / "gpus")}
        command = [sys.executable, "-c", _BURST, str(tmp_path / "gpus")]
        first, again, power, mean = json.loads(subprocess.check_output(command, env=environment))
    assert first is None
    assert again is None
    assert power == 60_000
    assert 70_000 < mean < 360_000


def test_the_pool_is_told_the_mean_power_where_it_is_known() -> None:
    device = _device(load=LoadSample(power_mw=60_000), mean_power_mw=210_000)
    assert device_report(device).power_mw == 210_000
    device.mean_power_mw = None
    assert device_report(device).power_mw == 60_000


def _device(**said: Any) -> DeviceState:
    state = DeviceState(DeviceInfo("GPU-a", 0, "GPU", "GPU", "nvidia", 8 * GIB, 0))
    for name, value in said.items():
        setattr(state, name, value)
    return state


def _slice(*pids: int, complete: bool = True) -> SliceUsage:
    spec = SliceSpec("l-1.1.0", "l-1", 1, "GPU-a", 500, GIB)
    return SliceUsage(Reservation(spec), tuple(ProcessUse(pid, None, GIB) for pid in pids), complete)


def test_what_a_lease_does_is_the_sum_of_its_programs_peaks() -> None:
    device = _device(process_peaks={1: 30, 2: 40, 3: 90})
    assert slice_activity(device, _slice(1, 2), alone=False) == (70, ActivitySource.PROCESSES)
    assert slice_activity(device, _slice(4), alone=False) == (0, ActivitySource.PROCESSES)


def test_what_nobody_tells_is_unknown_and_not_idle() -> None:
    unmeasured = _device(process_peaks=None, load=LoadSample(90, activity_percent=90))
    assert slice_activity(unmeasured, _slice(1), alone=False) == (None, ActivitySource.UNKNOWN)
    assert slice_activity(unmeasured, _slice(1), alone=True)[0] == 90, "all of the device is its own"
    assert slice_activity(unmeasured, _slice(), alone=False)[0] == 0, "no process of it is there"
    assert slice_activity(_device(process_peaks={}), _slice(1, complete=False), alone=True)[0] is None


def test_the_counters_of_a_card_count_for_who_has_it_alone() -> None:
    load = LoadSample(0, activity_percent=12, activity_source=ActivitySource.COUNTERS)
    device = _device(process_peaks={1: 0}, load=load)
    assert slice_activity(device, _slice(1), alone=True) == (12, ActivitySource.COUNTERS)
    assert slice_activity(device, _slice(1), alone=False) == (0, ActivitySource.PROCESSES)
