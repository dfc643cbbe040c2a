"""Whose queue is it? Nobody waits in a queue that was declared for others, or gives it to a tenant below its own."""

from __future__ import annotations

from typing import Any

from tests.simulation.auditor.records import Story, above

_DEFAULT, _ROOT = "default", "root"


class Owning:
    """What is declared of tenants and queues, and a look at each request when it is accepted."""

    def __init__(self) -> None:
        self._own: dict[str, str] = {}
        """Every declared tenant -> the queue that was declared as its own; empty: none."""
        self._queues: dict[str, dict[str, Any]] = {}

    def declare_tenant(self, name: str, spec: dict[str, Any]) -> str:
        """A tenant was declared."""
        self._own[name] = own = spec.get("default_queue", "")
        known = [tenant for tenant in above(name) if tenant != name and tenant in self._own]
        listed = self._queues.get(own, {}).get("tenants", ())
        if own and known and name not in listed and (why := self._why_not(known[0], own, below=known[0])):
            return f"{name} is given queue {own}, but {why}"
        return ""

    def remove_tenant(self, name: str) -> None:
        """A tenant was removed."""
        self._own.pop(name, None)

    def declare_queue(self, name: str, spec: dict[str, Any] | None) -> None:
        """A queue was declared, or removed."""
        if spec is None:
            self._queues.pop(name, None)
        else:
            self._queues[name] = spec

    def accepted(self, story: Story) -> str:
        """A request was accepted."""
        why = self._why_not(story.tenant, story.queue or self._own.get(story.tenant) or _DEFAULT)
        return f"{story.lease_id} is accepted, but {why}" if why else ""

    def _why_not(self, tenant: str, queue: str, below: str = "") -> str:
        """Why a queue is not a tenant's; claims of tenants below `below` do not count."""
        listed = self._queues.get(queue, {}).get("tenants")
        if listed:
            return "" if tenant in listed else f"queue {queue} is for {listed}, not for {tenant}"
        path = [queue]
        while path[-1] in self._queues and path[-1] != _ROOT:
            path.append(self._queues[path[-1]].get("parent", _ROOT))
        line = list(above(tenant))
        for name in path:
            claims = [each for each, own in self._own.items() if own == name]
            owners = self._queues.get(name, {}).get("tenants") or [
                each for each in claims if not (below and each.startswith(f"{below}/"))
            ]
            if owners:
                return "" if set(owners) & set(line) else f"queue {queue} is of {owners}, not of {tenant}"
        own = next((own for each in line if (own := self._own.get(each))), "")
        return f"queue {queue} is not below {tenant}'s own, {own}" if own and own not in path else ""
