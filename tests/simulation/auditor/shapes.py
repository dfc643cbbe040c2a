"""How elastic leases may change their shape: by whole members, within bounds, never behind their launcher's back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.auditor.records import ACTIVE, GRANTED, NOTICED, RELEASING, Piece, Story

if TYPE_CHECKING:
    from tests.simulation.auditor.books import Books

ONE_GO_MS = 1_000
"""Members gained within this time are one change."""
REST_MS = 30_000
"""Between two changes that nobody needs."""


class Shapes:
    """Facts that only elastic leases have. Each method returns what is wrong with one, empty when nothing is."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._failed: dict[str, int] = {}
        """Slices that failed in this group, and their members."""
        books.handle({"grown": self._grown, "shed": self._shed, "kept": self._kept, "shapeack": self._acknowledged})

    def group(self) -> None:
        """Another group begins."""
        self._failed.clear()

    def failed(self, piece: Piece) -> None:
        """A slice failed."""
        self._failed[piece.slice_id] = piece.member

    def granted(self, story: Story, at_ms: int) -> None:
        """A grant: whatever was before, it has the shape that it asked for."""
        story.size, story.resized_ms, story.changed_by, story.unacknowledged = story.members, at_ms, "granted", False

    def _goes_on(self, story: Story) -> str:
        if not story.elastic:
            return f"{story.lease_id} is rigid, but changes its shape"
        if not story.current or story.ending or story.ended:
            return f"{story.lease_id} changes its shape, but is {story.ended or story.ending or 'waiting'}"
        return ""

    def _changed(self, story: Story, kind: str, at_ms: int, members: int) -> str:
        story.size += members  # what takes a member's place may come before that goes: `most` holds between groups
        story.changed_by, story.resized_ms, story.unacknowledged = kind, at_ms, True
        if story.size < story.least or (kind != "grown" and story.size > story.most):
            return f"{story.lease_id} goes on with {story.size} members, not with {story.least} to {story.most}"
        return ""

    # -- what it gains

    def _grown(self, fact: list[Any]) -> str:
        story, at_ms = self._books.changing(fact[2]), fact[1]
        going = story.changed_by == "grown" and story.unacknowledged and at_ms <= story.resized_ms + ONE_GO_MS
        wrong = self._goes_on(story) or self._at_peace(story, at_ms, going=going)
        if wrong:
            return wrong
        taken = {piece.member for piece in story.pieces.values() if piece.epoch == story.epoch}
        members: dict[int, int] = {}
        for slice_id, member, plan in fact[3]:
            members[member] = members.get(member, 0) + 1
            wrong = self._books.place(story, slice_id, member, plan, at_ms)
            if wrong:
                return wrong
        if taken & members.keys():
            return f"{story.lease_id} has two members {min(taken & members.keys())}"
        if any(count != story.count for count in members.values()):
            return f"{story.lease_id} grows by parts of members"
        return self._changed(story, "grown", at_ms, len(members))

    def _at_peace(self, story: Story, at_ms: int, *, going: bool) -> str:
        """Only what is there as a whole, known to its launcher and rested may grow."""
        for piece in story.pieces.values():
            confirmed = piece.state == ACTIVE or (piece.state == GRANTED and (going or self._agentless(piece)))
            if piece.shed or piece.unreachable or not confirmed:
                return f"{story.lease_id} grows while {piece.slice_id} is {piece.state}"
        if going:
            return ""
        if story.unacknowledged:
            return f"{story.lease_id} grows, but its launcher has not adapted to its last change"
        if story.changed_by != "granted" and at_ms < story.resized_ms + REST_MS:
            return f"{story.lease_id} grows {at_ms - story.resized_ms} ms after its last change"
        return ""

    def _agentless(self, piece: Piece) -> bool:
        return self._books.machines[piece.node_id].agentless

    # -- what it gives back

    def _shed(self, fact: list[Any]) -> str:
        story, at_ms, deadline_ms, notice = self._books.changing(fact[2]), fact[1], fact[4], fact[6]
        wrong = self._goes_on(story)
        if wrong:
            return wrong
        pieces = [story.pieces[slice_id] for slice_id in fact[3] if slice_id in story.pieces]
        lost = {self._failed[slice_id] for slice_id in fact[3] if slice_id in self._failed}
        if len(pieces) + sum(slice_id in self._failed for slice_id in fact[3]) < len(fact[3]):
            return f"{story.lease_id} gives back what it does not hold: {fact[3]}"
        unconfirmed = {piece.member for piece in pieces if piece.state == GRANTED and not self._agentless(piece)}
        fresh = {piece.member for piece in pieces if not piece.shed} | lost
        for piece in pieces:
            if not notice and piece.member not in lost | unconfirmed:
                early = piece.state == NOTICED and at_ms < piece.deadline_ms and story.unacknowledged
                removed = piece.node_id in self._books.forced
                if early or (piece.state in (GRANTED, ACTIVE) and not removed):
                    return f"{piece.slice_id} is stopped without notice, or before it is over"
            self._leave(piece, deadline_ms, notice=notice)
        return self._changed(story, "shed", at_ms, -len(fresh)) if fresh else ""

    def _leave(self, piece: Piece, deadline_ms: int, *, notice: bool) -> None:
        piece.shed = True
        known = piece.state == ACTIVE or (piece.state == GRANTED and self._agentless(piece))
        if notice and known:
            piece.state, piece.deadline_ms = NOTICED, deadline_ms
        elif not notice or piece.state == GRANTED:
            piece.state = RELEASING

    def _kept(self, fact: list[Any]) -> str:
        story = self._books.changing(fact[2])
        wrong = self._goes_on(story)
        if wrong:
            return wrong
        members = set()
        for slice_id in fact[3]:
            piece = story.pieces.get(slice_id)
            if piece is None or piece.state != NOTICED:
                return f"{slice_id} is kept, but is {piece.state if piece is not None else 'gone'}"
            piece.state, piece.shed = ACTIVE, False
            members.add(piece.member)
        return self._changed(story, "kept", fact[1], len(members))

    def _acknowledged(self, fact: list[Any]) -> str:
        story = self._books.stories[fact[2]]
        if not story.unacknowledged:
            return f"{story.lease_id} has nothing that could be acknowledged"
        story.unacknowledged = False
        return ""
