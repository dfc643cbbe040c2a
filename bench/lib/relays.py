"""Starts a real relay for a benchmark, and measures what its processes use."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from bench.lib.pool import cpu_s_of, rss_mb_of


@dataclass(frozen=True, slots=True)
class Relays:
    """Processes that share a port."""

    address: str
    pids: tuple[int, ...]

    def cpu_s(self) -> float:
        """CPU time used so far, by all together."""
        return sum(map(cpu_s_of, self.pids))

    def rss_mb(self) -> float:
        """Resident memory now, of all together, in MiB."""
        return sum(map(rss_mb_of, self.pids))


@contextlib.contextmanager
def relays(coordinator: str, processes: int, *arguments: str) -> Iterator[Relays]:
    """This many relay processes for that coordinator; stopped at the end."""
    command = [sys.executable, "-m", "aliquot.relay", "--listen", "127.0.0.1:0", "--metrics-port", "-1"]
    command += ["--coordinator", coordinator, "--processes", str(processes), "--drain", "0s", *arguments]
    popen = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert popen.stdout is not None
        line = popen.stdout.readline()
        if not line.startswith("ready "):
            raise RuntimeError(f"the relay did not start (exit code {popen.wait()})")
        ready = json.loads(line.removeprefix("ready "))
        yield Relays(ready["address"], tuple(ready["processes"]))
    finally:
        popen.send_signal(signal.SIGTERM)
        popen.wait(60)
