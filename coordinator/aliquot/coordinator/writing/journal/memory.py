"""A journal that lasts as long as its object: for tests, and for pools whose leases may go with the coordinator.

It encodes and decodes like a real one, so that what can't be journalled is noticed here too.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator

from aliquot.coordinator.writing.journal import codec
from aliquot.coordinator.writing.journal.base import StoredGroup, StoredSnapshot
from aliquot.coordinator.writing.journal.chained import ChainedJournal


class MemoryJournal(ChainedJournal):
    """See the module's docstring."""

    place = "memory"

    def __init__(self, pool_secret: bytes | None = None) -> None:
        super().__init__(pool_secret or secrets.token_bytes(32))
        self._records: list[codec.Record] = []
        self._leader_epoch = 0
        self._lock = threading.Lock()

    def open(self) -> None:
        """Nothing to do."""

    def raise_leader_epoch(self) -> int:
        """Take the next epoch."""
        with self._lock:
            self._leader_epoch += 1
            self._epoch = self._leader_epoch
            return self._leader_epoch

    def _advance(self, epoch: int) -> int:
        with self._lock:
            if self._epoch != self._leader_epoch:
                return 0
            self._leader_epoch = epoch
            return 1

    def _insert(self, record: codec.Record) -> int:
        with self._lock:
            if self._epoch != self._leader_epoch:
                return 0
            self._records.append(record)
            return 1

    def recover(self) -> None:
        """Memory is never the problem."""

    def groups(self, after_seq: int) -> Iterator[StoredGroup]:
        """All groups that end after `after_seq`."""
        for record in list(self._records):
            if record.last_seq > after_seq:
                yield StoredGroup(codec.decode(record), record.previous, record.digest)

    def snapshots(self) -> Iterator[StoredSnapshot]:
        """None are taken."""
        return iter(())

    def prune(self, up_to_seq: int, limit: int) -> int:
        """Without snapshots every group is needed."""
        del up_to_seq, limit
        return 0

    def close(self) -> None:
        """Nothing to let go of."""
