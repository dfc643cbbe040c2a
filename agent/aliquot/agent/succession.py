"""Whom a node trusts as its pool's authority, when that changes: only who is vouched for by whom it trusts already.

The coordinator says which authorities count now, and shows certificates of a new one's key by those before it. What
somebody in its place makes up has no such certificate, so it changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509

_KEPT_MAX = 8
_PEM_CHARS_MAX = 64 * 1024


def follow(trusted_pem: str, offered_pem: str, vouchers_pem: str) -> str:
    """Whom to trust from now on, in PEM.

    An authority that is offered is taken up where one that is trusted vouches for it. One that is not offered any more
    is dropped where it vouches for one that is, so that nobody can have a node forget the later one.
    """
    from cryptography import x509  # noqa: PLC0415 - loaded when the first key is used
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415

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
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415

    try:
        made.verify_directly_issued_by(by)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True
