"""What the coordinator asks of leadership: an epoch that nobody else has or had, and to be told when it is over."""

from __future__ import annotations

from typing import Protocol


class Leadership(Protocol):
    """Who may write. Being told late is harmless: every commit is conditional on the epoch by itself."""

    def acquire(self) -> int:
        """Become the leader, durably; returns the leader epoch. Blocks. Raises JournalLocked or JournalError."""

    def release(self) -> None:
        """Let somebody else lead."""
