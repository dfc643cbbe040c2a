"""The driver's calls that put a program's device memory aside and bring it back, by the program's pid.

Five calls of `libcuda.so.1`: `cuCheckpointProcessGetState`, `…Lock`, `…Checkpoint`, `…Restore`, `…Unlock`. The program
knows nothing of it. Asked: do its losses stay equal to the last bit, how long does each call take, where do the bytes
go, and what does NVML show meanwhile.
"""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path
from typing import Any

from bench.lib.hardware_lease import Bench, plain_environment
from bench.stages.means import GIB, Card, NotRun, Talking, run_program
from bench.stages.programs import LOOP

STATES = ("running", "locked", "checkpointed", "failed")
STEPS, AT_STEP = 60, 20
HELD_BYTES, REHEARSED_BYTES = 4 * GIB, 16 << 20
_PREFIX = "cuCheckpointProcess"
_ARGUMENT_BYTES = 128
"""Above the size of each call's structure of options, of which all but the lock's time-out are reserved."""
_LOCK_TIMEOUT_MS = 20_000
_PAGE = os.sysconf("SC_PAGE_SIZE")


def checkpoint(card: Card) -> dict[str, Any]:
    """A training loop is put aside in its middle, and brought back."""
    driver = _Driver()
    card.require_torch()
    bench = card.bench()
    held_bytes = REHEARSED_BYTES if card.rehearse else HELD_BYTES
    variables = card.device | {"STEPS": str(STEPS), "PAUSE_S": "0.05", "HELD_BYTES": str(held_bytes)}
    undisturbed = run_program(LOOP, variables)
    if "losses" not in undisturbed:
        return {"status": "failed", "why": "the program does not run undisturbed", "undisturbed": undisturbed}
    found: dict[str, Any] = {}
    with Talking(LOOP, plain_environment(variables)) as program:
        while (said := program.next()).get("step", STEPS) < AT_STEP:
            pass
        pid = program.process.pid
        found["before"] = _look(bench, driver, pid)
        found["calls"] = {}
        for call in ("Lock", "Checkpoint", "Restore", "Unlock"):
            begun = time.monotonic()
            code = driver.call(call, pid)
            found["calls"][call] = {"code": code, "seconds": round(time.monotonic() - begun, 3)}
            found[f"after {call}"] = _look(bench, driver, pid)
            card.partly(found)
            if code:
                return found | {"status": "failed", "why": f"{_PREFIX}{call} answered {code}"}
        while "step" in said:
            said = program.next()
    found["losses_equal"] = said.get("losses") == undisturbed["losses"]
    found["held_memory_equal"] = said.get("held_sum") == undisturbed["held_sum"]
    whole = found["losses_equal"] and found["held_memory_equal"]
    return found | ({} if whole else {"status": "failed", "why": "the program is not what it was", "said": said})


class _Driver:
    """The calls, in this process, which is another than the program's."""

    def __init__(self) -> None:
        """Raises `NotRun`."""
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise NotRun(f"no CUDA driver: {error}") from error
        for name in ("GetState", "Lock", "Checkpoint", "Restore", "Unlock"):
            if not hasattr(self._library, _PREFIX + name):
                raise NotRun(f"this driver has no {_PREFIX}{name}: it comes with release 570")
        self._library.cuInit(0)

    def state(self, pid: int) -> str:
        """In a word; the error's number where it is not told."""
        state = ctypes.c_int(-1)
        code = self._library.cuCheckpointProcessGetState(ctypes.c_int(pid), ctypes.byref(state))
        return STATES[state.value] if code == 0 and 0 <= state.value < len(STATES) else f"error {code}"

    def call(self, name: str, pid: int) -> int:
        """The error's number, 0 for none."""
        options = ctypes.create_string_buffer(_ARGUMENT_BYTES)
        if name == "Lock":
            ctypes.c_uint.from_buffer(options).value = _LOCK_TIMEOUT_MS
        return int(getattr(self._library, _PREFIX + name)(ctypes.c_int(pid), options))


def _look(bench: Bench, driver: _Driver, pid: int) -> dict[str, Any]:
    memory = bench.nvml.nvmlDeviceGetMemoryInfo(bench.handle)
    processes = {each.pid: each.usedGpuMemory for each in bench.nvml.nvmlDeviceGetComputeRunningProcesses(bench.handle)}
    resident = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1]) * _PAGE
    return {
        "state": driver.state(pid),
        "nvml_lists_it": pid in processes,
        "nvml_process_bytes": processes.get(pid),
        "nvml_card_used_bytes": memory.used,
        "resident_bytes": resident,
    }
