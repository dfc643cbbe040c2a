"""What an agent signs to open a session: one string of bytes, made the same way on both sides.

It begins with what it is for, so that no other signature of the key can be taken for it, and gives the length of each
part before the part, so that no two sessions have the same. Both sides' nonces are in it: neither can use what the
other signed before.
"""

from __future__ import annotations

from typing import Final

NONCE_BYTES: Final = 32
KEY_BYTES_MAX: Final = 512
"""Of a P-256 key in DER: 91."""
SIGNATURE_BYTES_MAX: Final = 128
_SESSION: Final = b"aliquot agent session 1"


def session_proof(pool_id: str, node_id: str, boot_id: str, *, agent_nonce: bytes, coordinator_nonce: bytes) -> bytes:
    """The bytes to sign for one session."""
    parts = (_SESSION, pool_id.encode(), node_id.encode(), boot_id.encode(), agent_nonce, coordinator_nonce)
    return b"".join(len(part).to_bytes(4) + part for part in parts)
