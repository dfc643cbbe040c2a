"""What several tiers need of the driver. The agent and `aliquot doctor` use the same checks."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from aliquot.agent.core.samples import DeviceInfo, ProcessList

log = logging.getLogger(__name__)

CUDA_LIBRARY = "libcuda.so.1"
AGAIN_S = 60.0
"""How long it is taken for granted that the library is missing: a driver may be installed meanwhile."""
_TRY_TIMEOUT_S = 30.0
_TRY = "import ctypes, sys; ctypes.CDLL(sys.argv[1])"
UNMEASURED = "the driver does not tell how much memory the processes on it hold"


def why_unmeasured(listed: ProcessList) -> str:
    """Why the memory of processes can't be measured by this list; empty where it can, or where the list is empty. A
    single process without an answer may have just ended.
    """
    untold = [process for process in listed.processes if process.memory_bytes is None]
    return UNMEASURED if untold and len(untold) == len(listed.processes) else ""


def try_to_load() -> str:
    """Whether programs find CUDA's driver: empty, or what is in the way. Takes tens of milliseconds; on a machine in
    trouble up to 30 s, so it belongs into a thread.
    """
    # In a process of its own: loaded into the agent, the driver would take memory there for ever.
    command = [sys.executable, "-I", "-S", "-c", _TRY, CUDA_LIBRARY]
    try:
        done = subprocess.run(  # noqa: S603 - our own words only
            command, check=False, capture_output=True, text=True, timeout=_TRY_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("whether %s can be loaded could not be tried: %s", CUDA_LIBRARY, error)
        return f"it could not be found out whether {CUDA_LIBRARY} can be loaded ({error}): look at the driver"
    if done.returncode == 0:
        return ""
    return (
        f"{CUDA_LIBRARY} can't be loaded here, so no program can use the device: install the driver's CUDA library, "
        "or give the agent's container the driver capability `compute`"
    )


class CudaDriver:
    """Whether programs on this node find CUDA's driver. Without it no process can allocate anything, and no limit on
    processes can be shown to work. Call `look` first.
    """

    def __init__(
        self, try_to_load: Callable[[], str] = try_to_load, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._try_to_load = try_to_load
        self._clock_s = clock_s
        self._problem = "whether programs find CUDA's driver has not been tried yet"
        self._tried_s = float("-inf")

    def look(self) -> None:
        """Try it now, as long as that takes."""
        self._tried_s = float("inf")  # while it is tried, nobody else does
        try:
            self._problem = self._try_to_load()
        finally:
            self._tried_s = self._clock_s()

    def why_not(self, device: DeviceInfo) -> str:
        """Empty where it could be loaded, and for devices of other vendors. Never waits: where there was a problem, it
        is tried again in a thread of its own, once a minute at most.
        """
        if device.vendor.upper() not in ("", "NVIDIA"):
            return ""
        if self._problem and self._clock_s() - self._tried_s >= AGAIN_S:
            self._tried_s = float("inf")
            threading.Thread(target=self.look, name="look for CUDA", daemon=True).start()
        return self._problem
