"""What this agent perceives its machine by, and in which of it it is deaf.

A sense that fails must not fail in silence: what it would have told is then told by nobody. All of them go through one
place, so that each is a condition of the node, a metric, an alert and a line of `aliquot doctor`, and none only a line
of a log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

KERNEL_LOG = "kernel-log"
DRIVER_EVENTS = "driver-events"
DRIVER = "driver"
DEVICES = "devices"
"""Looking for them: what is refused then is not seen to come or go."""
SIGNALLING = "signals"
"""Not perceiving, but as grave: whether programs can be ended."""
CGROUPS = "cgroups"
MPS = "mps"


class Senses:
    """Those that this agent is to have, each with why it is deaf in it. Use from one event loop."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called when one was lost, has come back, or is deaf for another reason."""
        self.changed = changed
        self._deaf: dict[str, str] = {}

    def tell(self, name: str, why_deaf: str = "") -> None:
        """How a sense is: deaf, and why, or (empty) in order."""
        before = self._deaf.get(name)
        self._deaf[name] = why_deaf
        if why_deaf == (before or ""):
            return
        if why_deaf:
            log.error("this agent is deaf: %s: %s", name, why_deaf)
        else:
            log.warning("this agent hears again: %s", name)
        self.changed()

    def all(self) -> dict[str, str]:
        """By name: why it is deaf; empty: it is not."""
        return dict(self._deaf)

    def deaf(self) -> dict[str, str]:
        """Only those that are."""
        return {name: why for name, why in self._deaf.items() if why}
