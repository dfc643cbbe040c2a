"""Who has not been heard for too long: one sweep over all nodes, not a timer each.

Time is the monotonic clock of this process. After a pause of its own (it was stopped, or the machine slept) nobody is
blamed: everybody starts again as just heard.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from aliquot.coordinator.agents.session import Session
from aliquot.coordinator.core.values.types import NodeState
from aliquot.coordinator.reading.view import View
from aliquot.v1 import agent_pb2

log = logging.getLogger(__name__)

SESSIONS_PER_SWEEP = 2_500

Silent = Callable[[str, int, bool, str], bool]
"""(node id, session epoch, lost, reason) -> whether the word was taken."""


@dataclass(frozen=True, slots=True)
class LivenessConfig:
    """Silence after which a node is SUSPECT, and LOST."""

    suspect_ms: int
    lost_ms: int


@dataclass(frozen=True, slots=True)
class SessionsConfig:
    """How often agents speak, and when they count as silent."""

    heartbeat_ms: int = 5_000
    delta_min_ms: int = 1_000
    suspect_after_heartbeats: int = 3
    lost_ms: int = 30_000

    def liveness(self, factor: int = 1) -> LivenessConfig:
        """When to give up on agents that are asked to speak `factor` times less often."""
        heartbeat_ms = self.heartbeat_ms * factor
        lost_ms = self.lost_ms if factor == 1 else max(self.lost_ms, heartbeat_ms * 6)
        return LivenessConfig(heartbeat_ms * self.suspect_after_heartbeats, lost_ms)

    def intervals(self, factor: int = 1) -> agent_pb2.Intervals:
        """The message that asks agents for it."""
        return agent_pb2.Intervals(heartbeat_ms=self.heartbeat_ms * factor, delta_min_ms=self.delta_min_ms * factor)


class Liveness:
    """Nodes with a session, by when they last spoke; nodes without one, by when they were last seen."""

    def __init__(self, config: LivenessConfig, sessions: Mapping[str, Session], view: View) -> None:
        self.config = config
        self._sessions = sessions
        self._view = view
        self._absent: dict[str, int] = {}
        self._left: list[tuple[str, Session]] = []

    def absent(self, node_id: str, since_ms: int) -> None:
        """The node has no session; it was last heard then. The earliest word counts."""
        self._absent.setdefault(node_id, since_ms)

    def present(self, node_id: str) -> int | None:
        """The node has a session, or is no longer known. Returns since when it had none, if that was so."""
        return self._absent.pop(node_id, None)

    def start_again(self, now_ms: int) -> None:
        """Everybody was heard just now."""
        for session in self._sessions.values():
            session.last_heard_ms = now_ms
            session.absent_since_ms = None
        for node_id in self._absent:
            self._absent[node_id] = now_ms

    def sweep(self, now_ms: int, silent: Silent) -> None:
        """Report those that are silent for too long."""
        config = self.config
        for node_id, session in self._some_sessions():
            quiet_ms = now_ms - session.last_heard_ms
            if quiet_ms <= config.suspect_ms or session.ended:
                node = self._view.nodes.get(node_id)
                if node is not None and node.state is NodeState.SUSPECT and node.session_epoch == session.epoch:
                    session.suspect = True  # the word that it was heard was lost: its next message says it again
                continue
            reason = f"nothing heard for {quiet_ms} ms"
            if quiet_ms > config.lost_ms:
                silent(node_id, session.epoch, True, reason)
            elif not session.suspect:
                session.suspect = silent(node_id, session.epoch, False, reason)
        for node_id, since_ms in list(self._absent.items()):
            self._sweep_absent(node_id, now_ms - since_ms, silent)

    def _some_sessions(self) -> list[tuple[str, Session]]:
        """The next of them, at most `SESSIONS_PER_SWEEP`, so that no sweep holds up the event loop."""
        if len(self._sessions) <= SESSIONS_PER_SWEEP:
            return list(self._sessions.items())
        if not self._left:
            self._left = list(self._sessions.items())
        some, self._left = self._left[:SESSIONS_PER_SWEEP], self._left[SESSIONS_PER_SWEEP:]
        return [pair for pair in some if self._sessions.get(pair[0]) is pair[1]]

    def _sweep_absent(self, node_id: str, quiet_ms: int, silent: Silent) -> None:
        node = self._view.nodes.get(node_id)
        if node is None or node.state in (NodeState.DECLARED, NodeState.LOST):
            del self._absent[node_id]
            return
        reason = f"not connected for {quiet_ms} ms"
        if quiet_ms > self.config.lost_ms:
            silent(node_id, node.session_epoch, True, reason)
        elif quiet_ms > self.config.suspect_ms and node.state is NodeState.READY:
            silent(node_id, node.session_epoch, False, reason)
