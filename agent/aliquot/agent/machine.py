"""What the machine has beside devices: names, processors, memory."""

from __future__ import annotations

import os
import socket
from pathlib import Path

MEMINFO = Path("/proc/meminfo")


def host_name() -> str:
    """The machine's name for people."""
    return socket.gethostname()


def cpu_milli() -> int:
    """Processors this agent may schedule on, in thousandths."""
    return len(os.sched_getaffinity(0)) * 1000


def memory_bytes() -> int | None:
    """The machine's memory; None where the kernel does not say."""
    try:
        text = MEMINFO.read_text(encoding="ascii")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) << 10
    return None
