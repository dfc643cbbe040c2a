"""Which place among several? Where queues or pools name a policy, requests go where that policy puts them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.auditor.records import READY, Machine, Story

if TYPE_CHECKING:
    from tests.simulation.auditor.books import Books

_PLAIN = frozenset(("share_milli", "memory_bytes", "models", "single_on", "apart", "pool", "placement"))
"""What a request may say so that every device of its pool with room for it will do."""
_KINDS = {"training": "binpack", "inference": "spread", "serving": "spread"}


class Placing:
    """What queues and pools say, and a look at parts of devices as they are granted."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._queues: dict[str, dict[str, Any]] = {}
        self._pools: dict[str, str] = {}
        self._by: dict[str, tuple[str, str, int, int]] = {}
        """Lease -> (policy, pool, share, bytes), of those that this is about."""
        books.handle({"pool": self._pool, "pool-": self._pool_removed})

    def declare_queue(self, name: str, spec: dict[str, Any]) -> None:
        """A queue was declared, or (empty) removed."""
        self._queues[name] = spec

    def _pool(self, fact: list[Any]) -> str:
        self._pools[fact[2]["name"]] = fact[2].get("placement", "")
        return ""

    def _pool_removed(self, fact: list[Any]) -> str:
        self._pools.pop(fact[2], None)
        return ""

    def accepted(self, story: Story, request: dict[str, Any], queue: str) -> None:
        """A request was accepted."""
        demand = request["demand"]
        said = pool = ""
        while queue in self._queues:
            spec = self._queues[queue]
            said, pool = said or spec.get("placement", ""), pool or spec.get("pool", "")
            queue = spec.get("parent", "root") if queue != "root" else ""
        pool = demand.get("pool", pool)
        said = said or self._pools.get(pool, "")
        if said == "workload":
            said = _KINDS.get(dict(request.get("labels", ())).get("workload-type", ""), "")
        if said in ("spread", "binpack") and demand.keys() <= _PLAIN and demand.get("share_milli", 0) in range(1, 1000):
            self._by[story.lease_id] = said, pool, demand["share_milli"], demand.get("memory_bytes", 0)

    def granted(self, story: Story, slices: list[Any]) -> str:
        """One is about to hold its place."""
        said, pool, share, memory = self._by.get(story.lease_id, ("", "", 0, 0))
        if not said or story.epoch > 1:  # later grants avoid what has failed
            return ""
        chosen = slices[0][2]
        books = self._books
        if said == "binpack":
            fullest = max(books.cards[uuid].share for _, uuid in self._room(pool, share, memory))
            if books.cards[chosen["device_uuid"]].share < fullest:
                return f"{story.lease_id} is to be packed, and not on the fullest device that has room"
        else:
            emptiest = min(self._used(machine) for machine, _ in self._room(pool, share, memory))
            if self._used(books.machines[chosen["node_id"]]) > emptiest:
                return f"{story.lease_id} is to be spread, and not on the emptiest node that has room"
        return ""

    def _room(self, pool: str, share: int, memory: int) -> list[tuple[Machine, str]]:
        books = self._books
        return [
            (machine, uuid)
            for machine in books.machines.values()
            if machine.state == READY and not machine.cordoned and machine.pool == (pool or machine.pool)
            for uuid, leasable in machine.devices.items()
            if (card := books.cards[uuid]).healthy
            and card.share + share <= books.compute[uuid]
            and card.memory + max(memory, leasable * share // 1000) <= leasable - card.foreign
            and not books.is_kept(uuid)
            and not books.health.restricted(uuid)
        ]

    def _used(self, machine: Machine) -> int:
        """In thousandths of the node."""
        shares = [self._books.cards[uuid].share for uuid in machine.devices]
        return sum(shares) // max(1, len(shares))
