"""A journal that lasts as long as its object: for tests, and for pools whose leases may go with the coordinator.

It encodes and decodes like a real one, so that what can't be journalled is noticed here too.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator

from aliquot.coordinator.errors import NotLeader
from aliquot.coordinator.writing.journal import codec
from aliquot.coordinator.writing.journal.base import NO_DIGEST, Group, StoredGroup, StoredSnapshot


class MemoryJournal:
    """See the module's docstring. It implements `Journal`."""

    def __init__(self, pool_secret: bytes | None = None) -> None:
        self.pool_secret = pool_secret or secrets.token_bytes(32)
        self._records: list[codec.Record] = []
        self._leader_epoch = 0
        self._my_epoch = 0
        self._lock = threading.Lock()

    @property
    def last_seq(self) -> int:
        """The number of the last fact."""
        return self._records[-1].last_seq if self._records else 0

    def open(self) -> None:
        """Nothing to do."""

    def raise_leader_epoch(self) -> int:
        """Take the next epoch."""
        with self._lock:
            self._leader_epoch += 1
            self._my_epoch = self._leader_epoch
            return self._leader_epoch

    def advance_leader_epoch(self, epoch: int) -> None:
        """Go on in a higher epoch."""
        with self._lock:
            if self._my_epoch != self._leader_epoch:
                raise NotLeader("another coordinator has taken this journal over")
            self._leader_epoch = self._my_epoch = epoch

    def resume_after(self, seq: int, digest: bytes) -> None:
        """Its records are all there is."""
        del digest
        assert seq == self.last_seq

    def commit(self, group: Group) -> None:
        """Append a group."""
        with self._lock:
            if self._my_epoch != self._leader_epoch:
                raise NotLeader("another coordinator has taken this journal over")
            if group.first_seq != self.last_seq + 1:
                raise AssertionError(f"group starts at {group.first_seq} after {self.last_seq}")
            previous = self._records[-1].digest if self._records else NO_DIGEST
            self._records.append(codec.encode(group, previous))

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
