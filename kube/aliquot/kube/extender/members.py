"""Which pod is which member of its gang's lease: bound, as its assignment says, or told its place and not bound yet.

Kept by what changes, so that a gang of a thousand costs a thousand steps and not a million.
"""

from __future__ import annotations

import asyncio
from typing import Final

from aliquot.kube.core.pods import PodRecord
from aliquot.kube.holding.book import LeaseBook
from aliquot.kube.holding.pods import PodIndex

_RESERVED_S: Final = 60.0
"""How long a pod that was told its place keeps it without being bound."""


class Members:
    """See the module's docstring."""

    def __init__(self, book: LeaseBook, pods: PodIndex) -> None:
        self._book = book
        self._pods = pods
        self._bound: dict[str, dict[int, str]] = {}
        """Of each lease: member -> uid."""
        self._told: dict[str, dict[int, tuple[str, float]]] = {}
        """Of each lease: member -> uid and time, in the order of times."""
        self._place: dict[str, tuple[str, int]] = {}
        """Of each pod that was told: lease and member."""
        for pod in pods:
            self._changed(None, pod)
        pods.on_change.append(self._changed)

    def used(self, lease_id: str) -> dict[int, str]:
        """Member -> uid."""
        told = self._lately_told(lease_id)
        return {member: uid for member, (uid, _) in told.items()} | self._bound.get(lease_id, {})

    def filled(self, lease_id: str) -> int:
        """How many members are used: who is bound is not among those told any more."""
        return len(self._lately_told(lease_id)) + len(self._bound.get(lease_id, ()))

    def _lately_told(self, lease_id: str) -> dict[int, tuple[str, float]]:
        told = self._told.get(lease_id, {})
        late = asyncio.get_running_loop().time() - _RESERVED_S
        while told:
            uid, at = next(iter(told.values()))
            if at >= late:
                break
            self._forget(uid)
        return told

    def started(self, lease_id: str) -> bool:
        """Whether any member is bound."""
        return lease_id in self._bound

    def tell(self, lease_id: str, member: int, uid: str) -> None:
        """This pod is told that it is this member."""
        self._forget(uid)
        if uid in self._pods.deleted:
            return
        if lease_id not in self._told:
            for known in [each for each in self._told if self._book.get(each) is None]:
                for user, _ in list(self._told[known].values()):
                    self._forget(user)
        self._told.setdefault(lease_id, {})[member] = (uid, asyncio.get_running_loop().time())
        self._place[uid] = (lease_id, member)

    def told(self, lease_id: str, uid: str) -> int | None:
        """Which member of this lease a pod was told that it is."""
        found, member = self._place.get(uid, ("", 0))
        return member if found == lease_id else None

    def _forget(self, uid: str) -> None:
        lease_id, member = self._place.pop(uid, ("", 0))
        told = self._told.get(lease_id, {})
        if member in told and told[member][0] == uid:
            del told[member]
            if not told:
                del self._told[lease_id]

    def _changed(self, before: PodRecord | None, after: PodRecord | None) -> None:
        if before is not None and _is_member(before):
            bound = self._bound.get(before.lease_id, {})
            if bound.get(before.member) == before.uid:
                del bound[before.member]
                if not bound:
                    del self._bound[before.lease_id]
        if after is not None and _is_member(after):
            self._bound.setdefault(after.lease_id, {})[after.member] = after.uid
        if before is not None and (after is None or after.uid != before.uid):
            self._forget(before.uid)
        if after is not None and (after.over or after.node):
            self._forget(after.uid)


def _is_member(pod: PodRecord) -> bool:
    return bool(pod.gang is not None and pod.lease_id and pod.member >= 0 and pod.node and not pod.over)
