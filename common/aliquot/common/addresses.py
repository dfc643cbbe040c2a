"""Which coordinator to try next: the one that another named as leader, else the configured ones in turn."""

from __future__ import annotations

from collections.abc import Sequence

MAX_HINTS_IN_A_ROW = 3
"""After this many referrals without a pause, the configured list is tried again."""


class Addresses:
    """A ring of coordinators."""

    def __init__(self, configured: Sequence[str]) -> None:
        if not configured:
            raise ValueError("at least one coordinator address is needed")
        self._configured = tuple(dict.fromkeys(configured))
        self._next = 0
        self._hint = ""
        self._favourite = ""
        self._hints_in_a_row = 0

    @property
    def referred(self) -> bool:
        """Whether the next address comes from a referral, so that it is worth trying without waiting."""
        return bool(self._hint)

    def take(self) -> str:
        """The address to try now."""
        address = self._hint or self._favourite
        if address:
            self._hint = self._favourite = ""
            return address
        address = self._configured[self._next % len(self._configured)]
        self._next += 1
        return address

    def leader_is(self, address: str) -> None:
        """A coordinator that does not lead named the leader."""
        if address and self._hints_in_a_row < MAX_HINTS_IN_A_ROW:
            self._hints_in_a_row += 1
            self._hint = address

    def waited(self) -> None:
        """Some time has passed: the leader may have changed, so referrals are followed again."""
        self._hints_in_a_row = 0

    def worked(self, address: str) -> None:
        """This one leads: come back to it first when the connection breaks."""
        self._hints_in_a_row = 0
        if address in self._configured:
            self._next = self._configured.index(address)
        else:
            self._favourite = address
