"""Certificates for the node's key, and whom to trust. It loads `cryptography`: an agent has it done `apart`."""

from __future__ import annotations

import contextlib

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization

from aliquot.agent.node_key import load, public_key
from aliquot.common.certificates import lifetime_ms

_COMMON_NAME_CHARS_MAX = 64
_KEPT_MAX = 8
_PEM_CHARS_MAX = 64 * 1024


def request(key_pem: str, node_id: str) -> bytes:
    """A request for a certificate: PKCS #10 in DER, signed by the key. Raises SecurityError."""
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, node_id[:_COMMON_NAME_CHARS_MAX])])
    made = x509.CertificateSigningRequestBuilder().subject_name(name).sign(load(key_pem), hashes.SHA256())
    return made.public_bytes(serialization.Encoding.DER)


def certified(
    key_pem: str, trusted_pem: str, chain: bytes, offered: bytes, vouchers: bytes
) -> tuple[str, str, tuple[int, int]] | None:
    """Whom to trust from now on, and the certificate that came, empty: none came, with its lifetime. None where that is
    not one for this key by whom is trusted. Raises SecurityError.
    """
    followed = follow(trusted_pem, offered.decode(errors="replace"), vouchers.decode(errors="replace"))
    chain_pem = chain.decode(errors="replace")
    if chain and not _certifies(chain_pem, key_pem, followed):
        return None
    return followed, chain_pem, lifetime_ms(chain_pem)


def _certifies(chain_pem: str, key_pem: str, authorities_pem: str) -> bool:
    """Whether this is a certificate for the key, signed by one of these authorities. Raises SecurityError."""
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


def follow(trusted_pem: str, offered_pem: str, vouchers_pem: str) -> str:
    """Whom to trust as the pool's authorities from now on, in PEM: only who is vouched for by whom is trusted already.

    The coordinator says which count now, and shows certificates of a new one's key by those before it. What somebody in
    its place makes up has no such certificate, so it changes nothing.

    An authority that is offered is taken up where one that is trusted vouches for it. One that is not offered any more
    is dropped where it vouches for one that is, so that nobody can have a node forget the later one.
    """
    if max(len(offered_pem), len(vouchers_pem)) > _PEM_CHARS_MAX:
        return trusted_pem
    try:
        trusted = x509.load_pem_x509_certificates(trusted_pem.encode())
        offered = x509.load_pem_x509_certificates(offered_pem.encode())
        vouchers = x509.load_pem_x509_certificates(vouchers_pem.encode()) if vouchers_pem else []
    except ValueError:
        return trusted_pem
    kept = [each for each in offered if each in trusted]
    kept += [each for each in offered if each not in trusted and _vouched(each, trusted, vouchers)]
    left = [
        each for each in trusted if each not in offered and not any(_vouched(one, [each], vouchers) for one in kept)
    ]
    followed = [each for each in offered if each in kept] + left
    if not kept or len(followed) > _KEPT_MAX or followed == trusted:
        return trusted_pem
    return "".join(each.public_bytes(serialization.Encoding.PEM).decode() for each in followed)


def _vouched(authority: x509.Certificate, by: list[x509.Certificate], vouchers: list[x509.Certificate]) -> bool:
    """Whether one of these has certified the key of an authority, which is itself signed by that key."""
    if not _signed(authority, authority):
        return False
    return any(
        voucher.public_key() == authority.public_key() and any(_signed(voucher, each) for each in by)
        for voucher in vouchers
    )


def _signed(made: x509.Certificate, by: x509.Certificate) -> bool:
    try:
        made.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
