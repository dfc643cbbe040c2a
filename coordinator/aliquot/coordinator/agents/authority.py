"""The pool's own certificate authority.

Its key follows from the pool's secret, which every coordinator of the pool reads from the journal: so all of them are
the same authority, a copy of the journal brings it along, and there is no file to lose. Its certificate has fixed
dates and a fixed number, and says the same wherever it is made.

Certificates of nodes are for clients only: none can be shown by somebody who claims to be a coordinator.

There can be several generations (`core/books/enrolment.py`), each with a key of its own. All have the same name, so
that one can certify the next (a voucher) within the path length of its own certificate: such a certificate is
self-issued (RFC 5280, 4.2.1.9).
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import ipaddress
from collections.abc import Callable, Iterable
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from aliquot.common.errors import ConfigError, InvalidFieldError
from aliquot.common.tls import MadePair
from aliquot.coordinator.agents.lease_secrets import pool_id
from aliquot.coordinator.core.books.enrolment import FIRST_GENERATION, Generation
from aliquot.coordinator.core.deciding.enrolment import trusted

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    from aliquot.common import certificates
except ImportError as error:
    raise ConfigError(
        "the pool's own certificates need the cryptography package", hint="pip install 'aliquot[coordinator]'"
    ) from error

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes

AGENT_LIFE: Final = dt.timedelta(days=7)
SERVER_LIFE: Final = dt.timedelta(days=30)
BACKDATED: Final = dt.timedelta(hours=1)
"""Certificates count from before they are made, as clocks differ."""
REQUEST_BYTES_MAX: Final = 8 * 1024
_VALID: Final = certificates.Validity(dt.datetime(2026, 1, 1, tzinfo=dt.UTC), dt.datetime(2126, 1, 1, tzinfo=dt.UTC))
_INFO: Final = "aliquot pool authority"
VOUCHERS_MAX: Final = 4
"""So many generations before one certify it, for those who have been away for so long."""
_P256_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_COMMON_NAME_CHARS_MAX: Final = 64


class Authority:
    """One generation; see the module's docstring."""

    def __init__(self, pool_secret: bytes, generation: Generation = FIRST_GENERATION) -> None:
        self.pool_id = pool_id(pool_secret)
        self.number = generation.number
        # FIPS 186-5, A.2.1: 128 bits more than the order has, so that no key is likelier than another.
        info = f"{_INFO} {self.number}".encode()
        material = HKDF(hashes.SHA256(), 48, salt=generation.salt or None, info=info).derive(pool_secret)
        self._key = ec.derive_private_key(int.from_bytes(material) % (_P256_ORDER - 1) + 1, ec.SECP256R1())
        self._name = certificates.named(f"aliquot pool {self.pool_id}")

    @cached_property
    def certificate(self) -> x509.Certificate:
        """Its own."""
        return self._certify_authority(self)

    @cached_property
    def public_key(self) -> ec.EllipticCurvePublicKey:
        """Of its key."""
        return self._key.public_key()

    def vouch_for(self, other: Authority) -> bytes:
        """The key of another generation, certified by this one: in PEM."""
        return self._certify_authority(other).public_bytes(serialization.Encoding.PEM)

    def _certify_authority(self, other: Authority) -> x509.Certificate:
        public, mine = other.public_key, self.public_key
        identifier = x509.SubjectKeyIdentifier.from_public_key(public)
        issuer = x509.SubjectKeyIdentifier.from_public_key(mine)
        numbered = identifier.digest if other is self else identifier.digest + issuer.digest
        serial = int.from_bytes(hashlib.sha256(numbered).digest()[:16])
        return certificates.authority(self._name, public, self._key, _VALID, serial=serial)

    @cached_property
    def pem(self) -> bytes:
        """The same, for whoever is to trust it."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @cached_property
    def sha256(self) -> bytes:
        """Of its certificate in DER."""
        return self.certificate.fingerprint(hashes.SHA256())

    def certify_node(self, request: NodeRequest, node_id: str, now_ms: int) -> bytes:
        """A node's certificate, in PEM, for the key of its request."""
        subject = certificates.named(node_id[:_COMMON_NAME_CHARS_MAX])
        uri = x509.UniformResourceIdentifier(f"spiffe://{self.pool_id}/agent/{node_id}")
        made = self._leaf(
            subject, request.public_key, [uri], x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH, now_ms, AGENT_LIFE
        )
        return made.public_bytes(serialization.Encoding.PEM)

    def serve_as(self, names: Iterable[str], now_ms: int) -> MadePair:
        """A new key, and a certificate by which callers know a coordinator under these names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = [_general_name(name) for name in dict.fromkeys(names)]
        subject = certificates.named("aliquot coordinator")
        made = self._leaf(
            subject, key.public_key(), alternatives, x509.oid.ExtendedKeyUsageOID.SERVER_AUTH, now_ms, SERVER_LIFE
        )
        renew_ms = now_ms + int(SERVER_LIFE / dt.timedelta(milliseconds=2))
        since_ms = now_ms - int(BACKDATED / dt.timedelta(milliseconds=2))
        return MadePair(made.public_bytes(serialization.Encoding.PEM), certificates.key_pem(key), renew_ms, since_ms)

    def _leaf(
        self,
        subject: x509.Name,
        public: CertificatePublicKeyTypes,
        alternatives: list[x509.GeneralName],
        purpose: x509.ObjectIdentifier,
        now_ms: int,
        life: dt.timedelta,
    ) -> x509.Certificate:
        now = dt.datetime.fromtimestamp(now_ms / 1000, dt.UTC)
        valid = certificates.Validity(now - BACKDATED, now + life)
        return certificates.leaf(
            subject, public, self._name, self._key, valid, alternatives=alternatives, purpose=purpose
        )


class Generations:
    """All generations of a pool's authority at one moment."""

    def __init__(self, pool_secret: bytes, generations: tuple[Generation, ...]) -> None:
        kept = generations[-(VOUCHERS_MAX + 1) :]
        made = {each.number: Authority(pool_secret, each) for each in kept}
        self._all = list(made.values())
        self.trusted = [made[each.number] for each in trusted(kept)]
        """The oldest first."""
        self.pem = b"".join(each.pem for each in reversed(self.trusted))
        """Whom to trust, the latest first."""

    @property
    def newest(self) -> Authority:
        """The latest one."""
        return self.trusted[-1]

    @cached_property
    def vouchers(self) -> bytes:
        """By all that are known, for those that are to be trusted: in PEM."""
        return b"".join(
            by.vouch_for(each) for each in self.trusted for by in reversed(self._all) if by.number < each.number
        )

    def before(self, authority: Authority) -> bytes:
        """How one follows from those before it, in PEM: who trusts only one of them believes a chain that goes on with
        these. Each is certified by the one before it, as checkers follow one path and don't look for a second.
        """
        followed = [each for each in self._all if each.number <= authority.number]
        return b"".join(by.vouch_for(each) for by, each in reversed(list(pairwise(followed))))

    def sha256_of(self, number: int) -> bytes:
        """Of a generation's certificate in DER; empty: of long ago."""
        return next((each.sha256 for each in self._all if each.number == number), b"")

    def known_by(self, sha256s: Iterable[bytes]) -> int:
        """The latest generation among certificates with these digests; 0: none."""
        held = set(sha256s)
        return max((each.number for each in self._all if each.sha256 in held), default=0)

    def serve_as(self, names: Iterable[str], now_ms: int) -> MadePair:
        """As `Authority.serve_as`, by the oldest that is trusted: so nobody who trusts only that is locked out while
        the next one is taken up.
        """
        shown = self.trusted[0]
        made = shown.serve_as(names, now_ms)
        return dataclasses.replace(made, chain_pem=made.chain_pem + self.before(shown))

    def certify_node(self, request: NodeRequest, node_id: str, now_ms: int, *, known: int) -> bytes:
        """A node's certificate by the latest generation; where it knows none so late, by the oldest."""
        signs = self.newest if known >= self.newest.number else self.trusted[0]
        return signs.certify_node(request, node_id, now_ms) + self.before(signs)


