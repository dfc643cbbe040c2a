"""What a decision is made with: the State, read only; the decider's settings; and its memory, which it may write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from aliquot.coordinator.core.books.access import AccessBooks
from aliquot.coordinator.core.books.demand import DemandBooks, RecentDemand
from aliquot.coordinator.core.books.enrolment import EnrolmentBooks
from aliquot.coordinator.core.books.health.records import HealthBooks
from aliquot.coordinator.core.books.holds import Hold
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.ledger.ledger import Ledger
from aliquot.coordinator.core.books.ledger.meters import Meter
from aliquot.coordinator.core.books.maintenance import Closure, Window
from aliquot.coordinator.core.books.nodes import Device, Node
from aliquot.coordinator.core.books.supply import SupplyBooks
from aliquot.coordinator.core.books.tenancy.tenancy import Tenancy
from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.known.memory import Memory
from aliquot.coordinator.core.placement import Engine, make_policy
from aliquot.coordinator.core.placement.prices import PriceTable
from aliquot.coordinator.core.queueing import WaitingLines
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.timers import AFTER, Due
from aliquot.coordinator.core.values.troubles import TimerPlace, Trouble, WorkKey, WorkKind

FOLDED_AT_ONCE = 256
"""Entries of usage that become sums in one step: about a millisecond's work."""


class Work(NamedTuple):
    """Something that is due."""

    due_ms: int
    kind: Due
    subject: str
    source: int
    """Which timers hold it."""
    entry_ms: int
    """Its time there."""

    @property
    def key(self) -> WorkKey:
        """Its name among `Troubles`."""
        return WorkKey(WorkKind.TIMER, self.subject, self.kind.name)

    @property
    def place(self) -> TimerPlace:
        """Where it is found again."""
        return TimerPlace(self.source, (self.entry_ms, int(self.kind), self.subject))


