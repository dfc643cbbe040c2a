"""A source of chance that always draws the same."""

from __future__ import annotations

import random


class Drawn(random.Random):
    """`random()` gives this number."""

    def __init__(self, number: float) -> None:
        super().__init__(0)
        self._number = number

    def random(self) -> float:
        return self._number
