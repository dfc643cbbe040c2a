"""Time limits: nothing ends for one before it is over, and none is made longer over what others were promised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.auditor.records import Story

if TYPE_CHECKING:
    from tests.simulation.auditor.books import Books


class Limits:
    """Facts about time limits. Each method returns what is wrong with one, empty when nothing is."""

    def __init__(self, books: Books) -> None:
        self._books = books
        books.handle({"extended": self._extended})

    def _extended(self, fact: list[Any]) -> str:
        story, limit_ms = self._books.changing(fact[2]), fact[3]
        if story.ended or story.ending:
            return f"{story.lease_id} is extended although it ends"
        if not 0 < story.time_limit_ms < limit_ms:
            return f"the time limit of {story.lease_id} becomes {limit_ms} ms after {story.time_limit_ms}"
        ends_ms, before_ms = story.granted_ms + limit_ms, story.granted_ms + story.time_limit_ms
        story.time_limit_ms = limit_ms
        for piece in story.pieces.values() if story.current else ():
            start_ms = self._books.promised_ms(piece.uuid)
            if before_ms <= start_ms < ends_ms:
                return f"{story.lease_id} is extended over the time at which {piece.uuid} is kept for another"
        return ""

    def ending(self, story: Story, reason: str, at_ms: int) -> str:
        """It is decided that a lease ends, and why."""
        if reason == "TIME_LIMIT" and at_ms < story.granted_ms + story.time_limit_ms:
            early_ms = story.granted_ms + story.time_limit_ms - at_ms
            return f"{story.lease_id} ends for its time limit {early_ms} ms before that is over"
        return ""
