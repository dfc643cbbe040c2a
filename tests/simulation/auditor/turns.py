"""Whose turn it is, in queues ordered by slowdown: of equal requests the one that is due first goes first.

Requests are equal if they ask for the same, of the same tenant, queue and priority: whatever keeps one of them from a
place keeps the other from it too. When each is due is computed anew here, from what its record says.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.simulation.auditor.records import Story

if TYPE_CHECKING:
    from tests.simulation.auditor.books import Books

_WEEK_MS = 604_800_000


class Turns:
    """Looks at each grant of a request that has waited."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._specs: dict[str, dict[str, Any]] = {}
        self._waiting: dict[str, tuple[int, Any]] = {}
        """Requests in their first wait: (in which group it began, what they ask for)."""
        self._group = 0
        books.handle({"queue-": self._removed})

    def group(self) -> None:
        """The next group begins."""
        self._group += 1

    def declare(self, spec: dict[str, Any]) -> None:
        """A queue was declared."""
        self._specs[spec["name"]] = spec

    def _removed(self, fact: list[Any]) -> str:
        self._specs.pop(fact[2], None)
        return ""

    def accepted(self, lease_id: str, request: dict[str, Any]) -> None:
        """A request was accepted."""
        asked = json.dumps([request["demand"], request.get("opportunistic", False)], sort_keys=True)
        self._waiting[lease_id] = (self._group, asked)

    def over(self, lease_id: str) -> tuple[int, Any] | None:
        """Its first wait is over."""
        return self._waiting.pop(lease_id, None)

    def granted(self, story: Story) -> str:
        """A request is granted something."""
        waited = self.over(story.lease_id)
        if waited is None or waited[0] == self._group or story.lease_id in self._books.holds:
            return ""  # it comes anew, is moved, or others have made room for it alone
        queue = self._books.money.queue_of(story)
        if self._specs.get(queue, {}).get("policy") != "slowdown" or self._books.windows.by_name:
            return ""
        mine = self._due(story, self._specs[queue])
        for lease_id, (_, asked) in self._waiting.items():
            other = self._books.stories[lease_id]
            if asked != waited[1] or lease_id in self._books.holds or other.priority != story.priority:
                continue
            if (other.tenant, self._books.money.queue_of(other)) != (story.tenant, queue):
                continue
            due = self._due(other, self._specs[queue])
            if due < mine:
                return f"{story.lease_id}, due at {mine}, goes before its equal {lease_id}, due at {due}"
        return ""

    @staticmethod
    def _due(story: Story, spec: dict[str, Any]) -> tuple[int, int]:
        slack = min(8 * story.time_limit_ms, _WEEK_MS) if story.time_limit_ms else _WEEK_MS
        beyond = max(0, min(8, story.members * story.count) - 1)
        slack = slack * (7000 - spec.get("large_first_permille", 500) * beyond) // 7000 if beyond else slack
        return story.queued_ms + slack, story.arrival
