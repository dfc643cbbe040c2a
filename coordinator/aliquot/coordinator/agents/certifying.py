"""A node's certificate made anew, within a session that its key has opened."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from aliquot.common.clock import Clock
from aliquot.common.errors import InvalidFieldError
from aliquot.v1 import agent_pb2

if TYPE_CHECKING:
    from aliquot.coordinator.agents.authority import Authority

Certify = Callable[[str, bytes, bytes], agent_pb2.Certificate]
"""(node id, SHA-256 of the session's key, request) -> the certificate. Raises InvalidFieldError."""


class Certifier:
    """See the module's docstring. It implements `Certify`."""

    def __init__(self, pool_secret: bytes, clock: Clock) -> None:
        self._pool_secret = pool_secret
        self._clock = clock

    @cached_property
    def _authority(self) -> Authority:
        from aliquot.coordinator.agents.authority import Authority  # noqa: PLC0415 - cryptography, only where it is used

        return Authority(self._pool_secret)

    def __call__(self, node_id: str, key_sha256: bytes, request: bytes) -> agent_pb2.Certificate:
        """See `Certify`."""
        from aliquot.coordinator.agents.authority import NodeRequest  # noqa: PLC0415

        certified = NodeRequest(request, "renewal.request")
        if certified.key_sha256 != key_sha256:
            raise InvalidFieldError("renewal.request", "is for another key than the one that has opened the session")
        chain = self._authority.certify_node(certified, node_id, self._clock.now_ms())
        return agent_pb2.Certificate(chain_pem=chain, authorities_pem=self._authority.pem)
