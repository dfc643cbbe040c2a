"""AgentService: one bidirectional stream per agent, handed to `sessions` as raw bytes.

The messages are not decoded by gRPC, because nearly all of them are heartbeats, which `sessions` recognises without
making an object.
"""

from __future__ import annotations

from typing import Any

import grpc

from aliquot.coordinator.agents.sessions import Sessions
from aliquot.coordinator.wire.calls import Context
from aliquot.v1 import agent_pb2


def agent_handler(sessions: Sessions) -> grpc.GenericRpcHandler:
    """The service's one method."""

    async def session(_: Any, context: Context) -> None:  # noqa: ANN401 - the iterator, which is not used
        await sessions.serve(context)

    service = agent_pb2.DESCRIPTOR.services_by_name["AgentService"]
    return grpc.method_handlers_generic_handler(
        service.full_name, {"Session": grpc.stream_stream_rpc_method_handler(session)}
    )
