"""What the journal's bytes say: leases, slices, nodes and devices, re-derived fact by fact and checked as they come.

Facts are read as plain lists, by position. Nothing here knows the production State; that is the point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from tests.simulation.auditor.budgets import Budgets
from tests.simulation.auditor.cards import Cards
from tests.simulation.auditor.ceilings import Ceilings
from tests.simulation.auditor.energy import Energy
from tests.simulation.auditor.health import Health
from tests.simulation.auditor.holds import Holds
from tests.simulation.auditor.inventory import Inventory
from tests.simulation.auditor.limits import Limits
from tests.simulation.auditor.money import Money
from tests.simulation.auditor.moves import Moves
from tests.simulation.auditor.offences import Offences
from tests.simulation.auditor.owning import Owning
from tests.simulation.auditor.placing import Placing
from tests.simulation.auditor.quotas import Quotas
from tests.simulation.auditor.records import (
    ACTIVE,
    CALLERS_FACTS,
    DECLARED,
    DECLARED_FACTS,
    GRANTED,
    LOST,
    NOTICED,
    PREEMPTING,
    READY,
    RELEASING,
    Card,
    Machine,
    Piece,
    Story,
)
from tests.simulation.auditor.shapes import Shapes
from tests.simulation.auditor.supply import Supply
from tests.simulation.auditor.turns import Turns
from tests.simulation.auditor.use import Use
from tests.simulation.auditor.victims import PLAIN, Victims
from tests.simulation.auditor.windows import Windows

RETAIN_MS = 60_000
"""What has ended can be asked for so long: as the simulated coordinators are told."""


class Books:
    """See the module's docstring. `apply` returns what is wrong with a fact, empty when nothing is."""

    def __init__(self) -> None:
        self.seq = 0
        self.at_ms = 0
        self.leader = 0
        self.next_arrival = 0
        self.stories: dict[str, Story] = {}
        self.keys: dict[tuple[str, str], str] = {}
        self.machines: dict[str, Machine] = {}
        self.cards: dict[str, Card] = {}
        self.models: dict[str, str] = {}
        """Of every device that there ever was."""
        self.compute: dict[str, int] = {}
        """What each of them has of its card's compute, in thousandths."""
        self.granted_ever: dict[str, tuple[str, str, int, int]] = {}
        """Slice id -> (node, device, share, memory): every slice there ever was."""
        self.ends: list[tuple[int, str]] = []
        """(fact, lease): every end there was."""
        self.tenants: dict[str, str] = {}
        """Of every lease there ever was."""
        self.changed: set[str] = set()
        self.waiting = 0
        self.living = 0
        self.confirmed: Callable[[str, str, str], bool] = lambda node_id, slice_id, what: True
        """Whether the agent of the current session said so."""
        self.freed: Callable[[Piece], str] = lambda piece: ""
        """What is wrong with a slice's capacity being free now, on the machine itself."""
        self.expired: Callable[[Story], str] = lambda story: ""
        self.forced: set[str] = set()
        """Nodes that this group removes, and devices that a node described in this group no longer has."""
        self._vanished: set[str] = set()
        self._stopped: set[str] = set()
        """Leases of which single slices are told to go in this group."""
        self._moving: set[str] = set()
        """Leases that give up all their places in this group, and must have others at its end."""
        self._apply: dict[str, Callable[[list[Any]], str]] = {
            "leader": self._leader,
            "queued": self._queued,
            "granted": self._granted,
            "active": self._active,
            "failed": self._failed,
            "gone": self._gone,
            "adopted": self._adopted,
            "releasing": self._releasing,
            "sreleasing": self._sreleasing,
            "requeued": self._requeued,
            "ended": self._ended,
            "forgotten": self._forgotten,
        }
        for declared in (*DECLARED_FACTS, *CALLERS_FACTS):
            self._apply[declared] = lambda fact: ""
        self.health = Health(self)
        self.inventory = Inventory(self)
        self._shapes = Shapes(self)
        self.victims = Victims(self)
        self._holds = Holds(self)
        self.money = Money(self)
        self.quotas = Quotas(self)
        self.budgets = Budgets(self)
        self.offences = Offences(self)
        self.ceilings = Ceilings(self)
        self.owning = Owning()
        self.cuts = Cards(self)
        self.windows = Windows(self)
        self.use = Use(self)
        self.energy = Energy(self)
        self.supply = Supply(self)
        self.limits = Limits(self)
        self.placing = Placing(self)
        self.turns = Turns(self)
        self._moves = Moves()
        self.holds = self._holds.by_owner

    def handle(self, handlers: dict[str, Callable[[list[Any]], str]]) -> None:
        """Let another part apply these kinds of facts."""
        self._apply.update(handlers)

    def group(self, facts: list[list[Any]]) -> list[str]:
        """Apply one durable group."""
        self.forced = {fact[2] for fact in facts if fact[0] == "nremove"}
        self._vanished = set()
        self._stopped.clear()
        self._moving.clear()
        self._shapes.group()
        self.turns.group()
        for fact in facts:
            if fact[0] == "node" and fact[2]["node_id"] in self.machines:
                described = {device["uuid"] for device in fact[2]["devices"]}
                self._vanished |= self.machines[fact[2]["node_id"]].devices.keys() - described
        found = []
        for fact in facts:
            self.seq += 1
            if fact[1] < self.at_ms:
                found.append(f"time went back from {self.at_ms} to {fact[1]} at fact {self.seq}")
            self.at_ms = fact[1]
            apply = self._apply.get(fact[0])
            try:
                wrong = f"a kind of fact that the auditor does not know: {fact[0]}" if apply is None else apply(fact)
            except Exception as error:  # noqa: BLE001 - else a fact about what is not there would look like a failed disk
                wrong = f"it can't be: {error!r}"
            if wrong:
                found.append(f"fact {self.seq} {fact[:4]}: {wrong}")
        for lease_id in self.changed:
            story = self.stories.get(lease_id)
            if story is not None:
                story.last_seq = self.seq
                wrong = self._whole(story)
                if wrong:
                    found.append(f"after fact {self.seq}: {wrong}")
        self.changed.clear()
        if self.use.seen and (wrong := self.use.whole()):
            found.append(f"after fact {self.seq}: {wrong}")
        return found

    def _whole(self, story: Story) -> str:
        """Between two groups a grant is whole, or being given up; holds are for who waits."""
        if story.lease_id in self.holds and (story.ended or story.current):
            return f"{story.lease_id} has a hold, but does not wait"
        if story.lease_id in self._moving and not (story.current or story.ended):
            return f"{story.lease_id} is moved, but has no place to go to"
        if story.current and not story.ending and story.size > story.most:
            return f"{story.lease_id} goes on with {story.size} members, of which it can use {story.most}"
        if story.ended:
            return f"{story.lease_id} has ended and holds {len(story.pieces)} slices" if story.pieces else ""
        if story.current and not story.ending:
            now = [piece for piece in story.pieces.values() if piece.epoch == story.epoch and not piece.shed]
            if len(now) != story.size * story.count:
                return f"{story.lease_id} holds {len(now)} of {story.size}x{story.count} slices and goes on"
        if story.ending and not story.pieces:
            return f"{story.lease_id} is ending, holds nothing, and has not ended"
        return ""

    def is_kept(self, uuid: str) -> bool:
        """Whether a device is kept for somebody."""
        return self._holds.is_kept(uuid)

    def changing(self, lease_id: str) -> Story:
        """A lease that is looked at again when the group has been applied."""
        self.changed.add(lease_id)
        return self.stories[lease_id]

    # -- coordinators

    def _leader(self, fact: list[Any]) -> str:
        if fact[2] <= self.leader:
            return f"leader epoch {fact[2]} after {self.leader}"
        self.leader = fact[2]
        self.windows.led_since_ms = fact[1]
        return ""

    # -- leases

    def _queued(self, fact: list[Any]) -> str:
        lease_id, arrival, request, key, body = fact[2:7]
        if lease_id in self.stories:
            return f"{lease_id} is accepted twice"
        if arrival <= self.next_arrival:
            return f"arrival {arrival} after {self.next_arrival}"
        self.next_arrival = arrival
        tenant = request["tenant"]
        if key and (tenant, key) in self.keys:
            return f"key {key} of {tenant} is {self.keys[tenant, key]} already"
        if key:
            self.keys[tenant, key] = lease_id
        self.tenants[lease_id] = tenant
        demand = request["demand"]
        members, count = demand.get("gang_size", 1), demand.get("count", 1)
        kept, wanted = request.get("min_count", 0), request.get("max_count", 0)
        self.stories[lease_id] = Story(
            lease_id,
            tenant,
            key,
            body,
            members,
            count,
            request.get("ttl_ms", 60_000),
            arrival,
            fact[1],
            time_limit_ms=request.get("time_limit_ms", 0),
            grace_ms=request.get("grace_ms", 30_000),
            queue=request.get("queue", ""),
            movable=request.get("movable", False),
            apart=demand.get("apart", False) and count == 1,
            placed=request.get("placed", False),
            priority=request.get("priority", 0),
            preemptible=request.get("preemptible", False),
            min_run_ms=request.get("min_run_ms", 0),
            cpu_milli=demand.get("cpu_milli", 0),
            host_memory=demand.get("host_memory_bytes", 0),
            max_per_node=demand.get("max_per_node", 0),
            share=demand.get("share_milli", 0),
            memory=demand.get("memory_bytes", 0),
            plain=demand.keys() <= PLAIN,
            elastic=bool(kept or wanted),
            least=max(1, min(members, -(-kept // count))) if kept else members,
            most=max(members, wanted // count),
        )
        self.waiting += 1
        self.living += 1
        self.changed.add(lease_id)
        self.turns.accepted(lease_id, request)
        story = self.stories[lease_id]
        self.placing.accepted(story, request, self.money.queue_of(story))
        wrong = self.owning.accepted(story) or self.offences.accepted(story, fact[1])
        return wrong or self.ceilings.accepted(story, fact[1])

    def _granted(self, fact: list[Any]) -> str:
        story = self.changing(fact[2])
        epoch, slices = fact[3], fact[4]
        if story.current or story.ending or story.ended:
            return f"{story.lease_id} is granted again while it is {story.ended or story.ending or 'granted'}"
        if epoch <= story.epoch:
            return f"lease epoch {epoch} after {story.epoch}"
        if len(slices) != story.members * story.count:
            return f"{len(slices)} slices for {story.members}x{story.count}"
        if story.placed and story.epoch:
            return f"{story.lease_id} is granted again, which was put on a place"
        if not story.epoch:
            self._moves.started()
        story.epoch, story.current, story.active, story.granted_ms = epoch, True, False, fact[1]
        story.active_ms = 0
        self.waiting -= 1
        self.ceilings.granted(story, fact[1])
        unfair = self.turns.granted(story)
        if unfair:
            return unfair
        self._holds.drop(story.lease_id)
        self._shapes.granted(story, fact[1])
        misplaced = self.placing.granted(story, slices)
        if misplaced:
            return misplaced
        for slice_id, member, plan in slices:
            wrong = self.place(story, slice_id, member, plan, fact[1])
            if wrong:
                return wrong
        return ""

    def promised_ms(self, uuid: str) -> int:
        """When the one for whom a device is reserved is to start there; 0: nobody, or that is not known."""
        return self._holds.start_ms(uuid)

    def place(self, story: Story, slice_id: str, member: int, plan: dict[str, Any], at_ms: int) -> str:
        """A lease holds one slice more."""
        node_id, uuid = plan["node_id"], plan["device_uuid"]
        for other in story.pieces.values():
            if other.epoch != story.epoch:
                continue  # of the form before a move, which gives its places up meanwhile
            if other.member == member:
                if other.node_id != node_id:
                    return f"member {member} spans nodes"
                if other.uuid == uuid:
                    return f"two slices of member {member} on {uuid}"
            elif story.apart and self.health.card_of(other.uuid) == self.health.card_of(uuid):
                return f"member {member} of {story.lease_id} on the card of another"
        share, memory = plan["share_milli"], plan["memory_bytes"]
        piece = Piece(slice_id, story.lease_id, story.epoch, member, node_id, uuid, share, memory)
        piece.lender, piece.lender_memory = plan.get("lender", ""), plan.get("lender_memory", False)
        wrong = self._holds.keep_off(story, piece, at_ms) or self.health.keep_off(story, uuid)
        wrong = wrong or self._take(piece, at_ms) or self._exact(story, piece)
        if wrong:
            return wrong
        story.pieces[slice_id] = piece
        wrong = self.inventory.hosts(self.machines[node_id])
        wrong = (
            wrong
            or self.windows.keep_off(self.machines[node_id], story, at_ms)
            or self.supply.placed(node_id)
            or self.budgets.used_up(story.tenant, at_ms)
            or self.offences.granted(story, uuid, share, at_ms)
        )
        return wrong or self.quotas.hold(story, piece, 1)

    def charge(self, piece: Piece, at_ms: int, *, on: bool) -> None:
        """Begin or end an interval that is charged."""
        if on and piece.charged_from_ms < 0:
            piece.charged_from_ms, piece.charged = at_ms, True
        elif not on and piece.charged_from_ms >= 0:
            self.money.charge(self.stories[piece.lease_id], piece, at_ms)
            piece.charged_from_ms = -1

    def charged_now(self, tenant: str) -> Iterator[tuple[Piece, Story]]:
        """What is being charged to a tenant at this moment."""
        for story in self.stories.values():
            if story.tenant == tenant:
                yield from ((piece, story) for piece in story.pieces.values() if piece.charged_from_ms >= 0)

    def _take(self, piece: Piece, at_ms: int) -> str:
        if piece.slice_id in self.granted_ever:
            return f"{piece.slice_id} is granted twice"
        self.granted_ever[piece.slice_id] = (piece.node_id, piece.uuid, piece.share, piece.memory)
        machine = self.machines.get(piece.node_id)
        if machine is None or piece.uuid not in machine.devices:
            return f"{piece.slice_id} is placed on {piece.uuid}, which {piece.node_id} does not have"
        declared = machine.agentless and machine.state == DECLARED
        if machine.cordoned or not (machine.state == READY or declared):
            return (
                f"{piece.slice_id} is placed on {piece.node_id} in state {machine.state}, cordoned {machine.cordoned}"
            )
        card = self.cards[piece.uuid]
        if not card.healthy:
            return f"{piece.slice_id} is placed on {piece.uuid}, which is unhealthy"
        if piece.share < 1 or piece.memory < 0:
            return f"{piece.slice_id} holds nothing: {piece.share} milli, {piece.memory} bytes"
        piece.model = self.models[piece.uuid]
        if piece.lender and (wrong := self.use.borrows(piece)):
            return wrong
        card.share += piece.own_share
        card.memory += piece.own_memory
        card.pieces += 1
        machine.pieces[piece.slice_id] = piece
        if machine.agentless:
            self.charge(piece, at_ms, on=True)
        if self.cuts.goes(piece.uuid):
            return f"{piece.slice_id} is placed on {piece.uuid}, which is about to be cut away"
        if card.share > self.compute[piece.uuid]:
            return f"{piece.uuid} is over-committed: {card.share} milli"
        if card.memory > machine.devices[piece.uuid] - card.foreign:
            free = machine.devices[piece.uuid] - card.foreign
            return f"{piece.uuid} is over-committed: {card.memory} of {free} bytes"
        return ""

    def _exact(self, story: Story, piece: Piece) -> str:
        """An undivided device gives exactly what was asked for; of a MIG instance, all is held and charged."""
        if piece.uuid.startswith("MIG-"):
            whole = self.compute[piece.uuid]
            if piece.share != whole or piece.memory < story.memory:
                return f"{piece.slice_id} holds {piece.share} milli of {piece.uuid}, which has {whole}"
        elif story.share not in (0, piece.share) or story.memory not in (0, piece.memory):
            asked = f"{story.share} milli and {story.memory} bytes were asked for"
            return f"{piece.slice_id} holds {piece.share} milli and {piece.memory} bytes, where {asked}"
        return ""

    def _free(self, story: Story, piece: Piece, at_ms: int) -> None:
        self.charge(piece, at_ms, on=False)
        card = self.cards[piece.uuid]
        card.share -= piece.own_share
        card.memory -= piece.own_memory
        card.pieces -= 1
        self.use.freed(piece)
        self.quotas.hold(story, piece, -1)
        del story.pieces[piece.slice_id]
        del self.machines[piece.node_id].pieces[piece.slice_id]

    def _active(self, fact: list[Any]) -> str:
        story = self.changing(fact[2])
        piece = story.pieces.get(fact[3])
        if piece is None or piece.state not in (GRANTED, ACTIVE):
            return f"{fact[3]} becomes active from {piece.state if piece else 'nothing'}"
        if not self.confirmed(piece.node_id, piece.slice_id, "ACTIVE"):
            return f"{piece.slice_id} becomes active, which its agent has not said on its current session"
        piece.state, piece.confirmed = ACTIVE, True
        self.charge(piece, fact[1], on=True)
        story.active = all(p.state == ACTIVE for p in story.pieces.values() if p.epoch == story.epoch)
        if story.active and not story.active_ms:
            story.active_ms = fact[1]
        return ""

    def _failed(self, fact: list[Any]) -> str:
        return self._over(fact, failed=True) or self.energy.over(fact[3], fact[6])

    def _gone(self, fact: list[Any]) -> str:
        return self._over(fact, failed=False) or self.energy.over(fact[3], fact[4])

    def _over(self, fact: list[Any], *, failed: bool) -> str:
        story = self.changing(fact[2])
        piece = story.pieces.get(fact[3])
        if piece is None:
            return f"{fact[3]} is over, but holds nothing"
        if failed:
            self._shapes.failed(piece)
        elif not piece.ending and piece.state != NOTICED and piece.node_id not in self.forced:
            return f"{piece.slice_id} is gone although nobody told it to go"
        machine = self.machines[piece.node_id]
        self._free(story, piece, fact[1])
        if piece.uuid in self._vanished:
            return ""  # there is nothing that could be given away before the device is described again
        said = machine.agentless or self.confirmed(piece.node_id, piece.slice_id, "OVER")
        if piece.node_id in self.forced:
            return (
                "" if machine.state in (LOST, DECLARED) else f"{piece.slice_id} is written off a node that is not lost"
            )
        if not said:
            return f"{piece.slice_id} is over, which its agent has not said on its current session"
        return self.freed(piece)

    def _adopted(self, fact: list[Any]) -> str:
        for slice_id in fact[3]:
            story = self.changing(slice_id.partition(".")[0])
            piece = story.pieces.get(slice_id)
            if piece is None or not piece.unreachable:
                return f"{slice_id} is adopted, but was not unreachable"
            piece.unreachable = False
            if piece.charged:
                self.charge(piece, fact[1], on=True)
        return ""

    def _releasing(self, fact: list[Any]) -> str:
        story = self.changing(fact[2])
        reason, requeue = fact[3], fact[6]
        # A lease that would not keep to its limit ends as that, also where it was ending for another reason.
        worse = reason == "OVER_LIMIT" and story.ending != reason
        if story.ended or (story.ending and not story.requeue and not worse):
            return f"{story.lease_id} is ended again"
        if reason == "EXPIRED":
            wrong = self.expired(story)
            if wrong:
                return wrong
        emptied = (self.windows.empties(p.node_id) or self.health.empties(p.uuid) for p in story.pieces.values())
        if reason == "DRAINED" and not any(emptied):
            return f"{story.lease_id} is drained from nodes that are open"
        if not story.current and not story.ending:
            self.waiting -= 1
        self.offences.ending(story, reason, fact[1])
        wrong = self.use.ending(story, reason) or self.limits.ending(story, reason, fact[1])
        story.ending, story.requeue = reason, requeue
        for piece in story.pieces.values():
            piece.shed = False  # all of it ends, so nothing goes on without these
            if piece.state != RELEASING:
                piece.state = PREEMPTING if requeue else RELEASING
        return wrong

    def _sreleasing(self, fact: list[Any]) -> str:
        story = self.changing(fact[2])
        self._stopped.add(story.lease_id)
        for slice_id in fact[3]:
            piece = story.pieces.get(slice_id)
            if piece is None:
                return f"{slice_id} is told to go, but holds nothing"
            piece.state = RELEASING
        return ""

    def _requeued(self, fact: list[Any]) -> str:
        story = self.changing(fact[2])
        if story.ended or not (story.current or story.ending):
            return f"{story.lease_id} goes back to its queue from {story.ended or 'its queue'}"
        left = [p for p in story.pieces.values() if not p.ending]
        if left:
            return f"{story.lease_id} waits again, but {left[0].slice_id} goes on"
        moved = story.lease_id in self._stopped and not fact[4]
        if moved and (not story.movable or story.elastic):
            return f"{story.lease_id} is moved, which it may not be"
        if moved:
            self._moving.add(story.lease_id)
        story.epoch += 1
        story.current, story.active, story.ending, story.requeue = False, False, "", False
        self.waiting += 1
        return self._moves.moved(story.members, fact[3]) if moved else ""

    def _ended(self, fact: list[Any]) -> str:
        story = self.changing(fact[2])
        if story.ended:
            return f"{story.lease_id} ends twice"
        if not story.current and not story.ending:
            self.waiting -= 1
            if fact[3] == "EXPIRED":
                wrong = self.expired(story)
                if wrong:
                    return wrong
        self._holds.drop(story.lease_id)
        self.turns.over(story.lease_id)
        self.offences.ending(story, fact[3], fact[1])
        story.ended, story.ending, story.current, story.ended_ms = fact[3], "", False, fact[1]
        self.living -= 1
        self.ends.append((self.seq, story.lease_id))
        return ""

    def _forgotten(self, fact: list[Any]) -> str:
        for lease_id in fact[2]:
            story = self.stories.pop(lease_id)
            if not story.ended:
                return f"{lease_id} is forgotten while it lives"
            if fact[1] < story.ended_ms + RETAIN_MS:
                return f"{lease_id} is forgotten {fact[1] - story.ended_ms} ms after its end"
            if story.key:
                self.keys.pop((story.tenant, story.key), None)
        return ""
