"""What proves to an agent that its peer holds a lease: derived, so that a retry gets the same and nothing is stored."""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache

from aliquot.common.ids import ALPHABET, ID_CHARS, serving_credential


def lease_secret(pool_secret: bytes, lease_id: str) -> str:
    """HMAC-SHA256 of the lease id under the pool's secret, in hexadecimal."""
    keyed = _keyed(pool_secret).copy()
    keyed.update(lease_id.encode())
    return keyed.hexdigest()


def lease_secret_sha256(pool_secret: bytes, lease_id: str) -> bytes:
    """SHA-256 of the secret's text: what agents are told."""
    return hashlib.sha256(lease_secret(pool_secret, lease_id).encode()).digest()


def serving_credential_sha256(pool_secret: bytes, lease_id: str, lease_epoch: int, tenant: str) -> bytes:
    """SHA-256 of what a lease's clients show to the process that serves it."""
    credential = serving_credential(lease_secret(pool_secret, lease_id), lease_id, lease_epoch, tenant)
    return hashlib.sha256(credential.encode()).digest()


@lru_cache(maxsize=8)
def _keyed(pool_secret: bytes) -> hmac.HMAC:
    """The key already taken in: to copy that takes a third of the time."""
    return hmac.new(pool_secret, digestmod="sha256")


def pool_id(pool_secret: bytes) -> str:
    """`p-` and 13 characters. Nothing about the secret can be learnt from it."""
    number = int.from_bytes(hmac.digest(pool_secret, b"aliquot pool id 1", "sha256"))
    return "p-" + "".join(ALPHABET[number >> shift & 31] for shift in range(0, ID_CHARS * 5, 5))
