"""What the writer expects of those who hear of its work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from aliquot.common.duties import Duties
from aliquot.coordinator.writing.commits import Commit


class Publisher(Protocol):
    """Tells everybody of what is durable: the outbox."""

    def publish(self, commit: Commit) -> None:
        """A group is durable."""

    def load(self, commit: Commit) -> None:
        """The State was read anew from the journal and differs from what was published."""


class WriterMetrics(Protocol):
    """What is measured of the writer."""

    @property
    def duties(self) -> Duties:
        """Where it tells what it fails to do again and again."""

    def decided(self, took_ns: int) -> None:
        """One command was decided and applied."""

    def committed(self, took_ns: int, facts: int) -> None:
        """One group was made durable."""

    def commit_failed(self) -> None:
        """One group was not."""


class GrantingListener(Protocol):
    """Hears whether commands are carried out."""

    def granting_changed(self, *, granting: bool) -> None:
        """Whether they are from now on."""

    def recovered(self) -> None:
        """The State was read anew: what was under way is lost."""


@dataclass(frozen=True, slots=True)
class WriterConfig:
    """Bounds of the writer."""

    queue_max: int = 20_000
    """Commands waiting to be decided; beyond it callers are told to come back."""
    wait_max_ms: int = 2_000
    """While commands wait longer than this to be decided, those who ask for more are told to come back."""
    turn_ms: int = 2
    """Longest stretch of deciding before the event loop gets its turn: what somebody who reads waits for, several times
    over where several do. With 5 a lease costs no less.
    """
    linger_ms: int = 4
    """While many callers are about, commands wait this long for others, to be decided and committed together: each then
    costs less to decide and to sync. A lone caller never waits.
    """
    group_facts_max: int = 8_192
    retry_first_ms: int = 100
    """First pause before a journal that failed is tried again; it doubles up to `retry_max_ms`."""
    retry_max_ms: int = 5_000
