"""Who is on a device: NVML's three process lists, merged by pid.

The lists are by far the most expensive part of a poll (milliseconds each, under a lock of the driver), and
pynvml's own wrappers ask for each twice: for its size, then for its contents. Here the size of the last
answer is offered at once, and asked again only when it was too small. The versioned symbols are tried newest
first; the unversioned wrappers can't be used, since they raise something that is no NVML error.

Programs that compute are in the first list. The other two (graphics, clients of MPS) are empty on most devices. One
that was empty is read again only after `EMPTY_LIST_S`, or when more memory is in use than the listed programs account
for; one that was not is read every time, so that no answer is out of date.
"""

from __future__ import annotations

import time
from ctypes import Structure, byref

import pynvml

from aliquot.agent.core.samples import ProcessList, ProcessSample
from aliquot.agent.devices.base import DeviceError
from aliquot.agent.devices.nvml_query import Query

KINDS = ("Compute", "Graphics", "MPSCompute")
_VERSIONS = (("_v3", pynvml.c_nvmlProcessInfo_v3_t), ("_v2", pynvml.c_nvmlProcessInfo_v2_t))
EMPTY_LIST_S = 4.5
GROWTH_BYTES = 64 << 20
"""So much more that nobody accounts for is worth reading the rare lists again."""
_RARE_KINDS = KINDS[1:]
_UNKNOWN_BYTES = (1 << 64) - 1


class ProcessLists:
    """Reads the lists of devices, remembering their sizes and which versions there are."""

    def __init__(self, query: Query) -> None:
        self._query = query
        self._found_empty_s: dict[tuple[str, str], float] = {}
        self._unexplained_bytes: dict[str, int] = {}
        """In use but not by programs that compute, when the other lists were read last."""

    def read(self, uuid: str, handle: object, memory_total_bytes: int, used_bytes: int = 0) -> ProcessList:
        """The processes on a device, each once. `used_bytes`: of its memory, as far as is known. Raises `DeviceError`
        when not one list is offered.
        """
        found: dict[int, int | None] = {}
        readable = 0
        complete = True
        unexplained_bytes = 0
        for kind in KINDS:
            if kind == _RARE_KINDS[0]:
                unexplained_bytes = max(0, used_bytes - sum(known for known in found.values() if known is not None))
                if unexplained_bytes > self._unexplained_bytes.get(uuid, 0) + GROWTH_BYTES:
                    for rare in _RARE_KINDS:
                        self._found_empty_s.pop((uuid, rare), None)
            if self._probably_empty(uuid, kind):
                readable += 1
                continue
            entries = self._list(uuid, handle, kind)
            if entries is None:
                # MPS clients are in the compute list too on drivers without a list of their own.
                complete = complete and kind != "Compute"
                continue
            readable += 1
            if entries:
                self._found_empty_s.pop((uuid, kind), None)
            elif kind in _RARE_KINDS:
                self._found_empty_s[uuid, kind] = time.monotonic()
                self._unexplained_bytes[uuid] = unexplained_bytes
            for pid, memory_bytes in entries:
                known = _plausible(memory_bytes, memory_total_bytes)
                found[pid] = _larger(found[pid], known) if pid in found else known
        if not readable:
            raise DeviceError("the driver offers no list of processes")
        return ProcessList(
            tuple(ProcessSample(pid, memory_bytes) for pid, memory_bytes in sorted(found.items())), complete
        )

    def _probably_empty(self, uuid: str, kind: str) -> bool:
        since_s = self._found_empty_s.get((uuid, kind))
        return since_s is not None and time.monotonic() - since_s < EMPTY_LIST_S

    def _list(self, uuid: str, handle: object, kind: str) -> list[tuple[int, int]] | None:
        for suffix, structure in _VERSIONS:
            symbol = f"nvmlDeviceGet{kind}RunningProcesses{suffix}"
            if self._query.offers(uuid, symbol):
                entries = self._query.ask(uuid, symbol, self._call, uuid, handle, symbol, structure)
                if entries is not None or self._query.offers(uuid, symbol):
                    return entries or []
        return None

    def _call(self, uuid: str, handle: object, symbol: str, structure: type[Structure]) -> list[tuple[int, int]]:
        entries = self._query.listed(
            uuid, symbol, structure, lambda ask, entries, count: ask(handle, byref(count), entries)
        )
        return [(entry.pid, entry.usedGpuMemory) for entry in entries]


def _plausible(memory_bytes: int, total_bytes: int) -> int | None:
    """None for "not available", and for what can't be: some drivers answer garbage for processes that just ended."""
    return None if memory_bytes == _UNKNOWN_BYTES or memory_bytes > total_bytes else memory_bytes


def _larger(first: int | None, second: int | None) -> int | None:
    """A process in two lists has one amount of memory, told twice; some drivers tell it as 0 in one of them."""
    if first is None or second is None:
        return first if second is None else second
    return max(first, second)
