"""The node's key and what is done with it at every session. It loads the library `cryptography`: an agent has it done
`apart`.
"""

from __future__ import annotations

import hashlib

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from aliquot.common.errors import SecurityError

_JOIN_AGAIN = "join again: an operator's `aliquot node invite` prints the command"


def make_key() -> str:
    """A new one, in PEM."""
    # P-256: gRPC's handshakes fail with Ed25519.
    return (
        ec.generate_private_key(ec.SECP256R1())
        .private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        .decode()
    )


def public_key(key_pem: str) -> bytes:
    """Its public half, SubjectPublicKeyInfo in DER. Raises SecurityError."""
    return _public(load(key_pem))


def fingerprint(key_pem: str) -> bytes:
    """SHA-256 of the public half: what the coordinator keeps. Raises SecurityError."""
    return hashlib.sha256(public_key(key_pem)).digest()


def sign(key_pem: str, text: bytes) -> tuple[bytes, bytes]:
    """Its public half, and a signature. Raises SecurityError."""
    key = load(key_pem)
    return _public(key), key.sign(text, ec.ECDSA(hashes.SHA256()))


def _public(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def load(key_pem: str) -> ec.EllipticCurvePrivateKey:
    """As the library has it. Raises SecurityError."""
    try:
        key = serialization.load_pem_private_key(key_pem.encode(), password=None)
    except (ValueError, TypeError) as error:
        raise SecurityError("the node's key can't be read", hint=_JOIN_AGAIN) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SecurityError("the node's key is of another kind", hint=_JOIN_AGAIN)
    return key
