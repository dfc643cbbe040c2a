"""The log of rows that changed, from which the placement engine knows what to score again."""

from __future__ import annotations

CHANGES_MAX = 8192
"""Longer than this, the older half is dropped; an engine that had not read it scores everything again, which is cheaper
than replaying it."""


class ChangeLog:
    """Rows, oldest first. A position is the number of changes before it; only forgotten positions are used again."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._first = 0
        """Position of the oldest that is kept."""
        self._read = 0
        """How far anybody has read."""

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._rows)

    @property
    def end(self) -> int:
        """The position of the next change."""
        return self._first + len(self._rows)

    def note(self, row: int) -> None:
        """A row has changed."""
        if len(self._rows) >= CHANGES_MAX:
            del self._rows[: CHANGES_MAX // 2]
            self._first += CHANGES_MAX // 2
        self._rows.append(row)

    def since(self, position: int) -> list[int] | None:
        """The rows that changed from there on; None: some of them have been dropped."""
        self._read = self.end
        return self._rows[position - self._first :] if position >= self._first else None

    def undone(self, since: int) -> None:
        """All changes from there on were undone: they are forgotten, unless somebody has read of them meanwhile."""
        if self._read <= since and since >= self._first:
            del self._rows[since - self._first :]
