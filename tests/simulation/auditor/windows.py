"""Maintenance windows: when nodes are closed, that nothing is placed there then, and that what ran there must go."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.simulation.auditor.records import ACTIVE, GRANTED, READY, Machine, Piece, Story

if TYPE_CHECKING:
    from tests.simulation.auditor.books import Books

PLANNED, CLOSING, OPEN = 1, 2, 3
"""Phases, as the journal has them."""
WEEK_MS = 7 * 86_400_000
PATIENCE_MS = 30_000
"""What is due has happened so long afterwards, however many commits fail meanwhile."""


class Held(NamedTuple):
    """One window, and the one time of it that is next or now."""

    spec: dict[str, Any]
    phase: int
    starts_ms: int
    ends_ms: int

    @property
    def lead_ms(self) -> int:
        return int(self.spec.get("lead_ms", 0))

    @property
    def due_ms(self) -> int:
        """When it enters its next phase."""
        return (self.starts_ms - self.lead_ms, self.starts_ms, self.ends_ms)[self.phase - 1]

    def phase_at(self, at_ms: int) -> int:
        """How far it has come by then; 0: it is over."""
        if at_ms >= self.ends_ms:
            return 0
        return OPEN if at_ms >= self.starts_ms else CLOSING if at_ms >= self.starts_ms - self.lead_ms else PLANNED

    def covers(self, machine: Machine) -> bool:
        """Whether it is over this node."""
        spec = self.spec
        if spec.get("pool", machine.pool) != machine.pool:
            return False
        if machine.node_id not in spec.get("node_ids", (machine.node_id,)):
            return False
        return all(machine.labels.get(key) == value for key, value in spec.get("labels", ()))


class Windows:
    """Facts about windows, and what follows from them for nodes."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self.by_name: dict[str, Held] = {}
        self._since_ms: dict[str, int] = {}
        """When each entered its phase."""
        self.led_since_ms = 0
        books.handle({"maint": self._declared, "maint>": self._moved, "maint-": self._ended})

    # -- facts

    def _declared(self, fact: list[Any]) -> str:
        spec = fact[2]
        if spec["name"] in self.by_name:
            return f"window {spec['name']} is declared twice"
        held = Held(spec, *fact[3:6])
        lasts_ms = _ms(spec["end"]) - _ms(spec["start"])
        if held.ends_ms - held.starts_ms != lasts_ms or not _is_time_of(spec, held.starts_ms):
            return f"window {spec['name']} is held from {held.starts_ms} to {held.ends_ms}"
        return self._enter(held, fact[1])

    def _moved(self, fact: list[Any]) -> str:
        known = self.by_name[fact[2]]
        held = Held(known.spec, *fact[3:6])
        if held == known:
            return f"window {fact[2]} moves nowhere"
        if held[2:] != known[2:]:
            if fact[1] < known.ends_ms:
                return f"window {fact[2]} is left before its end"
            if not known.spec.get("weekly") or not _is_time_of(known.spec, held.starts_ms):
                return f"window {fact[2]} is held again from {held.starts_ms}"
        return self._enter(held, fact[1])

    def _enter(self, held: Held, at_ms: int) -> str:
        self.by_name[held.spec["name"]] = held
        self._since_ms[held.spec["name"]] = at_ms
        due = held.phase_at(at_ms)
        return "" if held.phase == due else f"window {held.spec['name']} enters phase {held.phase}, not {due}"

    def _ended(self, fact: list[Any]) -> str:
        known = self.by_name.pop(fact[2])
        if fact[3] == "over" and (fact[1] < known.ends_ms or known.spec.get("weekly")):
            return f"window {fact[2]} is over before its end"
        return ""

    # -- what follows

    def closed(self, machine: Machine) -> bool:
        """Whether a window keeps a node from being leased like any other."""
        return any(held.phase != PLANNED and held.covers(machine) for held in self.by_name.values())

    def empties(self, node_id: str) -> bool:
        """Whether what runs on a node may be told to go because of that node."""
        machine = self._books.machines[node_id]
        return machine.cordoned or any(h.phase == OPEN and h.covers(machine) for h in self.by_name.values())

    def keep_off(self, machine: Machine, story: Story, at_ms: int) -> str:
        """On a node that closes, only what is over before it does may be placed."""
        over_ms = at_ms + story.time_limit_ms + story.grace_ms if story.time_limit_ms else None
        for held in self.by_name.values():
            if held.phase == PLANNED or not held.covers(machine):
                continue
            if held.phase == OPEN or over_ms is None or over_ms > held.starts_ms:
                return f"{story.lease_id} is placed on {machine.node_id}, which window {held.spec['name']} closes"
        return ""

    def overdue(self) -> str:
        """What should have happened by now."""
        now_ms = self._books.at_ms
        for name, held in self.by_name.items():
            if now_ms > max(held.due_ms, self._since_ms[name], self.led_since_ms) + PATIENCE_MS:
                return f"window {name} is still in phase {held.phase}, which was over at {held.due_ms}"
            if held.phase != OPEN or now_ms <= max(self._since_ms[name], self.led_since_ms) + PATIENCE_MS:
                continue
            for machine in self._books.machines.values():
                if machine.state != READY or machine.changed_ms > now_ms - PATIENCE_MS or not held.covers(machine):
                    continue
                left = next((piece for piece in machine.pieces.values() if self._stays(piece)), None)
                if left is not None:
                    return f"{left.slice_id} goes on on {machine.node_id}, which is under maintenance (window {name})"
        return ""

    def _stays(self, piece: Piece) -> bool:
        story = self._books.stories[piece.lease_id]
        return piece.state in (GRANTED, ACTIVE) and not piece.shed and not piece.unreachable and not story.ending


def _ms(wall: str) -> int:
    return int(datetime.fromisoformat(wall).replace(tzinfo=UTC).timestamp()) * 1000


def _is_time_of(spec: dict[str, Any], starts_ms: int) -> bool:
    """All windows here have the zone UTC, where every week has the same length."""
    after_ms = starts_ms - _ms(spec["start"])
    return after_ms >= 0 and after_ms % WEEK_MS == 0 if spec.get("weekly") else after_ms == 0
