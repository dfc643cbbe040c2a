"""What the writer asks of a journal, whatever stores it.

A journal is a list of commit groups. A group is all or nothing, groups are in order without gaps, and each record
names the digest of the one before it, so that nothing can be lost, changed or swapped in the middle without being
noticed. All calls block: the writer makes them in its journal thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from aliquot.coordinator.core.evolve.snapshot import Snapshot
from aliquot.coordinator.core.values.fact import Fact

SQLITE: Final = "sqlite:"
POSTGRES: Final = "postgres:"
"""How names of journals begin, as `--journal` has them; see `naming`."""
NO_DIGEST = bytes(32)
"""What the first record names as the digest before it."""


@dataclass(frozen=True, slots=True)
class Group:
    """Facts that become durable together. The first of them has number `first_seq`."""

    first_seq: int
    facts: tuple[Fact, ...]

    @property
    def last_seq(self) -> int:
        """The number of the last fact."""
        return self.first_seq + len(self.facts) - 1


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group as it was read back, with the digest it names as the one before it, and its own."""

    group: Group
    previous: bytes
    digest: bytes


@dataclass(frozen=True, slots=True)
class StoredSnapshot:
    """The books at the end of a group, and that group's digest: where replay goes on from."""

    snapshot: Snapshot
    digest: bytes


class Snapshots(Protocol):
    """Where a journal's snapshots are."""

    def seqs(self) -> list[int]:
        """The sequence numbers there are snapshots of, newest first."""

    def write(self, stored: StoredSnapshot) -> int:
        """Make a snapshot durable, then drop old ones; returns its size in bytes."""

    def read(self) -> Iterator[StoredSnapshot]:
        """Those that can be read, newest first."""


class Journal(Protocol):
    """One durable list of groups, with a leader epoch that every commit is conditional on."""

    @property
    def pool_secret(self) -> bytes:
        """32 random bytes made with the journal: what leases' secrets are derived from."""

    @property
    def last_seq(self) -> int:
        """The number of the last durable fact."""

    def open(self) -> None:
        """Make it ready. Raises JournalTooNew, JournalCorrupt, JournalLocked or JournalUnavailable."""

    def raise_leader_epoch(self) -> int:
        """Durably take the next leader epoch; commits with any lower one fail from now on."""

    def advance_leader_epoch(self, epoch: int) -> None:
        """While leading: durably go on in this higher epoch. Raises NotLeader where ours is not the latest any more."""

    def resume_after(self, seq: int, digest: bytes) -> None:
        """The State that was replayed ends here: the next commit follows that fact and names that digest."""

    def commit(self, group: Group) -> None:
        """Make a group durable. Raises JournalUnavailable (nothing may be assumed) or NotLeader (stop writing)."""

    def recover(self) -> None:
        """After a failed commit: open afresh and prove with a real write that it can be written. Raises as `commit`."""

    def groups(self, after_seq: int) -> Iterator[StoredGroup]:
        """The groups that end after `after_seq`, checked one by one. Raises JournalCorrupt or JournalTooNew."""

    def snapshots(self) -> Iterator[StoredSnapshot]:
        """Snapshots that can be read, newest first."""

    def prune(self, up_to_seq: int, limit: int) -> int:
        """Drop at most `limit` groups that end at or before `up_to_seq`; returns how many were dropped."""

    def close(self) -> None:
        """Let go of files and locks."""
