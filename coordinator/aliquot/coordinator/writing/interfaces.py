"""What the writer expects of those who hear of its work."""

from __future__ import annotations

from typing import Protocol

from aliquot.coordinator.writing.commits import Commit


class Publisher(Protocol):
    """Tells everybody of what is durable: the outbox."""

    def publish(self, commit: Commit) -> None:
        """A group is durable."""

    def load(self, commit: Commit) -> None:
        """The State was read anew from the journal and differs from what was published."""


class WriterMetrics(Protocol):
    """What is measured of the writer."""

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
