"""What nodes and devices there are, as the journal has them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.simulation.auditor.records import DECLARED, LOST, READY, RECONCILING, SUSPECT, Card, Machine

if TYPE_CHECKING:
    from tests.simulation.auditor.books import Books

WHOLE = 1000
"""Thousandths of a device's compute, where it does not say how much it has of its card's."""


class Inventory:
    """Facts about nodes and devices. Each method returns what is wrong with one, empty when nothing is."""

    def __init__(self, books: Books) -> None:
        self._books = books
        books.handle(
            {
                "node": self._node,
                "nstate": self._nstate,
                "cordon": self._cordon,
                "nremove": self._nremove,
            }
        )

    def _node(self, fact: list[Any]) -> str:
        books = self._books
        spec = fact[2]
        devices = {
            device["uuid"]: device["memory_total_bytes"] - device.get("memory_reserved_bytes", 0)
            for device in spec["devices"]
        }
        books.models.update((device["uuid"], device["model"]) for device in spec["devices"])
        books.compute.update((device["uuid"], device.get("compute_milli", WHOLE)) for device in spec["devices"])
        books.offences.described(spec)
        books.health.described(spec)
        machine = books.machines.get(spec["node_id"])
        if machine is None:
            machine = Machine(spec["node_id"], devices, spec.get("agentless", False), fact[3])
            books.machines[spec["node_id"]] = machine
        else:
            for uuid in machine.devices.keys() - devices.keys():
                if books.cards[uuid].pieces:
                    return f"{uuid} vanishes while it holds slices"
                del books.cards[uuid]
            machine.devices, machine.agentless = devices, spec.get("agentless", False)
            machine.registered = machine.registered or fact[3]
        machine.name = spec["name"]
        machine.pool, machine.labels, machine.changed_ms = (
            spec.get("pool", "default"),
            dict(spec.get("labels", ())),
            fact[1],
        )
        machine.cpu_milli, machine.host_memory = spec.get("cpu_milli", -1), spec.get("host_memory_bytes", -1)
        for uuid, leasable in devices.items():
            card = books.cards.setdefault(uuid, Card())
            books.health.look(uuid)
            if card.memory > leasable:
                return f"{uuid} shrank below what is held"
        for other in books.machines.values():
            if other is not machine and other.devices.keys() & devices.keys():
                return f"{other.node_id} has a device of {machine.node_id}"
        return ""

    def _nstate(self, fact: list[Any]) -> str:
        books = self._books
        machine = books.machines[fact[2]]
        state, session = fact[3], fact[4]
        if session and session < machine.session:
            return f"session {session} of {machine.node_id} after {machine.session}"
        if state == RECONCILING and session <= machine.session:
            return f"{machine.node_id} reconciles on session {session}, which is not new"
        if state == READY and machine.state not in (RECONCILING, SUSPECT):
            return f"{machine.node_id} is ready without having reconciled"
        if state == READY and session != machine.session:
            return f"{machine.node_id} is ready on another session than it reconciled on"
        if state == READY and machine.state == RECONCILING:
            lost = [piece.slice_id for piece in machine.pieces.values() if piece.unreachable]
            if lost:
                return f"{machine.node_id} is ready while {lost[0]} is still unreachable"
        if state == LOST:
            for piece in machine.pieces.values():
                books.charge(piece, fact[1], on=False)
                piece.unreachable = True
                books.changed.add(piece.lease_id)
        machine.state, machine.session, machine.changed_ms = state, max(session, machine.session), fact[1]
        return ""

    def _cordon(self, fact: list[Any]) -> str:
        books = self._books
        books.machines[fact[2]].cordoned = fact[3]
        return ""

    def _nremove(self, fact: list[Any]) -> str:
        books = self._books
        machine = books.machines.pop(fact[2])
        books.cuts.forget(fact[2])
        books.health.forget(fact[2])
        for uuid in machine.devices:
            if books.cards[uuid].pieces:
                return f"{fact[2]} is removed while {uuid} holds slices"
            del books.cards[uuid]
        return ""

    def hosts(self, machine: Machine) -> str:
        """Whether a node has the processors and the memory that those who are on it were promised."""
        books = self._books
        members = {(piece.lease_id, piece.epoch, piece.member) for piece in machine.pieces.values()}
        stories = [books.stories[lease_id] for lease_id, _, _ in members]
        cpu, memory = sum(story.cpu_milli for story in stories), sum(story.host_memory for story in stories)
        if 0 <= machine.cpu_milli < cpu or 0 <= machine.host_memory < memory:
            return f"{machine.node_id} promises {cpu} milli of its processors and {memory} bytes of its memory"
        return ""

    def kept(self) -> tuple[int, int]:
        """What promises rest on, share and bytes: whatever is not closed and not lost. A look at everything, for what
        is rare.
        """
        books = self._books
        cards = [
            (books.compute[uuid], machine.devices[uuid])
            for machine in books.machines.values()
            if not (machine.cordoned or books.windows.closed(machine))
            and (machine.state in (READY, RECONCILING, SUSPECT) or (machine.agentless and machine.state == DECLARED))
            for uuid in machine.devices
            if books.cards[uuid].healthy
        ]
        return sum(share for share, _ in cards), sum(memory for _, memory in cards)
