"""What is said of idleness and done about it, checked anew: nobody is ended who was not idle, told, and left alone for
as long as the warning said; what is lent is given back with the first activity, and never more than there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.simulation.auditor.records import Piece, Story

if TYPE_CHECKING:
    from tests.simulation.auditor.books import Books

_HELD, _QUIET = 2, (2, 3, 5)
_ENDING = ("suspend", "release")


@dataclass(slots=True)
class Seen:
    """What the journal says of the use of one lease."""

    state: int = 0
    since_ms: int = 0
    warned: int = 0
    told: int = 0
    told_ms: int = 0
    action: str = ""
    lent: bool = False
    lent_memory: bool = False
    exempt_until_ms: int = 0
    acting: bool = False


class Use:
    """Facts about use. Each method returns what is wrong with one, empty when nothing is."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self.seen: dict[str, Seen] = {}
        self._borrowers: dict[str, dict[str, Piece]] = {}
        """Lender's slice -> the slices held on it."""
        self.loans = 0
        books.handle(
            {
                "use": self._use,
                "idle!": self._warned,
                "idletold": self._told,
                "idleact": self._acts,
                "lent+": self._lent,
                "lent-": self._recalled,
                "exempt": self._exempt,
            }
        )

    def _of(self, lease_id: str) -> Seen:
        self._books.changing(lease_id)
        return self.seen.setdefault(lease_id, Seen())

    def _use(self, fact: list[Any]) -> str:
        lease_id, state, since_ms = fact[2:5]
        seen = self._of(lease_id)
        story = self._books.stories[lease_id]
        seen.state, seen.since_ms = state, since_ms
        if state not in _QUIET:
            seen.warned = seen.told = 0
            return ""
        if not story.active or story.ending:
            return f"{lease_id} is said to do nothing while it is {story.ending or 'not active'}"
        unseen = [piece.slice_id for piece in story.pieces.values() if piece.unreachable]
        if unseen:
            return f"{lease_id} is said to do nothing, but nobody sees {unseen[0]}"
        return ""

    def _warned(self, fact: list[Any]) -> str:
        lease_id, number, action = fact[2], fact[3], fact[5]
        seen = self._of(lease_id)
        if seen.state not in _QUIET:
            return f"{lease_id} is warned although it does something, as far as is known"
        if number != seen.warned + 1:
            return f"warning {number} of {lease_id} after {seen.warned}"
        if seen.exempt_until_ms > fact[1]:
            return f"{lease_id} is warned although it is exempt"
        seen.warned, seen.action = number, action
        return ""

    def _told(self, fact: list[Any]) -> str:
        seen = self._of(fact[2])
        if not seen.told < fact[3] <= seen.warned:
            return f"{fact[2]} was told of warning {fact[3]} of {seen.warned}"
        seen.told, seen.told_ms = fact[3], fact[1]
        return ""

    def _acts(self, fact: list[Any]) -> str:
        lease_id, action, idle_ms = fact[2:5]
        seen = self._of(lease_id)
        seen.acting = True
        if seen.state not in _QUIET:
            return f"{lease_id} is to end for idleness, but does something as far as is known"
        if not seen.told or seen.told < seen.warned:
            return f"{lease_id} is to end for idleness, and nobody was told"
        if seen.exempt_until_ms > fact[1]:
            return f"{lease_id} is to end for idleness although it is exempt"
        if action not in _ENDING or idle_ms > fact[1] - seen.since_ms:
            return f"{lease_id} is to {action} after {idle_ms} ms, of {fact[1] - seen.since_ms}"
        return ""

    def _lent(self, fact: list[Any]) -> str:
        seen = self._of(fact[2])
        if seen.state not in _QUIET or seen.lent:
            return f"{fact[2]} is lent in state {seen.state}"
        if fact[3] and seen.state != _HELD:
            return f"the memory of {fact[2]} is lent, and programs of it are there"
        seen.lent, seen.lent_memory = True, fact[3]
        return ""

    def _recalled(self, fact: list[Any]) -> str:
        seen = self._of(fact[2])
        seen.lent = seen.lent_memory = False
        return ""

    def _exempt(self, fact: list[Any]) -> str:
        seen = self._of(fact[2])
        seen.exempt_until_ms, seen.warned, seen.told = fact[3], 0, 0
        return ""

    def ending(self, story: Story, reason: str) -> str:
        """It is decided that a lease ends, and why."""
        seen = self.seen.get(story.lease_id)
        if reason == "IDLE" and (seen is None or not seen.acting) and story.ending != "IDLE":
            return f"{story.lease_id} ends for idleness, which was not announced"
        if seen is not None:
            self.seen[story.lease_id] = Seen(exempt_until_ms=seen.exempt_until_ms)
        return ""

    # -- loans

    def borrows(self, piece: Piece) -> str:
        """A slice is placed on another one."""
        lender = self._piece(piece.lender)
        if lender is None:
            return f"{piece.slice_id} uses the share of {piece.lender}, which holds nothing"
        seen = self.seen.get(lender.lease_id, Seen())
        if not seen.lent or (piece.lender_memory and not seen.lent_memory):
            return f"{piece.slice_id} uses what {lender.lease_id} has not lent"
        if lender.uuid != piece.uuid:
            return f"{piece.slice_id} is on {piece.uuid}, its lender on {lender.uuid}"
        others = self._borrowers.setdefault(lender.slice_id, {})
        others[piece.slice_id] = piece
        self.loans += 1
        share = sum(other.share for other in others.values())
        memory = sum(other.memory for other in others.values() if other.lender_memory)
        if share > lender.share or memory > lender.memory:
            return f"more of {lender.slice_id} is used by others than it has"
        return ""

    def borrowers_of(self, slice_id: str) -> list[str]:
        """The slices held on one."""
        return list(self._borrowers.get(slice_id, ()))

    def freed(self, piece: Piece) -> None:
        """A slice holds nothing any more: whoever was on it holds its own now."""
        if piece.lender:
            self._borrowers.get(piece.lender, {}).pop(piece.slice_id, None)
        for other in self._borrowers.pop(piece.slice_id, {}).values():
            card = self._books.cards[other.uuid]
            card.share += other.share
            card.memory += other.memory if other.lender_memory else 0
            other.lender, other.lender_memory = "", False

    def whole(self) -> str:
        """Between two groups: who uses a share that is not lent any more is on its way."""
        for lender_slice, others in self._borrowers.items():
            lender = self._piece(lender_slice)
            if lender is None or self._books.stories[lender.lease_id].ending:
                continue
            if self.seen.get(lender.lease_id, Seen()).lent:
                continue
            staying = [other for other in others.values() if not other.ending]
            if staying:
                return f"{staying[0].slice_id} keeps the share of {lender.lease_id}, which wants it back"
        active = [lease_id for lease_id, seen in self.seen.items() if seen.lent and seen.state not in _QUIET]
        return f"{active[0]} does something, and its share is lent" if active else ""

    def _piece(self, slice_id: str) -> Piece | None:
        story = self._books.stories.get(slice_id.partition(".")[0])
        return story.pieces.get(slice_id) if story is not None else None
