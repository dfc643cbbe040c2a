"""The decider of one State: decides, and carries out what was decided. The writer drives it."""

from __future__ import annotations

from typing import Any, TypeVar

from aliquot.coordinator.core.commands import Command
from aliquot.coordinator.core.commands.outcomes import Decision
from aliquot.coordinator.core.commands.queries import Query
from aliquot.coordinator.core.decide import answer, decide
from aliquot.coordinator.core.evolve import evolve
from aliquot.coordinator.core.evolve.counting import watch_budget
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.known.use_windows import Efficiency, UseWindows
from aliquot.coordinator.core.placement import Engine
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.timers import Due
from aliquot.coordinator.core.values.troubles import ORDER, Trouble, WorkFailed, WorkKind

T = TypeVar("T")


class Decider:
    """A State, the settings that decisions depend on, and the memory of earlier ones."""

    def __init__(self, state: State, config: CoreConfig | None = None) -> None:
        self.state = state
        self.known = Known(state, config or CoreConfig())

    @property
    def engine(self) -> Engine:
        """The placement engine."""
        return self.known.engine

    def adopt(self, config: CoreConfig) -> None:
        """Decide under these settings from now on; the policy stays as it is."""
        self.known.config = config

    def decide(self, command: Command[T], now_ms: int) -> Decision[T]:
        """What follows from a command. Raises DomainError when it is refused; then, and on any other error, nothing is
        changed, and what was due stays due. Raises WorkFailed where what failed is a piece of the core's own work: it
        rests then before it is tried again, or is set aside.
        """
        troubles = self.known.memory.troubles
        try:
            return decide(self.known, command, now_ms)
        except Exception as error:
            trouble = troubles.failed(error, now_ms)
            if trouble is None:
                raise
            if trouble.work == ORDER:
                self.known.memory.admission = None  # a pass that broke off is not gone on with
            if trouble.work.kind is WorkKind.ADMISSION and trouble.again_ms:
                self.known.memory.timers.add(trouble.again_ms, Due.RETRY, trouble.work.subject)
            raise WorkFailed(trouble) from error

    def answer(self, query: Query[T], now_ms: int) -> T:
        """The answer to a query. Raises DomainError where it asks for what does not exist."""
        return answer(self.known, query, now_ms)

    def carry_out(self, decision: Decision[Any], now_ms: int) -> None:
        """Apply the facts of a decision, and take what was due off the list.

        Raises what `evolve` raises; then State and memory are to be thrown away.
        """
        state = self.state
        for work in decision.taken:
            self.known.take(work, now_ms)
        for fact in decision.facts:
            evolve(state, fact)
        for work in decision.taken:
            if work.kind is Due.BUDGET and work.subject in state.meters and not state.meters[work.subject].armed_ms:
                watch_budget(state, work.subject, now_ms)

    def wants_admission(self) -> bool:
        """Whether an Admit command could find something to grant."""
        self.known.catch_up()
        return self.known.wants_admission()

    def quotas_move(self, now_ms: int) -> bool:
        """Whether a window of a quota has opened or closed that is not in force yet, so that MoveQuotas comes first."""
        edge_ms = self.state.tenancy.edge_ms
        return 0 < edge_ms <= max(now_ms, self.state.now_ms)

    def next_due_ms(self, now_ms: int = 0) -> int | None:
        """When a Tick command will find something to do, or up to four seconds before that where it is not soon."""
        self.known.catch_up()
        return self.known.next_due_ms(max(now_ms, self.state.now_ms))

    def troubles(self, subject: str = "") -> list[Trouble]:
        """Work on which deciding failed: of one subject, or (empty) all. Some of it is set aside."""
        return self.known.troubles_about(subject) if self.known.memory.troubles else []

    def device_measured(self, uuid: str, utilisation_milli: int) -> None:
        """How busy a device was lately, in thousandths."""
        if self.state.inventory.has_device(uuid):
            self.engine.measured(uuid, utilisation_milli)

    def efficiency(self, lease_id: str) -> Efficiency | None:
        """What a lease makes of its share, lately; None: not known."""
        window = self.known.memory.part(UseWindows, UseWindows).get(lease_id)
        return window.efficiency() if window is not None else None
