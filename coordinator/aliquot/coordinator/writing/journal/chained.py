"""What is the same of every journal, whatever stores its records: each follows the one before it, by number and digest,
and is taken only from the writer whose leader epoch is the journal's.
"""

from __future__ import annotations

import abc
import secrets
from collections.abc import Iterable, Iterator
from typing import Any

from aliquot.coordinator.errors import JournalCorrupt, NotLeader
from aliquot.coordinator.writing.journal import codec
from aliquot.coordinator.writing.journal.base import NO_DIGEST, Group, Journal, Snapshots, StoredGroup, StoredSnapshot


class ChainedJournal(Journal, abc.ABC):
    """A store adds a few statements."""

    place: str
    """Where it is, for people."""
    # These hide the protocol's properties, which can't be set.
    pool_secret: bytes = b""
    last_seq: int = 0

    def __init__(self, pool_secret: bytes) -> None:
        self.pool_secret = pool_secret
        self._last_digest = NO_DIGEST
        self._epoch = 0

    @abc.abstractmethod
    def _insert(self, record: codec.Record) -> int:
        """Make a record durable if the leader epoch is ours; how many were inserted. Raises JournalUnavailable."""

    @abc.abstractmethod
    def _advance(self, epoch: int) -> int:
        """Raise the leader epoch if it is ours; how many were raised. Raises JournalUnavailable."""

    def advance_leader_epoch(self, epoch: int) -> None:
        """See `Journal.advance_leader_epoch`."""
        if self._advance(epoch) != 1:
            raise self._taken_over()
        self._epoch = epoch

    def resume_after(self, seq: int, digest: bytes) -> None:
        """See `Journal.resume_after`. A snapshot can be ahead of the records when the last one was cut off."""
        self.last_seq, self._last_digest = seq, digest

    def commit(self, group: Group) -> None:
        """See `Journal.commit`."""
        if group.first_seq != self.last_seq + 1:
            raise AssertionError(f"group starts at {group.first_seq} after {self.last_seq}")
        record = codec.encode(group, self._last_digest)
        if self._insert(record) != 1:
            raise self._taken_over()
        self.last_seq, self._last_digest = record.last_seq, record.digest

    def _taken_over(self) -> NotLeader:
        return NotLeader(
            f"the leader epoch in {self.place} is no longer {self._epoch}",
            hint="another coordinator has taken this journal over; this one must stop",
        )


class StoredJournal(ChainedJournal):
    """A journal that outlives its process."""

    damaged: str
    """What to do when a record can't be believed."""

    def __init__(self, pool_secret: bytes, snapshot_store: Snapshots) -> None:
        """`pool_secret` is that of a journal that is made now as another's copy; empty: one of its own."""
        super().__init__(pool_secret)
        self.snapshot_store = snapshot_store
        """Where the snapshotter writes."""

    @abc.abstractmethod
    def identity(self) -> tuple[bytes, int]:
        """The pool's secret and the leader epoch, read without opening or changing anything. Raises ConfigError where
        nothing is there, and JournalError.
        """

    @abc.abstractmethod
    def raise_leader_epoch(self, at_least: int = 0) -> int:
        """Durably take the next leader epoch, or a higher one."""

    def fills(self, *, whole: bool) -> None:
        """A copy is being written into it, or is whole now. Until then nobody may take it for a journal, whatever
        becomes of who writes it: half of one looks like a whole one. A file has another name meanwhile.
        """

    def snapshots(self) -> Iterator[StoredSnapshot]:
        """See `Journal.snapshots`."""
        return self.snapshot_store.read()

    def _own_secret(self) -> bytes:
        """For a journal that is made now."""
        return self.pool_secret or secrets.token_bytes(32)

    def _checked(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[StoredGroup]:
        """The groups of rows of records. Raises JournalCorrupt where one is not what was written."""
        for row in rows:
            record = codec.Record(*row)
            if not codec.is_intact(record):
                raise JournalCorrupt(
                    f"the record of facts {record.first_seq} to {record.last_seq} in {self.place} is damaged, and "
                    "later ones build on it",
                    hint=self.damaged,
                )
            yield StoredGroup(codec.decode(record), record.previous, record.digest)