class Known:
    """See the module's docstring. Functions that decide take one and change nothing of it but its `memory`."""

    def __init__(self, state: State, config: CoreConfig) -> None:
        self._state: Final = state
        self.config = config
        self.memory: Final = Memory()
        self.memory.seen.started = state.started  # what started before is not known to be lately
        self._timers: Final = (state.timers, *state.since.values(), self.memory.timers)
        self.engine = Engine(state.inventory, make_policy(config.policy), mix=state.arrivals)

        self.leases: Final[Mapping[str, Lease]] = state.leases
        self.nodes: Final[Mapping[str, Node]] = state.nodes
        self.devices: Final[Mapping[str, Device]] = state.devices
        self.ended: Final[Sequence[str]] = state.ended
        self.tenancy: Final[Tenancy] = state.tenancy
        self.ledger: Final[Ledger] = state.ledger
        self.holds: Final[Mapping[str, Hold]] = state.holds
        self.disruptions: Final[Mapping[str, tuple[int, ...]]] = state.disruptions
        self.windows: Final[Mapping[str, Window]] = state.windows
        self.access: Final[AccessBooks] = state.access
        self.enrolment: Final[EnrolmentBooks] = state.enrolment
        self.health: Final[HealthBooks] = state.health
        self.demand: Final[DemandBooks] = state.demand
        self.supply: Final[SupplyBooks] = state.supply
        self.inventory: Final[Inventory] = state.inventory
        self.keys: Final[Mapping[tuple[str, str], str]] = state.keys
        self.node_ids_by_name: Final[Mapping[str, str]] = state.node_ids_by_name
        self.slice_ids_by_node: Final[Mapping[str, Mapping[str, None]]] = state.slice_ids_by_node
        self.meters: Final[Mapping[str, Meter]] = state.meters
        self.hold_of_device: Final[Mapping[str, str]] = state.hold_of_device
        self.ready_holds: Final[Mapping[str, None]] = state.ready_holds
        self.holding_by_priority: Final[Mapping[int, int]] = state.holding_by_priority
        self.ending: Final[Mapping[str, None]] = state.ending
        self.elastic: Final[Mapping[str, None]] = state.elastic
        self.lenders: Final[Mapping[str, None]] = state.lenders
        self.borrowers: Final[Mapping[str, Mapping[str, None]]] = state.borrowers
        self.closed: Final[Mapping[str, Closure]] = state.closed
        self.emptying: Final[Mapping[str, None]] = state.emptying
        self.cutting: Final[Mapping[str, None]] = state.cutting
        self.node_versions: Final[Mapping[str, int]] = state.node_versions

    # -- what moves in the State

    @property
    def seq(self) -> int:
        """Of the last fact."""
        return self._state.seq

    @property
    def now_ms(self) -> int:
        """The time of the last fact."""
        return self._state.now_ms

    @property
    def leader_epoch(self) -> int:
        """Of the coordinator that leads."""
        return self._state.leader_epoch

    @property
    def next_arrival(self) -> int:
        """The number that the next request gets."""
        return self._state.next_arrival

    @property
    def recent(self) -> RecentDemand:
        """What was asked for and granted lately."""
        return self._state.recent

    @property
    def lines(self) -> WaitingLines:
        """Who waits."""
        return self._state.lines

    @property
    def prices(self) -> PriceTable | None:
        """What the price policy believes."""
        return self._state.prices

    @property
    def capacity_version(self) -> int:
        """See `State`."""
        return self._state.capacity_version

    @property
    def freed_version(self) -> int:
        """See `State`."""
        return self._state.freed_version

    @property
    def movable_slices(self) -> int:
        """How many slices are held by leases that were marked movable."""
        return self._state.movable_slices

    def lease(self, lease_id: str) -> Lease:
        """The lease of this id. Raises LeaseNotFound."""
        return self._state.lease(lease_id)

    def node(self, node_id: str) -> Node:
        """The node of this id or, failing that, of this name. Raises NodeNotFound."""
        return self._state.node(node_id)

    # -- what is to be done

    def wants_admission(self) -> bool:
        """Whether an Admit command could find something to grant."""
        memory, state = self.memory, self._state
        troubles = memory.troubles
        if troubles and troubles.rests(""):
            return False
        if memory.admission is not None:
            return True
        if state.ready_holds and (not troubles or not all(map(troubles.rests, state.ready_holds))):
            return True
        return self.is_offered_anew() and len(state.lines) > state.lines.resting

    def is_offered_anew(self) -> bool:
        """Whether something may fit that did not when the last pass began."""
        return self.memory.look_again or self.memory.offered_version != self._state.offer_version

    def offering(self) -> None:
        """A pass along the lines begins."""
        self.memory.look_again = False
        self.memory.offered_version = self._state.offer_version

    @property
    def _after_ms(self) -> tuple[int, ...]:
        """By how long after its entry a look is due, in each of the timers."""
        return 0, self.config.confirm_timeout_ms, self.config.preemption_period_ms, 0

    def due(self, now_ms: int, limit: int) -> list[Work]:
        """The earliest work that is due, in order; at most `limit`. It stays due until it is taken."""
        self.memory.timers.open(now_ms)
        troubles = self.memory.troubles
        if not troubles.timers:
            return self._due(now_ms, limit)
        number = limit + troubles.timers
        while True:
            found = self._due(now_ms, number)
            ready = [work for work in found if troubles.is_due(work.key, now_ms)]
            if len(ready) >= limit or len(found) < number:
                return ready[:limit]
            number *= 2

    def _due(self, now_ms: int, limit: int) -> list[Work]:
        found: list[Work] = []
        of = 0
        for source, (timers, after_ms) in enumerate(zip(self._timers, self._after_ms, strict=True)):
            entries = timers.due(now_ms - after_ms, limit)
            if entries:
                of += 1
                found += [Work(at_ms + after_ms, Due(kind), subject, source, at_ms) for at_ms, kind, subject in entries]
        if of > 1:
            found.sort()
        return found[:limit]

    def next_due_ms(self, now_ms: int) -> int | None:
        """When the next look is due, or up to four seconds before that where it is not soon."""
        troubles = self.memory.troubles
        every = zip(self._timers, self._after_ms, strict=True)
        if not troubles.timers:
            times = [(timers.next_due_ms(now_ms - after_ms), after_ms) for timers, after_ms in every]
        else:
            ready = self.due(now_ms, 1)
            if ready:
                return ready[0].due_ms
            # All that is due rests.
            times = [(timers.next_after(now_ms - after_ms), after_ms) for timers, after_ms in every]
            times.append((troubles.next_due_ms(), 0))
        return min((at_ms + after_ms for at_ms, after_ms in times if at_ms is not None), default=None)

    def take(self, work: Work, now_ms: int) -> None:
        """Take work that was looked at off the list. Called when a decision is carried out, never while deciding."""
        state = self._state
        self._timers[work.source].take(work.place.entry)
        if self.memory.troubles:
            self.memory.troubles.drop(work.key)
        if work.kind is Due.RETRY:
            state.lines.wake(work.subject)
        elif work.kind is Due.BUDGET and work.subject in state.meters:
            state.meters[work.subject].armed_ms = 0

    def troubles_about(self, subject: str = "") -> list[Trouble]:
        """Failures of work that still exists: of one subject, or (empty) all."""
        return [trouble for trouble in self.memory.troubles.about(subject) if self._exists(trouble)]

    def _exists(self, trouble: Trouble) -> bool:
        """Whether there is still something to be tried again. Asked of what the decider goes by, and not of the lease's
        record: should the two differ, the work is still looked at, and must rest.
        """
        if trouble.timer is not None:
            return trouble.timer.entry in self._timers[trouble.timer.source]
        subject = trouble.work.subject
        if not subject:
            return len(self.lines) > 0
        return self.lines.place_of(subject) is not None or subject in self.holds

    # -- memory

    def look_for_growth(self, due_ms: int) -> None:
        """Remember to look then, or before, whether an elastic lease may grow."""
        memory = self.memory
        if self.elastic and not 0 < memory.growth_due_ms <= due_ms:
            memory.growth_due_ms = due_ms
            memory.timers.add(due_ms, Due.GROWTH, "")

    def look_for_supply(self, due_ms: int) -> None:
        """Remember to look then, or before, at which nodes should come or go."""
        memory = self.memory
        if not 0 < memory.supply_due_ms <= due_ms:
            memory.supply_due_ms = due_ms
            memory.timers.add(due_ms, Due.SUPPLY, "")

    def elastic_in_order(self) -> list[str]:
        """Elastic leases, those that give back first: the lowest priority, then the youngest."""
        memory, version = self.memory, self._state.elastic_version
        if memory.elastic_key != version:
            leases = self.leases
            memory.elastic_key = version
            memory.elastic_in_order = sorted(
                self.elastic, key=lambda lease_id: (leases[lease_id].request.priority, -leases[lease_id].arrival)
            )
        return memory.elastic_in_order

    def catch_up(self) -> None:
        """Bring the memory in line with what has happened since: drop what no longer holds, note what is to be done."""
        state, memory, config = self._state, self.memory, self.config
        if memory.troubles:
            memory.troubles.forget_gone(self._exists)
        seen = memory.seen
        if seen.freed != state.freed_version:
            seen.freed = state.freed_version
            memory.known_full.clear()
            memory.full_before.clear()
        if seen.closed != state.closed_version:
            seen.closed = state.closed_version
            memory.full_before.clear()
        if memory.admission is not None and memory.admission.lines is not state.lines:
            memory.admission = None
        if seen.prices is not state.prices and state.prices is not None:
            seen.prices = state.prices
            self.engine.set_prices(state.prices)
        self._earn_moves()
        if seen.idle != state.idle.version:
            seen.idle = state.idle.version
            self.look_for_growth(state.idle.at_ms + config.growth_idle_ms)
        if seen.reshaped != state.reshaped.version:
            seen.reshaped = state.reshaped.version
            self.look_for_growth(state.reshaped.at_ms + config.growth_rest_ms)
        if state.cutting and not memory.cuts_due_ms:
            memory.cuts_due_ms = max(1, state.now_ms + config.cut_look_ms)
            memory.timers.add(memory.cuts_due_ms, Due.CUT, "")
        if state.supply.spec is not None:
            self._note_waiting()
        if state.ended:
            self._note_ended()
        if not memory.fold_due and state.ledger.usage_entries - config.ledger_entries_max >= FOLDED_AT_ONCE:
            memory.fold_due = True
            memory.timers.add(state.now_ms, Due.FOLD, "")

    def _earn_moves(self) -> None:
        """What moves they earn that have started."""
        state, seen = self._state, self.memory.seen
        if seen.started != state.started:
            live = len(state.leases) - len(state.lines) - len(state.ended)
            self.engine.moves.earn(state.started - seen.started, live)
            seen.started = state.started

    def _note_waiting(self) -> None:
        """Look soon at which nodes should come where somebody waits."""
        memory = self.memory
        if not memory.supply_due_ms:
            self.look_for_supply(self.now_ms + 1_000)
        elif memory.supply_calm and len(self.lines):
            memory.supply_calm = False  # once: this is the time of the fact that put somebody in line
            self.look_for_supply(self.now_ms + self.config.supply_look_ms)

    def _note_ended(self) -> None:
        """Have ended leases forgotten when they are old, or too many."""
        memory, config = self.memory, self.config
        surplus = len(self.ended) - config.retain_ended_max
        if surplus > config.retain_ended_max // 64:  # slack, so that they are forgotten in batches
            due_ms = self.now_ms
        elif memory.forget_due_ms:
            return
        else:
            oldest_ms = self.leases[self.ended[0]].ended_ms
            due_ms = max(oldest_ms + config.retain_ended_ms, memory.forgot_ms + 1000 if memory.forgot_ms else 0)
        if not memory.forget_due_ms or due_ms < memory.forget_due_ms:
            memory.forget_due_ms = due_ms
            memory.timers.add(due_ms, Due.FORGET, "")


assert AFTER == (Due.CONFIRM, Due.PREEMPTED), "every kind that is due some time after something has a source"
