"""How this process keeps the memory of tensors that are let go, where a processor computes."""

from __future__ import annotations

import ctypes
import sys
from functools import cache

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""`M_TRIM_THRESHOLD` and `M_MMAP_THRESHOLD` of glibc's `mallopt`."""
_KEPT_BYTES = 1 << 30
_MAPPED_FROM_BYTES = 256 << 20


@cache
def keep_freed() -> bool:
    """Have what is let go be used again rather than given to the system and asked for anew, page by page, each step.

    Once a process. Returns whether its library can (glibc's can).
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)) and bool(mallopt(_MMAP_THRESHOLD, _MAPPED_FROM_BYTES))
