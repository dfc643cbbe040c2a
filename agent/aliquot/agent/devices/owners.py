"""Which processes have a device's file open: all that can be known of who uses devices whose driver lists nobody.

To find them, every open file of every process is looked at. That costs tens of milliseconds where there are many, so
one look serves all devices of a kind for a moment.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from aliquot.agent.core.samples import ProcessList, ProcessSample

FRESH_S = 0.5
"""For so long a look counts. Less than a poll's interval."""
_DEVICES = "/dev/"


class Owners:
    """Looks below `proc_root`. May be asked from several threads."""

    def __init__(
        self, proc_root: Path = Path("/proc"), fresh_s: float = FRESH_S, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._proc = proc_root
        self._fresh_s = fresh_s
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._looked_s = float("-inf")
        self._known: tuple[Mapping[str, Collection[int]], bool] = ({}, True)
        self.looks = 0

    def on(self, paths: Collection[str]) -> ProcessList:
        """Processes with one of these files open, each once; their memory is not told. Not complete where some process
        could not be looked into.
        """
        with self._lock:
            if self._clock_s() >= self._looked_s + self._fresh_s:
                self._known = self._look()
                self._looked_s = self._clock_s()
            holders, complete = self._known
        pids = {pid for path in paths for pid in holders.get(path, ())}
        return ProcessList(tuple(ProcessSample(pid, None) for pid in sorted(pids)), complete)

    def _look(self) -> tuple[Mapping[str, Collection[int]], bool]:
        """By file below /dev, who has it open."""
        self.looks += 1
        holders: dict[str, set[int]] = {}
        complete = True
        for process in self._proc.iterdir():
            if not process.name.isdigit():
                continue
            try:
                # Names change and vanish while one looks: a process that has ended uses nothing.
                links = list((process / "fd").iterdir())
            except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
                continue
            except PermissionError:
                complete = False
                continue
            for link in links:
                target = _target(link)
                if target.startswith(_DEVICES):
                    holders.setdefault(target, set()).add(int(process.name))
        return holders, complete


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""
