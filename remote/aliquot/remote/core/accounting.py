"""Bytes of device memory, to the byte, asked for before they are allocated: of a part, and of each session on it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field


class OutOfMemory(Exception):
    """An allocation would pass the limit. Nothing was allocated."""

    def __init__(self, asked_bytes: int, used_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            f"{asked_bytes} bytes were asked for, {used_bytes} of {limit_bytes} are in use: "
            f"{limit_bytes - used_bytes} are left"
        )
        self.asked_bytes = asked_bytes
        self.used_bytes = used_bytes
        self.limit_bytes = limit_bytes


@dataclass(slots=True)
class Budget:
    """What a part's sessions hold together, and the most that they may. `guard` is a lock where threads share it."""

    limit_bytes: int
    guard: AbstractContextManager[object] = field(default_factory=nullcontext)
    used_bytes: int = 0


class Account:
    """What one session holds, of a budget that it may share with others."""

    __slots__ = ("allocations", "budget", "peak_bytes", "used_bytes")

    def __init__(self, budget: Budget | int) -> None:
        """Bytes stand for a budget of its own."""
        self.budget = Budget(budget) if isinstance(budget, int) else budget
        self.used_bytes = 0
        self.peak_bytes = 0
        self.allocations = 0

    @property
    def limit_bytes(self) -> int:
        """Of all sessions together."""
        return self.budget.limit_bytes

    def require(self, number_bytes: int) -> None:
        """Check that bytes could be charged now.

        Raises:
            OutOfMemory: they would pass the limit.
        """
        budget = self.budget
        if budget.used_bytes + number_bytes > budget.limit_bytes:
            raise OutOfMemory(number_bytes, budget.used_bytes, budget.limit_bytes)

    def charge(self, number_bytes: int) -> None:
        """Take bytes.

        Raises:
            OutOfMemory: they would pass the limit; everything stays as it was.
        """
        budget = self.budget
        with budget.guard:
            used = budget.used_bytes + number_bytes
            if used > budget.limit_bytes:
                raise OutOfMemory(number_bytes, budget.used_bytes, budget.limit_bytes)
            budget.used_bytes = used
        self.used_bytes += number_bytes
        self.allocations += 1
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def refund(self, number_bytes: int) -> None:
        """Give bytes back that were charged."""
        if number_bytes > self.used_bytes or not self.allocations:
            raise AssertionError(f"{number_bytes} bytes given back, but {self.used_bytes} are charged")
        with self.budget.guard:
            self.budget.used_bytes -= number_bytes
        self.used_bytes -= number_bytes
        self.allocations -= 1
