"""Bytes of device memory that a session holds, to the byte, asked for before they are allocated."""

from __future__ import annotations

from dataclasses import dataclass


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
class Account:
    """What is held, and the most that may be."""

    limit_bytes: int
    used_bytes: int = 0
    peak_bytes: int = 0
    allocations: int = 0

    def charge(self, number_bytes: int) -> None:
        """Take bytes.

        Raises:
            OutOfMemory: they would pass the limit; the account stays as it was.
        """
        used = self.used_bytes + number_bytes
        if used > self.limit_bytes:
            raise OutOfMemory(number_bytes, self.used_bytes, self.limit_bytes)
        self.used_bytes = used
        self.allocations += 1
        self.peak_bytes = max(self.peak_bytes, used)

    def refund(self, number_bytes: int) -> None:
        """Give bytes back that were charged."""
        if number_bytes > self.used_bytes or not self.allocations:
            raise AssertionError(f"{number_bytes} bytes given back, but {self.used_bytes} are charged")
        self.used_bytes -= number_bytes
        self.allocations -= 1
