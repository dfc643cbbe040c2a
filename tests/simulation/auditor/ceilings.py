"""What tenants may ask for at most: priorities, and how many of their requests wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.auditor.records import Story, above

if TYPE_CHECKING:
    from tests.simulation.auditor.books import Books


class Ceilings:
    """Looks at each request when it is accepted, and once it is known whether it waits."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._specs: dict[str, dict[str, Any]] = {}
        self._newcomer: tuple[Story, int, str] | None = None
        """Who was accepted last, when, and what is wrong with it if it is not granted at once."""

    def declare(self, tenant: str, spec: dict[str, Any]) -> None:
        """A tenant was declared."""
        self._specs[tenant] = spec

    def accepted(self, story: Story, at_ms: int) -> str:
        """A request was accepted."""
        newcomer, self._newcomer = self._newcomer, None
        if newcomer is not None and newcomer[2]:
            return newcomer[2]
        wrong = ""
        for tenant in above(story.tenant):
            spec = self._specs.get(tenant, {})
            highest, most = spec.get("priority_max"), spec.get("waiting_max")
            if highest is not None and story.priority > highest:
                return f"{story.lease_id} has priority {story.priority}; {tenant} may ask for {highest} at most"
            if most is not None:
                waiting = sum(self._waits(other, story, tenant) for other in self._books.stories.values())
                if waiting >= most:
                    wrong = f"{story.lease_id} waits with {waiting} of {tenant}, of which at most {most} may"
        self._newcomer = story, at_ms, wrong
        return ""

    def granted(self, story: Story, at_ms: int) -> None:
        """A request was granted; one that was accepted just before has not waited."""
        if self._newcomer is not None and self._newcomer[:2] == (story, at_ms):
            self._newcomer = None

    @staticmethod
    def _waits(other: Story, story: Story, tenant: str) -> bool:
        waits = not (other.current or other.ending or other.ended or other.pieces)
        return waits and other is not story and tenant in above(other.tenant)
