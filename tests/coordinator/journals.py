"""Journals that a test can hold back, and make fail."""

from __future__ import annotations

import threading

from aliquot.coordinator.errors import JournalUnavailable
from aliquot.coordinator.writing.journal.base import Group
from aliquot.coordinator.writing.journal.memory import MemoryJournal


class HeldJournal(MemoryJournal):
    """Commits wait while `hold` is on; `waiting` says that one does."""

    def __init__(self) -> None:
        super().__init__()
        self._gate = threading.Event()
        self._gate.set()
        self.waiting = threading.Event()

    def hold(self) -> None:
        self.waiting.clear()
        self._gate.clear()

    def let_go(self) -> None:
        self._gate.set()

    def commit(self, group: Group) -> None:
        if not self._gate.is_set():
            self.waiting.set()
            assert self._gate.wait(60)
        super().commit(group)


class FailingJournal(HeldJournal):
    """Commits fail while `broken` says so, before or after the group has become durable."""

    def __init__(self) -> None:
        super().__init__()
        self.broken = False
        self.durable_all_the_same = False

    def commit(self, group: Group) -> None:
        if self.broken and not self.durable_all_the_same:
            raise JournalUnavailable("the disk is full")
        super().commit(group)
        if self.broken:
            raise JournalUnavailable("the disk did not answer")

    def prune(self, up_to_seq: int, limit: int) -> int:
        if self.broken:
            raise JournalUnavailable("the table is locked")
        return super().prune(up_to_seq, limit)

    def recover(self) -> None:
        if self.broken:
            raise JournalUnavailable("the disk is still full")
