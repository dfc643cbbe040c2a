"""Devices that are kept for somebody, and who is told to go for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.auditor.records import ACTIVE, PREEMPTING, Kept, Piece, Story

if TYPE_CHECKING:
    from tests.simulation.auditor.books import Books

PREEMPTIONS_MAX = 3
PREEMPTION_PERIOD_MS = 60_000
"""A lease is ended at most so often for others within this time: as the simulated coordinators are told."""


class Holds:
    """Facts about holds and preemption. Each method returns what is wrong with one, empty when nothing is."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self.by_owner: dict[str, Kept] = {}
        self._kept_for: dict[str, str] = {}
        """Device -> owner of the hold on it."""
        books.handle(
            {
                "preempt": self._preempt,
                "hold": self._hold,
                "hold-": self._unhold,
                "holdx": self._unhold,
                "reprieve": self._reprieve,
            }
        )

    def keep_off(self, story: Story, piece: Piece, at_ms: int) -> str:
        """On a device that is kept for another, only a lease that is over before may be placed."""
        owner = self._kept_for.get(piece.uuid)
        if owner is None:
            return ""
        hold = self.by_owner[owner]
        if hold.reservation and hold.start_ms and story.time_limit_ms and at_ms + story.time_limit_ms <= hold.start_ms:
            return ""
        return f"{piece.slice_id} is placed on {piece.uuid}, which is kept for {owner}"

    def start_ms(self, uuid: str) -> int:
        """When the one for whom it is reserved is to start; 0: nobody, or that is not known."""
        hold = self.by_owner.get(self._kept_for.get(uuid, ""))
        return hold.start_ms if hold is not None and hold.reservation else 0

    def is_kept(self, uuid: str) -> bool:
        """Whether it is kept for anybody."""
        return uuid in self._kept_for

    def drop(self, owner: str) -> None:
        """Whatever is kept for a lease is not kept any more."""
        hold = self.by_owner.pop(owner, None)
        if hold is not None:
            for uuid in hold.uuids:
                del self._kept_for[uuid]

    def _preempt(self, fact: list[Any]) -> str:
        at_ms, owner, reclaim = fact[1], self._books.stories[fact[2]], fact[5]
        for lease_id in fact[3]:
            victim = self._books.changing(lease_id)
            if not victim.current or (victim.ending and not victim.requeue):
                return f"{lease_id} is preempted, but holds nothing that it could give"
            if not reclaim and not (victim.preemptible and victim.priority < owner.priority):
                return f"{lease_id} of priority {victim.priority} is preempted for one of {owner.priority}"
            if not reclaim and not self._books.quotas.preempts(owner):
                return f"{lease_id} is preempted for {owner.lease_id}, whose queue never preempts"
            if self._books.quotas.covers(victim.tenant):
                return f"{lease_id} is preempted, which the guarantee of {victim.tenant} covers"
            lately = [moment for moment in victim.preempted_ms if moment > at_ms - PREEMPTION_PERIOD_MS]
            if len(lately) >= PREEMPTIONS_MAX and not victim.ending:
                return f"{lease_id} is preempted for the {len(lately) + 1}th time"
            victim.preempted_ms = [*lately, at_ms]
        victims = [self._books.stories[lease_id] for lease_id in fact[3]]
        return self._books.victims.chosen(owner, victims, reclaim=reclaim, at_ms=at_ms)

    def _hold(self, fact: list[Any]) -> str:
        owner, kind, placement, start_ms = fact[2], fact[3], fact[4], fact[7]
        story = self._books.changing(owner)
        if story.current or story.ended or story.ending:
            return f"a hold for {owner}, which does not wait"
        if owner in self.by_owner:
            return f"a second hold for {owner}"
        uuids = frozenset(plan["device_uuid"] for member in placement["members"] for plan in member)
        taken = [uuid for uuid in uuids if uuid in self._kept_for]
        if taken:
            return f"{min(taken)} is kept for {self._kept_for[min(taken)]} already"
        self.by_owner[owner] = Kept(owner, kind == "reservation", uuids, start_ms, tuple(fact[6]))
        for uuid in uuids:
            self._kept_for[uuid] = owner
        return self._books.victims.placed(story, placement["members"])

    def _unhold(self, fact: list[Any]) -> str:
        if fact[2] not in self.by_owner:
            return f"{fact[2]} has no hold that could end"
        self.drop(fact[2])
        return ""

    def _reprieve(self, fact: list[Any]) -> str:
        story = self._books.changing(fact[2])
        if not story.ending or not story.requeue:
            return f"{story.lease_id} is reprieved, but was not on its way to its queue"
        story.ending, story.requeue = "", False
        del story.preempted_ms[-1:]  # it did not happen after all
        for piece in story.pieces.values():
            if piece.epoch == story.epoch:
                if piece.state != PREEMPTING or not piece.confirmed:
                    return f"{piece.slice_id} is reprieved from {piece.state}"
                piece.state = ACTIVE
        return ""