class PoolAuthority:
    """The generations as they are now; made when they are first asked for, and anew when they have changed."""

    def __init__(self, pool_secret: bytes, read: Callable[[], tuple[Generation, ...]]) -> None:
        """`read` says what they are, on any thread."""
        self._pool_secret = pool_secret
        self._read = read
        self._made: tuple[tuple[Generation, ...], Generations] | None = None

    def now(self) -> Generations:
        """As they are. On any thread."""
        generations, made = self._read(), self._made
        if made is None or made[0] != generations:
            self._made = made = generations, Generations(self._pool_secret, generations)
        return made[1]


class NodeRequest:
    """A request for a certificate whose sender has been shown to have its key. Raises InvalidFieldError."""

    def __init__(self, der: bytes, field: str = "request") -> None:
        wrong = InvalidFieldError(field, "is no PKCS #10 request that is signed by its own P-256 key")
        if len(der) > REQUEST_BYTES_MAX:
            raise wrong
        try:
            request = x509.load_der_x509_csr(der)
            key = request.public_key()
            signed = request.is_signature_valid
        except (ValueError, UnsupportedAlgorithm, InvalidSignature):
            raise wrong from None
        if not signed or not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
            raise wrong
        self.public_key = key
        encoded = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        self.key_sha256 = hashlib.sha256(encoded).digest()


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name.partition("%")[0]))
    except ValueError:
        return x509.DNSName(name.encode("idna").decode())
