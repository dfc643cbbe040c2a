"""The agents that are connected, one session a node: who comes and goes, and who must hear of a durable change.

It says nothing to the writer: what its sessions say does that (`listening`), and silence (`sessions`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from aliquot.common.clock import Clock
from aliquot.common.errors import AliquotError
from aliquot.common.tasks import Tasks
from aliquot.coordinator.agents.certifying import tell_authority
from aliquot.coordinator.agents.desired import nodes_to_tell
from aliquot.coordinator.agents.liveness import Liveness, SessionsConfig, Silent
from aliquot.coordinator.agents.session import Session
from aliquot.coordinator.core.books.enrolment import Enrolled, Generation
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.nodes import Node
from aliquot.coordinator.core.values.errors import SessionReplaced
from aliquot.coordinator.core.values.types import NodeState
from aliquot.coordinator.errors import NotEnrolled, Overloaded, ShuttingDown
from aliquot.coordinator.reading.outbox import Follower
from aliquot.coordinator.reading.telemetry import Telemetry
from aliquot.coordinator.reading.view import View
from aliquot.v1 import agent_pb2

if TYPE_CHECKING:
    from aliquot.coordinator.agents.authority import Generations

log = logging.getLogger(__name__)

SESSIONS_MAX = 20_000
_SNAPSHOTS_PER_S = 500
WATCHED = (NodeState.RECONCILING, NodeState.READY, NodeState.SUSPECT)


class Roster(Follower):
    """See the module's docstring."""

    def __init__(
        self,
        view: View,
        clock: Clock,
        telemetry: Telemetry,
        config: SessionsConfig,
        *,
        authority: Callable[[], Generations],
        coordinators: Callable[[], Sequence[str]],
        heard_clock: Callable[[str, int], None],
    ) -> None:
        """`authority` is the pool's own as it is now. `coordinators` says where each of several is reached, for agents
        to know. `heard_clock` is told what a node's clock shows, in milliseconds since 1970.
        """
        self._clock = clock
        self._telemetry = telemetry
        self._config = config
        self._intervals_factor = 1
        self._by_node: dict[str, Session] = {}
        self._closing = False
        self._tasks = Tasks()
        self._authority = authority
        self.coordinators = coordinators
        self.heard_clock = heard_clock
        self._liveness = Liveness(config.liveness(), self._by_node, view)
        for node_id, node in view.nodes.items():
            self.node_changed(node_id, node)

    def __len__(self) -> int:
        return len(self._by_node)

    def get(self, node_id: str) -> Session | None:
        """The session of a node's agent."""
        return self._by_node.get(node_id)

    # -- coming and going

    def check_room(self) -> None:
        """Raises ShuttingDown or Overloaded where no more agents may come."""
        if self._closing:
            raise _shutting_down()
        if len(self._by_node) >= SESSIONS_MAX:
            raise Overloaded(f"{SESSIONS_MAX} agents are connected, which is the bound", retry_after_ms=10_000)

    def enter(self, session: Session) -> None:
        """A session begins. It replaces an older one of its node."""
        old = self._by_node.get(session.node_id)
        self._by_node[session.node_id] = session
        session.absent_since_ms = self._liveness.present(session.node_id)
        if old is not None:
            session.absent_since_ms = old.last_heard_ms if old.live else old.absent_since_ms
            log.info("a newer session of node %s replaces the older one", session.node_id)
            goodbye = agent_pb2.Goodbye(reason="REPLACED", reconnect_after_ms=30_000)
            error = SessionReplaced(
                f"another session of node {session.node_id} has begun",
                hint="if two agents share a state folder or a node id, stop one of them",
            )
            self.dismiss(old, goodbye, error)

    def leave(self, session: Session) -> None:
        """A session is over. One that was refused has not spoken for its node: the silence goes on as it began."""
        session.ended = True
        if self._by_node.get(session.node_id) is session:
            self._telemetry.heard(session.node_id, self.last_heard_ms(session.node_id))
            self._telemetry.gone(session.node_id)
            del self._by_node[session.node_id]
            before_ms = None if session.live else session.absent_since_ms
            self._liveness.absent(session.node_id, session.last_heard_ms if before_ms is None else before_ms)

    def dismiss(self, session: Session, goodbye: agent_pb2.Goodbye, error: AliquotError) -> None:
        """End a session, without waiting for it."""
        self._tasks.run(f"end of {session.node_id}", session.end(goodbye, error))

    async def goodbye(self) -> None:
        """End all sessions, because the coordinator stops."""
        self._closing = True
        error = _shutting_down()
        goodbye = agent_pb2.Goodbye(reason="SHUTTING_DOWN", reconnect_after_ms=1_000)
        sessions = list(self._by_node.values())
        await asyncio.gather(*(session.end(goodbye, error) for session in sessions), return_exceptions=True)

    # -- what is durable

    def lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        """Mark the sessions whose agents must hear of this."""
        for node_id in nodes_to_tell(old, new):
            session = self._by_node.get(node_id)
            if session is not None and new is not None:
                session.mark(new.lease_id)

    def node_changed(self, node_id: str, node: Node | None) -> None:
        """A node that was removed has nothing more to say; one that a lost session left behind is watched."""
        self._telemetry.node_changed(node_id, node)
        session = self._by_node.get(node_id)
        if session is not None:
            session.tell_orders(node)
            session.note_reports(list(session.unknown.values()))  # some may have been written off
        if node is None:
            self._liveness.present(node_id)
        elif node_id not in self._by_node and node.state in WATCHED:
            self._liveness.absent(node_id, self._clock.monotonic_ms())

    def enrolment_changed(self, node_id: str, enrolled: Enrolled | None) -> None:
        """The session that another key has opened ends."""
        session = self._by_node.get(node_id)
        if session is None or (enrolled is not None and session.key_sha256 == enrolled.key_sha256):
            return
        if enrolled is None:
            goodbye = agent_pb2.Goodbye(reason="DISENROLLED", reconnect_after_ms=30_000)
            message = f"node {node_id} does not belong to this pool any more"
        else:
            goodbye = agent_pb2.Goodbye(reason="ENROLLED", reconnect_after_ms=100)
            message = f"node {node_id} has joined with another key"
        self.dismiss(session, goodbye, NotEnrolled(message, hint="`aliquot node invite` lets it join"))

    def authority_changed(self, generations: tuple[Generation, ...]) -> None:
        """All agents must hear of it."""
        tell_authority(self._authority, self._by_node.values())

    # -- silence

    def last_heard_ms(self, node_id: str) -> int:
        """When the node was last heard, on the wall clock; 0: not by this process."""
        session = self._by_node.get(node_id)
        if session is None:
            return self._telemetry.node(node_id).last_heard_ms
        return self._clock.now_ms() - (self._clock.monotonic_ms() - session.last_heard_ms)

    @property
    def suspect_ms(self) -> int:
        """After so long a silence a node is suspected, and another machine may be it: longer while agents are asked to
        speak less often.
        """
        return self._liveness.config.suspect_ms

    def sweep(self, silent: Silent) -> None:
        """Look for silence, and tell `silent`. Once a second."""
        self._liveness.sweep(self._clock.monotonic_ms(), silent)

    def start_again(self) -> None:
        """Everybody counts as heard just now: it was us who could not hear."""
        self._liveness.start_again(self._clock.monotonic_ms())

    # -- what all are asked

    def intervals(self) -> agent_pb2.Intervals:
        """How often agents are to speak."""
        return self._config.intervals(self._intervals_factor)

    def set_pressure(self, factor: int) -> None:
        """Ask agents to speak `factor` times less often than configured."""
        if factor == self._intervals_factor:
            return
        self._intervals_factor = factor
        log.info("agents are asked for a heartbeat every %d ms", self._config.heartbeat_ms * factor)
        self._liveness.config = self._config.liveness(factor)
        for session in self._by_node.values():
            session.say(agent_pb2.CoordinatorMessage(intervals=self.intervals()))

    async def ask_all(self, reason: str) -> None:
        """Ask every agent for a snapshot, a few hundred a second: commands of theirs may have been lost."""
        for number, session in enumerate(list(self._by_node.values())):
            if session.live:
                session.ask_for_snapshot(reason)
            if number % _SNAPSHOTS_PER_S == _SNAPSHOTS_PER_S - 1:
                await asyncio.sleep(1)


def _shutting_down() -> ShuttingDown:
    return ShuttingDown("this coordinator is shutting down", hint="connect again in a moment")
