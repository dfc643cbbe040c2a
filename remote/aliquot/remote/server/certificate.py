"""The key of a process that serves a lease: made at its start, kept in memory, never written anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID

from aliquot.common import certificates
from aliquot.remote.wire.options import CERTIFICATE_NAME

_VALID = timedelta(days=3650)
"""It is known by its digest, which nobody is told any more once the process has ended."""
_CLOCKS_DIFFER = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class OwnCertificate:
    """A certificate that signs itself, and its key, in PEM."""

    certificate_pem: bytes
    key_pem: bytes
    sha256: bytes

    def __repr__(self) -> str:
        """Without the key."""
        return f"OwnCertificate({self.sha256.hex()})"


def make() -> OwnCertificate:
    """A fresh one."""
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = certificates.named(CERTIFICATE_NAME), datetime.now(UTC)
    valid = certificates.Validity(now - _CLOCKS_DIFFER, now + _VALID)
    certificate = (
        certificates.begun(name, name, key.public_key(), valid)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(CERTIFICATE_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    return OwnCertificate(pem, certificates.key_pem(key), certificate.fingerprint(hashes.SHA256()))
