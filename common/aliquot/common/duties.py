"""What a program has to do, or to perceive, again and again, and what of that fails.

What fails for days in a log that nobody reads is told to nobody. So all of it goes through one place: it is said once
in the log, and is the metric `aliquot_duty`, an alert, and a line where people look: a node's conditions, and `aliquot
health`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)

Tell = Callable[[str, str], None]
"""(duty, why it fails; empty: it is done), as `Duties.tell` takes them."""


class Duties:
    """Those of one program, each with why it fails."""

    def __init__(self, changed: Callable[[], None] = lambda: None) -> None:
        """`changed` is called when one fails, is done again, or fails for another reason."""
        self.changed = changed
        self._why: dict[str, str] = {}
        self._looks: dict[str, Callable[[], str]] = {}

    def tell(self, duty: str, why: str = "") -> None:
        """How a duty is: why it fails, or (empty) that it is done. The same failure in the same words is said once."""
        before = self._why.get(duty, "")
        self._why[duty] = why
        if why == before:
            return
        if why:
            log.error("%s fails: %s", duty, why)
        else:
            log.warning("%s is done again", duty)
        self.changed()

    def watch(self, duty: str, look: Callable[[], str]) -> None:
        """One of which nobody tells: `look` says why it fails, whenever all are looked at."""
        self._looks[duty] = look

    def look(self) -> None:
        """Look at those of which nobody tells."""
        for duty, look in self._looks.items():
            self.tell(duty, look())

    def all(self) -> dict[str, str]:
        """By name: why it fails; empty: it does not. On any thread."""
        return dict(self._why)

    def failing(self) -> dict[str, str]:
        """Only those that do."""
        return {duty: why for duty, why in self.all().items() if why}
