"""What proves to an agent that its peer holds a lease: derived, so that a retry gets the same and nothing is stored."""

from __future__ import annotations

import hashlib
import hmac


def lease_secret(pool_secret: bytes, lease_id: str) -> str:
    """HMAC-SHA256 of the lease id under the pool's secret, in hexadecimal."""
    return hmac.digest(pool_secret, lease_id.encode(), "sha256").hex()


def lease_secret_sha256(pool_secret: bytes, lease_id: str) -> bytes:
    """SHA-256 of the secret's text: what agents are told."""
    return hashlib.sha256(lease_secret(pool_secret, lease_id).encode()).digest()
