"""What tenants are held to because leases of them ended as OVER_LIMIT: counted anew from those ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.auditor.records import Story

if TYPE_CHECKING:
    from tests.simulation.auditor.books import Books

_WHOLE = 1000
_DRIVER = 5
_UNKNOWN = -1
_AN_HOUR_MS = 3_600_000


class Offences:
    """Every end since a policy holds for its tenant, until it is forgotten."""

    def __init__(self, books: Books) -> None:
        self._policies: dict[str, dict[str, Any]] = {}
        self._ends_ms: dict[str, list[int]] = {}
        self._tiers: dict[str, int] = {}
        """What each device's agent can give at best."""
        self.held_back = 0
        """Grants that were looked at while something was held against their tenant."""
        books.handle({"offences-": self._forgotten})

    def declare(self, tenant: str, spec: dict[str, Any]) -> None:
        """A tenant was declared."""
        self._policies[tenant] = spec.get("on_over_limit") or {}

    def described(self, spec: dict[str, Any]) -> None:
        """A node was."""
        for device in spec["devices"]:
            own = device.get("best_tier", _UNKNOWN)
            self._tiers[device["uuid"]] = own if own != _UNKNOWN else spec.get("best_tier", _UNKNOWN)

    def ending(self, story: Story, reason: str, at_ms: int) -> None:
        """It is decided that a lease ends, and why."""
        if reason == "OVER_LIMIT" and story.ending != reason and self._action(story.tenant) != "none":
            self._ends_ms.setdefault(story.tenant, []).append(at_ms)

    def _action(self, tenant: str) -> str:
        return str(self._policies.get(tenant, {}).get("action", "none"))

    def _holds(self, tenant: str, at_ms: int) -> str:
        """The action that holds now; empty: none."""
        policy = self._policies.get(tenant, {})
        since_ms = at_ms - policy.get("for_ms", _AN_HOUR_MS)
        counted = sum(end_ms > since_ms for end_ms in self._ends_ms.get(tenant, ()))
        return self._action(tenant) if counted >= policy.get("after", 1) else ""

    def accepted(self, story: Story, at_ms: int) -> str:
        """A request was accepted."""
        if self._holds(story.tenant, at_ms) == "refuse":
            return f"{story.lease_id} is accepted although its tenant {story.tenant} is refused"
        return ""

    def granted(self, story: Story, uuid: str, share: int, at_ms: int) -> str:
        """A slice was."""
        holds = self._holds(story.tenant, at_ms)
        self.held_back += bool(holds)
        if holds == "refuse":
            return f"{story.tenant} is granted something although it is refused"
        if holds == "stronger_tier" and 0 < share < _WHOLE:
            least, tier = self._policies[story.tenant].get("min_tier", _DRIVER), self._tiers[uuid]
            if 0 < tier < least:
                return f"{story.tenant} is granted {share} milli at tier {tier}, but is held to {least}"
        return ""

    def _forgotten(self, fact: list[Any]) -> str:
        tenant, up_to_ms, forgiven = fact[2:5]
        policy = self._policies.get(tenant, {})
        lasts_ms = policy.get("for_ms", _AN_HOUR_MS) if self._action(tenant) != "none" else 0
        known = self._ends_ms.get(tenant, [])
        self._ends_ms[tenant] = [end_ms for end_ms in known if end_ms > up_to_ms]
        if not forgiven and up_to_ms + lasts_ms > fact[1]:
            return f"what {tenant} did at {up_to_ms} is forgotten before it has counted for {lasts_ms} ms"
        return ""
