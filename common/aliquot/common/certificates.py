"""What all certificates that we make have in common. It needs the package cryptography, which not every extra brings:
import it where certificates are made.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes


class Validity(NamedTuple):
    """When a certificate counts."""

    begins: dt.datetime
    ends: dt.datetime


def named(common_name: str) -> x509.Name:
    """A name that is a common name alone."""
    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, common_name)])


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A key as servers read it, not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def usage(*, signs_certificates: bool) -> x509.KeyUsage:
    """Of an authority's key, or of one that is for signatures alone."""
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def authority(
    name: x509.Name,
    public: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    valid: Validity,
    *,
    serial: int = 0,
) -> x509.Certificate:
    """Of an authority that certifies no others, by itself or by another of the same name.

    `serial` 0: at random; else all of it is the same wherever it is made.
    """
    issuer = x509.SubjectKeyIdentifier.from_public_key(issuer_key.public_key())
    return (
        begun(name, name, public, valid, serial)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False)
        .sign(issuer_key, hashes.SHA256(), ecdsa_deterministic=True)
    )


def leaf(
    subject: x509.Name,
    public: CertificatePublicKeyTypes,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    valid: Validity,
    *,
    alternatives: Iterable[x509.GeneralName],
    purpose: x509.ObjectIdentifier,
) -> x509.Certificate:
    """Of somebody who is to be known by these names, for this purpose."""
    by = x509.SubjectKeyIdentifier.from_public_key(issuer_key.public_key())
    return (
        begun(subject, issuer, public, valid)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        # Python 3.13 and later refuse certificates without these two.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(by), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )


def begun(
    subject: x509.Name, issuer: x509.Name, public: CertificatePublicKeyTypes, valid: Validity, serial: int = 0
) -> x509.CertificateBuilder:
    """What every certificate has: extensions are to be added, and it is to be signed. `serial` 0: at random."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(serial or x509.random_serial_number())
        .not_valid_before(valid.begins)
        .not_valid_after(valid.ends)
    )


def lifetime_ms(chain_pem: str) -> tuple[int, int]:
    """When the first certificate begins and ends to count, in ms since 1970; (0, 0) where it can't be read."""
    try:
        certificate = x509.load_pem_x509_certificate(chain_pem.encode())
    except ValueError:
        return 0, 0
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return int(begins.timestamp() * 1000), int(ends.timestamp() * 1000)
