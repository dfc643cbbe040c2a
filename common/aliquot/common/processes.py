"""Which process a number means: the kernel gives it away again."""

from __future__ import annotations

from pathlib import Path


def start_ticks(pid: int) -> int | None:
    """When a process was started (field 22 of /proc/pid/stat); None: it is gone, or has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    state, threads = fields[0], int(fields[17])
    # Where only its first thread has ended, it shows as a zombie and is none.
    return None if state == "X" or (state == "Z" and threads <= 1) else int(fields[19])
