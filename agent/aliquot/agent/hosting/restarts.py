"""When a process that serves a lease is started again: at growing intervals, else one that can't start would keep the
node busy, and one that ends at once its clients.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from aliquot.agent.core.model import Holder

FIRST_S = 2.0
MAX_S = 60.0
"""Also how long one must have served for its earlier ends to be forgotten."""


class _Trouble(msgspec.Struct):
    interval_s: float = 0.0
    again_s: float = 0.0
    """When it may be started again, by the monotonic clock."""
    served_s: float | None = None
    """Since when it serves; None: it does not."""


class Restarts(msgspec.Struct, eq=False):
    """See the module's docstring."""

    monotonic_s: Callable[[], float]
    _troubles: dict[Holder, _Trouble] = {}

    def ended(self, holder: Holder) -> float:
        """It has ended, or could not start. Returns how long to wait before the next start."""
        now_s = self.monotonic_s()
        trouble = self._troubles.setdefault(holder, _Trouble())
        if trouble.served_s is not None and now_s - trouble.served_s >= MAX_S:
            trouble.interval_s = 0.0
        trouble.interval_s = min(MAX_S, trouble.interval_s * 2) or FIRST_S
        trouble.again_s, trouble.served_s = now_s + trouble.interval_s, None
        return trouble.interval_s

    def serves(self, holder: Holder) -> None:
        """It has answered."""
        trouble = self._troubles.setdefault(holder, _Trouble())
        if trouble.served_s is None:
            trouble.served_s = self.monotonic_s()

    def wait_s(self, holder: Holder) -> float:
        """How long to wait from now; 0: it may be started."""
        trouble = self._troubles.get(holder)
        return 0.0 if trouble is None else max(0.0, trouble.again_s - self.monotonic_s())

    def forget(self, holder: Holder) -> None:
        """Nothing of it is held any more."""
        self._troubles.pop(holder, None)
