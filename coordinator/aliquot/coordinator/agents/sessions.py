"""The agents' sessions: each is greeted, then listened to until its stream ends, and missed when it is silent."""

from __future__ import annotations

import logging
from typing import Any

import grpc

from aliquot.common.errors import AliquotError
from aliquot.coordinator.agents.around import Around
from aliquot.coordinator.agents.greeting import Greeter
from aliquot.coordinator.agents.listening import Listener
from aliquot.coordinator.agents.session import Context, Session
from aliquot.coordinator.agents.submitting import offer
from aliquot.coordinator.core.commands import NodeSilent
from aliquot.coordinator.core.values.errors import SessionReplaced
from aliquot.coordinator.errors import Overloaded, ShuttingDown
from aliquot.coordinator.wire import errors as rpc_errors
from aliquot.v1 import agent_pb2

log = logging.getLogger(__name__)


class Sessions:
    """See the module's docstring."""

    def __init__(self, around: Around) -> None:
        self._around = around
        self._greeter = Greeter(around)
        self._listener = Listener(around)

    async def serve(self, context: Context) -> None:
        """Handle one agent's stream until it ends."""
        session: Session | None = None
        try:
            session = await self._greeter.greet(context)
            await self._listener.listen(session, context)
            await session.raise_end()
        except AliquotError as error:
            self._around.metrics.refused[rpc_errors.reason_of(error)] += 1
            expected = session is not None or isinstance(error, Overloaded | ShuttingDown)  # of many, who mean no harm
            if expected or not await rpc_errors.turn_away(context):
                log.warning("session of node %s refused: %s", session.node_id if session else "?", error)
            if session is not None:
                await session.refuse(error)
            await rpc_errors.abort(context, error)
        finally:
            if session is not None:
                self._around.roster.leave(session)

    def sweep(self) -> None:
        """Look for silence. Once a second."""
        self._around.roster.sweep(self._silent)

    def _silent(self, node_id: str, session_epoch: int, lost: bool, reason: str) -> bool:  # noqa: FBT001 - a callback
        accepted = offer(self._around.writer, NodeSilent(node_id, session_epoch, lost, reason))
        session = self._around.roster.get(node_id)
        if accepted and lost and session is not None:
            goodbye = agent_pb2.Goodbye(reason="LOST", reconnect_after_ms=1_000)
            error = SessionReplaced(f"nothing was heard of node {node_id} for too long", hint="connect again")
            self._around.roster.dismiss(session, goodbye, error)
        return accepted


def agent_handler(sessions: Sessions) -> grpc.GenericRpcHandler:
    """The service's one method."""

    async def session(_: Any, context: Context) -> None:  # noqa: ANN401 - the iterator, which is not used
        await sessions.serve(context)

    service = agent_pb2.DESCRIPTOR.services_by_name["AgentService"]
    return grpc.method_handlers_generic_handler(
        service.full_name, {"Session": grpc.stream_stream_rpc_method_handler(session)}
    )
