"""What a node has of the pool that it has joined, with the node's key in it.

The key is made on the node and never leaves it. Everything else can be had again: the certificate by renewal, and all
of it by joining anew.
"""

from __future__ import annotations

import msgspec


class Membership(msgspec.Struct, frozen=True):
    """See the module's docstring. Times are in milliseconds since 1970."""

    pool_id: str
    node_id: str
    addresses: tuple[str, ...]
    """Of the coordinators."""
    key_pem: str
    chain_pem: str
    authorities_pem: str
    """Of the pool: whom its certificates are signed by."""
    server_pem: str | None = None
    """Whom to trust at the coordinators: None: the pool's own; empty: the system's."""
    invite_sha256: bytes = b""
    """Of the invite that it has joined with: the same again brings the same key."""

    def __repr__(self) -> str:
        """Without the key."""
        return f"Membership({self.pool_id}, {self.node_id})"

    @property
    def trusted_pem(self) -> str:
        """Authorities of the coordinators' certificates; empty: the system's."""
        return self.authorities_pem if self.server_pem is None else self.server_pem


class Joining(msgspec.Struct, frozen=True):
    """A join that has begun: with the same invite only the same key may come again."""

    invite_sha256: bytes
    key_pem: str

    def __repr__(self) -> str:
        """Without the key."""
        return "Joining()"
