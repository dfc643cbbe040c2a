"""The machine's host name, processors and memory."""

from __future__ import annotations

import os
import socket
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
PID_NAMESPACE = Path("/proc/self/ns/pid")
_FIRST_PID_NAMESPACE = "pid:[4026531836]"


def host_name() -> str:
    """The machine's name for people."""
    return socket.gethostname()


def in_pid_namespace() -> bool:
    """Whether this process sees other process ids than the driver tells."""
    try:
        return str(PID_NAMESPACE.readlink()) != _FIRST_PID_NAMESPACE
    except OSError:
        return False


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
