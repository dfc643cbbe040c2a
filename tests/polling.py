"""Waiting for what happens in other threads and processes: by looking, and not for longer than a busy machine takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tests.unhurried import Allowance

T = TypeVar("T")

DEADLINE_S = 60.0


def eventually(condition: Callable[[], T]) -> T:
    """Look again and again until there is something true, and return that. Fails after a minute of a quiet machine."""
    allowance = Allowance(DEADLINE_S)
    while not (found := condition()):
        assert not allowance.over(), f"it did not happen within {DEADLINE_S:.0f} s of a quiet machine"
        time.sleep(0.02)
    return found
