"""The node's key and what is done with it, by the library `cryptography`, which is loaded when the first is used."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING

from aliquot.common.errors import SecurityError
from aliquot.common.proof import session_proof
from aliquot.v1 import agent_pb2

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

_COMMON_NAME_CHARS_MAX = 64
_JOIN_AGAIN = "join again: an operator's `aliquot node invite` prints the command"


def make_key() -> str:
    """A new one, in PEM."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    # P-256: gRPC's handshakes fail with Ed25519.
    return (
        ec.generate_private_key(ec.SECP256R1())
        .private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        .decode()
    )


def public_key(key_pem: str) -> bytes:
    """Its public half, SubjectPublicKeyInfo in DER. Raises SecurityError."""
    return _public(_load(key_pem))


def fingerprint(key_pem: str) -> bytes:
    """SHA-256 of the public half: what the coordinator keeps. Raises SecurityError."""
    return hashlib.sha256(public_key(key_pem)).digest()


def prove(key_pem: str, hello: agent_pb2.Hello, challenge: agent_pb2.Challenge) -> agent_pb2.Proof:
    """The answer to a challenge. Raises SecurityError."""
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = _load(key_pem)
    signed = session_proof(
        challenge.pool_id, hello.node_id, hello.boot_id, agent_nonce=hello.nonce, coordinator_nonce=challenge.nonce
    )
    return agent_pb2.Proof(public_key=_public(key), signature=key.sign(signed, ec.ECDSA(hashes.SHA256())))


def request(key_pem: str, node_id: str) -> bytes:
    """A request for a certificate: PKCS #10 in DER, signed by the key. Raises SecurityError."""
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415

    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, node_id[:_COMMON_NAME_CHARS_MAX])])
    made = x509.CertificateSigningRequestBuilder().subject_name(name).sign(_load(key_pem), hashes.SHA256())
    return made.public_bytes(serialization.Encoding.DER)


def certifies(chain_pem: str, key_pem: str, authorities_pem: str) -> bool:
    """Whether this is a certificate for the key, signed by one of these authorities. Raises SecurityError."""
    from cryptography import x509  # noqa: PLC0415
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    public = public_key(key_pem)
    try:
        made = x509.load_pem_x509_certificate(chain_pem.encode())
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        if made.public_key().public_bytes(serialization.Encoding.DER, form) != public:
            return False
        for authority in x509.load_pem_x509_certificates(authorities_pem.encode()):
            with contextlib.suppress(ValueError, TypeError, InvalidSignature):
                made.verify_directly_issued_by(authority)
                return True
    except ValueError:
        return False
    return False


def _public(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

    return key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def _load(key_pem: str) -> ec.EllipticCurvePrivateKey:
    try:
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
        from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    except ImportError as error:
        raise SecurityError(
            "a node that has joined a pool needs the cryptography package", hint="pip install 'aliquot[agent]'"
        ) from error
    try:
        key = serialization.load_pem_private_key(key_pem.encode(), password=None)
    except (ValueError, TypeError) as error:
        raise SecurityError("the node's key can't be read", hint=_JOIN_AGAIN) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SecurityError("the node's key is of another kind", hint=_JOIN_AGAIN)
    return key
