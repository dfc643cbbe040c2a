"""The slowdown of a small training loop on a real GPU under each tier: alone and under the tier, alternating."""

# ruff: noqa: BLE001, PLC0415

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bench.lib.hardware_lease import Bench, missing, plain_environment, run_json
from bench.lib.hardware_programs import TRAINING

ROUNDS = 3
LIMIT_PERCENT = 2.0
POLL_S = 1.0

Run = Callable[[], dict[str, Any]]


def slowdown(bench: Bench) -> dict[str, Any]:
    """Per tier: microseconds a step alone and under it, and the difference in percent (the bar is 2)."""
    if problem := missing("torch"):
        return {"not run": problem}
    tiers: dict[str, Callable[[Bench], contextlib.AbstractContextManager[Run]]] = {
        "preload": _preload,
        "watchdog": _watchdog,
        "driver": _driver,
        "mps": _mps,
    }
    result: dict[str, Any] = {}
    for name, tier in tiers.items():
        try:
            with tier(bench) as run:
                result[name] = _compare(run)
        except Unavailable as error:
            result[name] = {"not run": str(error)}
        except Exception as error:
            result[name] = {"failed": f"{type(error).__name__}: {error}"}
    return result


class Unavailable(Exception):
    """A tier is not possible on this machine."""


def _compare(run: Run) -> dict[str, Any]:
    """Alternate, so that clocks and heat are the same for both; returns medians of medians."""
    alone, under = [], []
    for _ in range(ROUNDS):
        alone.append(_step_us(run_json(TRAINING, plain_environment())))
        under.append(_step_us(run()))
    percent = (statistics.median(under) / statistics.median(alone) - 1) * 100
    return {
        "alone_step_us": round(statistics.median(alone), 1),
        "step_us": round(statistics.median(under), 1),
        "percent": round(percent, 2),
        "within_bar": percent <= LIMIT_PERCENT,
        "alone_all_us": alone,
        "all_us": under,
    }


def _step_us(answer: Mapping[str, Any]) -> float:
    if "step_us" not in answer:
        raise RuntimeError(f"the training loop did not run: {answer}")
    return float(answer["step_us"])


@contextlib.contextmanager
def _preload(bench: Bench) -> Iterator[Run]:
    with bench.lease() as lease:
        yield lambda: run_json(TRAINING, lease.environment())


@contextlib.contextmanager
def _watchdog(bench: Bench) -> Iterator[Run]:
    """Nothing in the process; beside it, memory and processes are read as often as an agent does."""
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(POLL_S):
            bench.nvml.nvmlDeviceGetMemoryInfo(bench.handle, version=bench.nvml.nvmlMemory_v2)
            bench.used_bytes(0)

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield lambda: run_json(TRAINING, plain_environment())
    finally:
        stop.set()
        looking.join()


@contextlib.contextmanager
def _driver(bench: Bench) -> Iterator[Run]:
    """A new leaf cgroup; afterwards its limit is lifted and it is removed."""
    if os.geteuid() != 0:
        raise Unavailable("the driver's limits need root")
    from aliquot.agent.core.model import SliceSpec
    from aliquot.agent.core.samples import DeviceInfo
    from aliquot.agent.enforce.base import Limited
    from aliquot.agent.enforce.driver import DriverEnforcer
    from aliquot.common.kernel_files import MOUNTINFO, find_mount

    base = f"/aliquot-hardware-{os.getpid()}"
    name = f"{base}/leaf"
    mount = find_mount(MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape"))
    leaf = mount.directory_of(name) if mount is not None else None
    if leaf is None:
        raise Unavailable("no cgroup v2 hierarchy is mounted")
    enforcer = DriverEnforcer(lambda: "", lambda: base)
    total_bytes = bench.nvml.nvmlDeviceGetMemoryInfo(bench.handle).total
    device = DeviceInfo(bench.uuid, 0, "", "", "nvidia", total_bytes, 0)
    spec = SliceSpec("hardware.1.0", "hardware", 1, bench.uuid, 500, bench.lease_bytes)
    limited = Limited(spec, device, name)
    if problem := enforcer.available(limited):
        raise Unavailable(problem)
    enforcer.apply(limited)
    try:
        if not enforcer.read_back(limited):
            raise Unavailable("the limit was set, but is not there when read back")
        yield lambda: run_json(TRAINING, plain_environment(), cgroup=leaf)
    finally:
        enforcer.clear(limited)
        leaf.rmdir()
        leaf.parent.rmdir()


@contextlib.contextmanager
def _mps(bench: Bench) -> Iterator[Run]:
    """With all threads, so that only the server in between is measured."""
    with mps_daemon(bench) as daemon:
        daemon.say(f"set_default_device_pinned_mem_limit 0 {bench.lease_bytes >> 20}M")
        yield lambda: run_json(TRAINING, daemon.client)


class MpsDaemon:
    """An MPS control daemon of this benchmark."""

    def __init__(self, control: str, environment: dict[str, str]) -> None:
        self._control = control
        self._environment = environment
        self.client = environment | {"CUDA_VISIBLE_DEVICES": "0"}
        """The environment of its clients."""

    def say(self, text: str) -> str:
        """Send a command, and return the answer."""
        done = subprocess.run(
            [self._control],
            input=text + "\n",
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        return (done.stdout + done.stderr).strip()


@contextlib.contextmanager
def mps_daemon(bench: Bench) -> Iterator[MpsDaemon]:
    """Started with the compute mode as it is, and ended. Raises `Unavailable`."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        raise Unavailable("nvidia-cuda-mps-control is not installed")
    folders = {
        "CUDA_MPS_PIPE_DIRECTORY": bench.scratch / "mps-pipe",
        "CUDA_MPS_LOG_DIRECTORY": bench.scratch / "mps-log",
    }
    for folder in folders.values():
        folder.mkdir(exist_ok=True)
    named = {name: str(folder) for name, folder in folders.items()}
    environment = plain_environment(named | {"CUDA_VISIBLE_DEVICES": bench.uuid})
    started = subprocess.run([control, "-d"], env=environment, capture_output=True, text=True, timeout=20, check=False)
    if started.returncode:
        raise Unavailable(f"the daemon did not start: {(started.stdout + started.stderr).strip()[-300:]}")
    daemon = MpsDaemon(control, environment)
    try:
        yield daemon
    finally:
        daemon.say("quit")
