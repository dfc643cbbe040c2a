"""Reads processes from /proc.

A process is identified by its pid *and* its start time; the pid alone may mean another process a moment
later. Every reader answers None for a process that is gone or can't be seen, and raises nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from aliquot.agent.core.attribution import ProcessFacts
from aliquot.agent.core.model import ProcessKey

PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_SHORT_BYTES = 1 << 16
_ZOMBIE_STATES = frozenset("ZXx")
# Positions in /proc/pid/stat after the command's closing parenthesis, counted from the state (field 3) as 0.
_STATE, _PARENT, _GROUP, _SESSION, _THREADS, _START = 0, 1, 2, 3, 17, 19


class Processes(Protocol):
    """What is asked of processes. This module is one: the real ones."""

    def key_of(self, pid: int) -> ProcessKey | None:
        """The process that has this pid now."""

    def alive(self, process: ProcessKey) -> bool:
        """Whether this very process runs."""

    def facts_of(self, pid: int) -> ProcessFacts | None:
        """What attribution needs to know."""

    def cgroup_of(self, pid: int) -> str | None:
        """Its path in the cgroup hierarchy."""

    def uids_of(self, pid: int) -> frozenset[int] | None:
        """Its user ids."""

    def pids(self) -> Iterator[int]:
        """All that can be seen."""

    def now_ticks(self) -> int:
        """The present, as start times count it."""

    def alone_in(self, process: ProcessKey) -> tuple[bool, bool]:
        """Whether it is alone in its session, and in its process group."""

    def ancestors(self, pid: int) -> frozenset[int]:
        """The pids above this one."""


def _read(pid: int, name: str) -> str | None:
    """A short file of a process. Each poll reads two for each process on a device, so without what files of Python
    cost beside the reading.
    """
    try:
        descriptor = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, _SHORT_BYTES).decode("utf-8", "surrogateescape")
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _stat(pid: int) -> list[str] | None:
    text = _read(pid, "stat")
    if text is None:
        return None
    # The command may itself hold blanks and parentheses; what follows the last one never does.
    fields = text.rpartition(")")[2].split()
    return fields if len(fields) > _START else None


def key_of(pid: int) -> ProcessKey | None:
    """The process that has this pid now. A zombie still has it, and is answered."""
    fields = _stat(pid)
    return None if fields is None else ProcessKey(pid, int(fields[_START]))


def alive(process: ProcessKey) -> bool:
    """Whether this very process still runs. A zombie does not: it has given back its files and its device memory.

    A process whose first thread has ended while others go on shows as a zombie with more than one thread: it runs.
    """
    fields = _stat(process.pid)
    if fields is None or int(fields[_START]) != process.start_ticks:
        return False
    return fields[_STATE] not in _ZOMBIE_STATES or int(fields[_THREADS]) > 1


def facts_of(pid: int) -> ProcessFacts | None:
    """What attribution needs to know of a process."""
    fields = _stat(pid)
    if fields is None:
        return None
    return ProcessFacts(
        key=ProcessKey(pid, int(fields[_START])),
        parent_pid=int(fields[_PARENT]),
        group_id=int(fields[_GROUP]),
        session_id=int(fields[_SESSION]),
        cgroup=cgroup_of(pid),
    )


def cgroup_of(pid: int) -> str | None:
    """Its path in the cgroup v2 hierarchy, as seen from the agent's cgroup namespace; None where there is none."""
    text = _read(pid, "cgroup")
    for line in text.splitlines() if text is not None else ():
        if line.startswith("0::"):
            return line.removeprefix("0::").removesuffix(" (deleted)")
    return None


def uids_of(pid: int) -> frozenset[int] | None:
    """Its real, effective and saved user ids. None also for the id of a thread, which is not a process."""
    try:
        text = (PROC / str(pid) / "status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("Tgid:") and int(line.split()[1]) != pid:
            return None
        if line.startswith("Uid:"):
            return frozenset(int(word) for word in line.split()[1:4])
    return None


def pids() -> Iterator[int]:
    """All processes that can be seen. Costs a directory listing: for ending a lease, not for every poll."""
    for entry in PROC.iterdir():
        if entry.name.isdecimal():
            yield int(entry.name)


def now_ticks() -> int:
    """The present, in the unit and from the origin of start times."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) * _TICKS_PER_S // 1_000_000_000


def alone_in(process: ProcessKey) -> tuple[bool, bool]:
    """Whether a process leads its session, and its process group, and is the only one in it."""
    mine = _stat(process.pid)
    if mine is None:
        return False, False
    own = str(process.pid)
    session, group = mine[_SESSION] == own, mine[_GROUP] == own
    for pid in pids() if session or group else ():
        fields = _stat(pid) if pid != process.pid else None
        if fields is not None:
            session = session and fields[_SESSION] != own
            group = group and fields[_GROUP] != own
    return session, group


def ancestors(pid: int) -> frozenset[int]:
    """The pids above this one."""
    found: set[int] = set()
    fields = _stat(pid)
    while fields is not None:
        parent = int(fields[_PARENT])
        if parent < 1 or parent in found:
            break
        found.add(parent)
        fields = _stat(parent)
    return frozenset(found)
