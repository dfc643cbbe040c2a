"""Whether an agent is who it says it is, by the certificate that it showed at the handshake."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from aliquot.coordinator.errors import NotAllowed

AuthContext = Mapping[str, Iterable[bytes]]
COMMON_NAME, ALTERNATIVE_NAMES = "x509_common_name", "x509_subject_alternative_name"


class Caller(Protocol):
    """What gRPC's contexts have."""

    def auth_context(self) -> AuthContext:
        """What was learnt at the handshake."""


AgentRule = Callable[[Caller, str], None]
"""Raises NotAllowed when the caller may not speak for the node of that id."""


def any_agent(caller: Caller, node_id: str) -> None:
    """Whoever could connect may speak for any node."""


def named_agent(caller: Caller, node_id: str) -> None:
    """The caller's certificate must have the node's id among its names."""
    names = certificate_names(caller.auth_context())
    if node_id not in names:
        raise NotAllowed(
            f"the certificate of this agent is for {', '.join(sorted(names)) or 'nobody'}, not for node {node_id}",
            hint="give the agent a certificate with its node id as a name, or set its --node-id",
        )


def certificate_names(auth_context: AuthContext) -> frozenset[str]:
    """The common and alternative names of the certificate that the other side showed; empty without one."""
    return frozenset(
        name.decode(errors="replace") for key in (COMMON_NAME, ALTERNATIVE_NAMES) for name in auth_context.get(key, ())
    )
