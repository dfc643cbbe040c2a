"""The certificate of a process that serves a lease: its client knows it by its digest, whatever the clocks say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID, ExtensionOID

from aliquot.remote.server.certificate import make
from aliquot.remote.wire.options import CERTIFICATE_NAME


def test_it_counts_where_clocks_are_half_a_day_behind_and_as_long_as_any_lease() -> None:
    made = make()
    certificate, now = x509.load_pem_x509_certificate(made.certificate_pem), datetime.now(UTC)
    assert certificate.not_valid_before_utc <= now - timedelta(hours=12)
    assert certificate.not_valid_after_utc >= now + timedelta(days=366)


def test_it_signs_itself_for_the_one_name_that_clients_ask_for_and_serves_only() -> None:
    made, another = make(), make()
    certificate = x509.load_pem_x509_certificate(made.certificate_pem)
    certificate.verify_directly_issued_by(certificate)
    assert made.sha256 == certificate.fingerprint(hashes.SHA256())
    assert made.sha256 != another.sha256
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == [CERTIFICATE_NAME]
    constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (constraints.value.ca, constraints.value.path_length, constraints.critical) == (True, 0, True)
    used = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(used) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert not certificate.extensions.get_extension_for_oid(ExtensionOID.EXTENDED_KEY_USAGE).critical
    assert made.key_pem.decode() not in repr(made)
    assert "PRIVATE" not in repr(made)
