"""Which pod named a lease's member first: an assignment that somebody copies is always the later one.

The API server's policy lets nobody but us write assignments. Somebody may delete it, and then a pod may show another's
assignment before that one's own container has started. What is told of a node's pods comes in the order in which it was
written, and who copies has read; so whoever was seen with it first has it, as long as that pod is there. Of several
that are seen for the first time together nobody has it.
"""

from __future__ import annotations

from collections.abc import Iterable

Member = tuple[str, int]
"""A lease and the number of its member."""


class Claimants:
    """`look` with all that is seen, each time that something has changed."""

    def __init__(self) -> None:
        self._first: dict[Member, str] = {}
        self._now: dict[Member, set[str]] = {}

    def look(self, named: Iterable[tuple[str, Member]]) -> None:
        """All living pods (by uid) that name a member now."""
        now: dict[Member, set[str]] = {}
        for uid, member in named:
            now.setdefault(member, set()).add(uid)
        first = {}
        for member, uids in now.items():
            known = self._first.get(member)
            if known in uids:
                first[member] = known
            elif len(uids) == 1:
                first[member] = next(iter(uids))
        self._first, self._now = first, now

    def seen(self, uid: str, member: Member) -> bool:
        """Whether this pod has been seen to name it."""
        return uid in self._now.get(member, ())

    def others(self, uid: str, member: Member) -> list[str]:
        """Those whose place it may be instead of this pod's: the first, or all where nobody was."""
        if self._first.get(member) == uid:
            return []
        first = self._first.get(member)
        return sorted(self._now.get(member, set()) - {uid}) if first is None else [first]
