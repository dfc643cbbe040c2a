"""What decisions see of nodes' keys: read only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from aliquot.coordinator.core.enrolment.records import Enrolled, Generation, Invite


class EnrolmentView(Protocol):
    """`EnrolmentBooks`, without what changes it."""

    @property
    def enrolled(self) -> Mapping[str, Enrolled]:
        """By node id."""

    @property
    def generations(self) -> tuple[Generation, ...]:
        """Of the pool's authority, the oldest first."""

    @property
    def newest(self) -> int:
        """The number of the latest generation."""

    @property
    def invites(self) -> Mapping[str, Invite]:
        """By invite id."""
