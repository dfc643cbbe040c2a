"""Who is told to go for a request of higher priority: no more than it takes, the cheapest, and within what their tenant
bears. What would do is computed anew from what each device holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tests.simulation.auditor.records import ACTIVE, GRANTED, READY, Piece, Story

if TYPE_CHECKING:
    from tests.simulation.auditor.books import Books

PLAIN = frozenset(("count", "share_milli", "memory_bytes", "models", "gang_size", "single_on", "placement"))
"""What a request may say and still fit wherever its device has room."""
AN_HOUR_MS = 3_600_000
LOOKED_AT_MAX = 16
"""In pools of more nodes not every one is looked at for each choice (decision 0024), so a cheaper one may be missed."""
Wanted = dict[str, list[int]]
"""Device -> share and bytes of it."""


class Victims:
    """Judges each choice once the devices that it makes room on are known."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self._bounds: dict[str, tuple[int, int]] = {}
        """Tenant -> how many preemptions within how long."""
        self._disturbed: dict[str, list[int]] = {}
        self._chosen: tuple[str, tuple[str, ...], bool, int] | None = None
        """For whom, whose, whether a guarantee is reclaimed, and when."""

    def declare(self, tenant: str, spec: dict[str, Any]) -> None:
        """A tenant was declared."""
        self._bounds[tenant] = spec.get("disruptions_max", 0), spec.get("disruption_period_ms", AN_HOUR_MS)

    def chosen(self, owner: Story, victims: list[Story], *, reclaim: bool, at_ms: int) -> str:
        """A preemption begins."""
        self._chosen = owner.lease_id, tuple(victim.lease_id for victim in victims), reclaim, at_ms
        if reclaim:
            return ""
        for victim in victims:
            if at_ms < victim.granted_ms + victim.min_run_ms:
                return f"{victim.lease_id} is preempted before it has run for {victim.min_run_ms} ms"
        for tenant in sorted({victim.tenant for victim in victims}):
            most, within_ms = self._bounds.get(tenant, (0, AN_HOUR_MS))
            if not most:
                continue
            known = [moment for moment in self._disturbed.get(tenant, ()) if moment > at_ms - within_ms]
            fresh = sum(victim.tenant == tenant for victim in victims)
            self._disturbed[tenant] = known + [at_ms] * fresh
            if len(known) + fresh > most:
                return f"{tenant} bears {most} preemptions in {within_ms} ms, not {len(known) + fresh}"
        return ""

    def placed(self, owner: Story, members: list[list[dict[str, Any]]]) -> str:
        """The devices that are kept for whom it is for."""
        chosen, self._chosen = self._chosen, None
        if chosen is None or chosen[0] != owner.lease_id or not chosen[1]:
            return ""
        victims = [self._books.stories[lease_id] for lease_id in chosen[1]]
        wanted: Wanted = {}
        for plan in (plan for member in members for plan in member):
            sums = wanted.setdefault(plan["device_uuid"], [0, 0])
            sums[0] += plan["share_milli"]
            sums[1] += plan["memory_bytes"]
        if chosen[2]:
            promise = self._books.quotas.guaranteed(owner.tenant)
            asked = [sum(sums[number] for sums in wanted.values()) for number in (0, 1)]
            if not any(promise) or any(0 < most < much for most, much in zip(promise, asked, strict=True)):
                return f"{owner.lease_id} reclaims {asked}, but {owner.tenant} is promised {promise}"
        if not (owner.cpu_milli or owner.host_memory or owner.max_per_node):
            for victim in victims:
                others = [other for other in victims if other is not victim]
                if all(self._fits(uuid, sums, others) for uuid, sums in wanted.items()):
                    return f"{victim.lease_id} is preempted for {owner.lease_id}, which has room without that"
        everywhere = len(self._books.machines) <= LOOKED_AT_MAX
        if everywhere and not chosen[2] and owner.plain and owner.members == owner.count == 1 and not owner.epoch:
            return self._cheaper(owner, victims, wanted, chosen[3])
        return ""

    def _cheaper(self, owner: Story, victims: list[Story], wanted: Wanted, at_ms: int) -> str:
        """One lease whose end would have done, if it is fewer or would lose less work."""
        ((uuid, sums),) = wanted.items()
        cost = len(victims), sum(_lost(victim, at_ms) for victim in victims)
        for other in self._like(uuid):
            for lease_id in sorted(self._on(other)):
                story = self._books.stories[lease_id]
                if self._may_end(story, owner, victims, at_ms) and self._fits(other, sums, [story]):
                    alone = 1, _lost(story, at_ms)
                    if alone < cost:
                        return f"{cost} is lost for {owner.lease_id}, where the end of {lease_id} costs {alone}"
        return ""

    def _like(self, uuid: str) -> Iterator[str]:
        """Devices of the same model and kind (a card's only MIG instance has all of its compute, but is none of the
        whole cards) that anybody may be placed on.
        """
        books = self._books
        for machine in books.machines.values():
            if machine.state != READY or machine.cordoned or books.windows.closed(machine):
                continue
            for other in machine.devices:
                same = books.models[other] == books.models[uuid] and books.compute[other] == books.compute[uuid]
                same = same and other.startswith("MIG-") == uuid.startswith("MIG-")
                usable = books.cards[other].healthy and not books.cuts.goes(other)
                if same and usable and not (books.is_kept(other) or books.health.restricted(other)):
                    yield other

    def _on(self, uuid: str) -> set[str]:
        return {piece.lease_id for piece in self._pieces(uuid)}

    def _pieces(self, uuid: str) -> list[Piece]:
        machines = self._books.machines.values()
        machine = next(machine for machine in machines if uuid in machine.devices)
        return [piece for piece in machine.pieces.values() if piece.uuid == uuid]

    def _may_end(self, story: Story, owner: Story, victims: list[Story], at_ms: int) -> bool:
        if not story.preemptible or story.priority >= owner.priority or story.ending or story.ended:
            return False
        if any(piece.state not in (GRANTED, ACTIVE) or piece.unreachable for piece in story.pieces.values()):
            return False
        if not self._bears_one(story.tenant, victims, at_ms) or story.preempted_ms or story.elastic:
            return False
        ran = at_ms >= story.granted_ms + story.min_run_ms
        return ran and not self._books.quotas.promises_anything(story)

    def _bears_one(self, tenant: str, victims: list[Story], at_ms: int) -> bool:
        """Whether one lease of the tenant might have been chosen instead of all of these."""
        most, within_ms = self._bounds.get(tenant, (0, AN_HOUR_MS))
        known = sum(moment > at_ms - within_ms for moment in self._disturbed.get(tenant, ()))
        return not most or known - sum(victim.tenant == tenant for victim in victims) < most

    def _fits(self, uuid: str, sums: list[int], ended: list[Story]) -> bool:
        """Whether so much is free once these have ended."""
        books, card = self._books, self._books.cards[uuid]
        machine = next(machine for machine in books.machines.values() if uuid in machine.devices)
        share, memory = books.compute[uuid] - card.share, machine.devices[uuid] - card.foreign - card.memory
        for story in ended:
            for piece in story.pieces.values():
                if piece.uuid == uuid:
                    share, memory = share + piece.own_share, memory + piece.own_memory
        return sums[0] <= share and sums[1] <= memory


def _lost(story: Story, at_ms: int) -> int:
    """Work, in thousandths of a device times milliseconds."""
    share = sum(piece.share for piece in story.pieces.values())
    return share * (at_ms - (story.active_ms or story.granted_ms))
