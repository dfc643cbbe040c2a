"""What followers are told: all ends, and nothing that is not durable."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.auditor.auditor import Auditor
    from tests.simulation.sim.followers import Follower


class FollowersAudit:
    """Compares what each has been told with what the journal says."""

    def __init__(self, auditor: Auditor) -> None:
        self._auditor = auditor
        self._checked: dict[str, int] = {}
        """Follower -> fact up to which its ends were looked at."""
        self._true: dict[str, set[str]] = {}
        """Follower -> ends of which it was told, and that were durable then."""

    def told(self, follower: Follower) -> None:
        """A follower has been told everything up to its number."""
        books = self._auditor.books
        if follower.seq > books.seq:
            self._auditor.violation(f"{follower.host} is told of fact {follower.seq}, but {books.seq} are durable")
            return
        after = max(self._checked.get(follower.host, 0), follower.began_seq)
        first = bisect_right(books.ends, (after, "\x7f"))
        last = bisect_right(books.ends, (follower.seq, "\x7f"))
        self._checked[follower.host] = follower.seq
        for seq, lease_id in books.ends[first:last]:
            if lease_id not in follower.ended and self._sees(follower, lease_id):
                self._auditor.violation(f"{follower.host} was not told of the end of {lease_id} (fact {seq})")
        true = self._true.setdefault(follower.host, set())
        for lease_id in follower.ended - true:
            story = books.stories.get(lease_id)
            if story is not None and story.ended:
                true.add(lease_id)
            elif story is not None:
                self._auditor.violation(f"{follower.host} was told of an end of {lease_id}, which lives")

    def _sees(self, follower: Follower, lease_id: str) -> bool:
        return follower.tenant in ("", self._auditor.books.tenants[lease_id])

    def final(self, followers: list[Follower]) -> None:
        """Everything has come to its end: they know."""
        for follower in followers:
            ends = (seq for seq, lease_id in reversed(self._auditor.books.ends) if self._sees(follower, lease_id))
            last = next(ends, 0)
            if follower.seq < last:
                self._auditor.violation(f"{follower.host} was told of {follower.seq} facts, not of all {last}")
