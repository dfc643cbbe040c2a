"""Compares what launchers were told with what the journal says. It reads facts and counts by itself: none of the
coordinator's own books are used.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from aliquot.coordinator.core.books.leading import LeaderStarted
from aliquot.coordinator.core.books.leases.facts import (
    LeaseEnded,
    LeaseGranted,
    LeaseQueued,
    SliceFailed,
    SliceGone,
    SliceGrant,
)
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.writing.journal.base import Journal
from aliquot.coordinator.writing.journal.postgres import PostgresJournal
from tests.failover.cluster import Log

WHOLE_MILLI = 1000


@dataclass
class Findings:
    """What is wrong, in words; nothing is good."""

    lost: list[str] = field(default_factory=list)
    double: list[str] = field(default_factory=list)
    overcommitted: list[str] = field(default_factory=list)
    epochs: list[int] = field(default_factory=list)
    """Of the leaders, in the order in which they began."""
    grants: int = 0

    @property
    def clean(self) -> bool:
        return not (self.lost or self.double or self.overcommitted) and self.epochs == sorted(set(self.epochs))


class _Books:
    def __init__(self) -> None:
        self.lease_by_key: dict[str, set[str]] = {}
        self.granted: Counter[tuple[str, int]] = Counter()
        self.held: dict[str, tuple[str, int]] = {}
        self.slices: dict[str, set[str]] = {}
        self.share_milli: Counter[str] = Counter()
        self.ended: dict[str, str] = {}
        self.findings = Findings()

    def read(self, fact: Fact) -> None:
        match fact:
            case LeaderStarted():
                self.findings.epochs.append(fact.leader_epoch)
            case LeaseQueued():
                self.lease_by_key.setdefault(fact.key, set()).add(fact.lease_id)
            case LeaseGranted():
                self.granted[fact.lease_id, fact.lease_epoch] += 1
                for grant in fact.slices:
                    self._take(fact.lease_id, grant)
            case SliceGone() | SliceFailed():
                self._give(fact.lease_id, fact.slice_id)
            case LeaseEnded():
                self.ended[fact.lease_id] = str(fact.reason)
                for slice_id in list(self.slices.get(fact.lease_id, ())):
                    self._give(fact.lease_id, slice_id)

    def _take(self, lease_id: str, grant: SliceGrant) -> None:
        uuid, share = grant.plan.device_uuid, grant.plan.share_milli
        self.held[grant.slice_id] = (uuid, share)
        self.slices.setdefault(lease_id, set()).add(grant.slice_id)
        self.share_milli[uuid] += share
        if self.share_milli[uuid] > WHOLE_MILLI:
            self.findings.overcommitted.append(f"{uuid} carries {self.share_milli[uuid]} thousandths")

    def _give(self, lease_id: str, slice_id: str) -> None:
        uuid, share = self.held.pop(slice_id, ("", 0))
        self.share_milli[uuid] -= share
        self.slices.get(lease_id, set()).discard(slice_id)


def audit(conninfo: str, log: Log) -> Findings:
    """The same of a journal in PostgreSQL."""
    journal = PostgresJournal(conninfo)
    try:
        return audit_of(journal, log)
    finally:
        journal.close()


def audit_of(journal: Journal, log: Log) -> Findings:
    """Read all of the journal and hold it against the launchers' log."""
    books = _Books()
    expected, digest = 1, None
    for stored in journal.groups(0):
        assert stored.group.first_seq == expected
        assert digest is None or stored.previous == digest
        expected, digest = stored.group.last_seq + 1, stored.digest
        for fact in stored.group.facts:
            books.read(fact)
    findings = books.findings
    findings.grants = len(books.granted)
    granted_ids = {lease_id for lease_id, _ in books.granted}
    for key, lease_id in log.granted.items():
        if lease_id not in granted_ids:
            findings.lost.append(f"{lease_id} was granted to {key}, and the journal knows nothing of it")
        elif lease_id not in log.release_asked and lease_id in books.ended:
            findings.lost.append(f"{lease_id} ended although nobody released it: {books.ended[lease_id]}")
        if lease_id in log.released and lease_id not in books.ended and books.slices.get(lease_id) is None:
            findings.lost.append(f"the release of {lease_id} was forgotten")
    for key, leases in books.lease_by_key.items():
        if key and len(leases) > 1:
            findings.double.append(f"{key} has {len(leases)} leases: {sorted(leases)}")
    findings.double += [
        f"{lease_id} granted {n} times in epoch {e}" for (lease_id, e), n in books.granted.items() if n > 1
    ]
    findings.double += [f"{key} was answered with two leases" for key in log.changed_answers]
    return findings
