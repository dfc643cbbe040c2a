"""The agents' sessions: each is greeted, then listened to until its stream ends, and missed when it is silent."""

from __future__ import annotations

import logging

from aliquot.common.clock import Clock
from aliquot.common.errors import AliquotError
from aliquot.coordinator.agents.certifying import Certifier
from aliquot.coordinator.agents.greeting import Greeter
from aliquot.coordinator.agents.listening import Listener
from aliquot.coordinator.agents.proving import Prover
from aliquot.coordinator.agents.roster import Roster
from aliquot.coordinator.agents.session import Context, Session
from aliquot.coordinator.agents.submitting import offer
from aliquot.coordinator.core.commands import NodeSilent
from aliquot.coordinator.core.values.errors import SessionReplaced
from aliquot.coordinator.reading.activity import Activity
from aliquot.coordinator.reading.metrics import Metrics
from aliquot.coordinator.reading.telemetry import Telemetry
from aliquot.coordinator.reading.usage import ObservedUse
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.wire import errors as rpc_errors
from aliquot.coordinator.writing.writer import Writer
from aliquot.v1 import agent_pb2

log = logging.getLogger(__name__)


class Sessions:
    """See the module's docstring."""

    def __init__(
        self,
        *,
        writer: Writer,
        view: View,
        clock: Clock,
        telemetry: Telemetry,
        observed: ObservedUse,
        activity: Activity,
        metrics: Metrics,
        roster: Roster,
        pool_secret: bytes,
        version: str,
        prover: Prover,
        certifier: Certifier,
    ) -> None:
        self._writer = writer
        self._metrics = metrics
        self._roster = roster
        self._greeter = Greeter(
            writer=writer,
            view=view,
            clock=clock,
            telemetry=telemetry,
            roster=roster,
            pool_secret=pool_secret,
            version=version,
            prover=prover,
            certifier=certifier,
        )
        self._listener = Listener(
            writer=writer,
            view=view,
            clock=clock,
            telemetry=telemetry,
            observed=observed,
            activity=activity,
            metrics=metrics,
            roster=roster,
            certifier=certifier,
        )

    async def serve(self, context: Context) -> None:
        """Handle one agent's stream until it ends."""
        session: Session | None = None
        try:
            session = await self._greeter.greet(context)
            await self._listener.listen(session, context)
            await session.raise_end()
        except AliquotError as error:
            self._metrics.refused[rpc_errors.reason_of(error)] += 1
            log.warning("session of node %s refused: %s", session.node_id if session else "?", error)
            if session is not None:
                await session.refuse(error)
            await rpc_errors.abort(context, error)
        finally:
            if session is not None:
                self._roster.leave(session)

    def sweep(self) -> None:
        """Look for silence. Once a second."""
        self._roster.sweep(self._silent)

    def _silent(self, node_id: str, session_epoch: int, lost: bool, reason: str) -> bool:  # noqa: FBT001 - a callback
        accepted = offer(self._writer, NodeSilent(node_id, session_epoch, lost, reason))
        session = self._roster.get(node_id)
        if accepted and lost and session is not None:
            goodbye = agent_pb2.Goodbye(reason="LOST", reconnect_after_ms=1_000)
            error = SessionReplaced(f"nothing was heard of node {node_id} for too long", hint="connect again")
            self._roster.dismiss(session, goodbye, error)
        return accepted
