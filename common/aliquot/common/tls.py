"""Where a server may listen without TLS, and credentials from certificate files.

Nobody listens without TLS where other machines can connect: tokens and the secrets of leases go over the wire. Servers
read their files again when they change, so a renewed certificate needs no restart; one that makes its certificates
itself does so in time.
"""

from __future__ import annotations

import hashlib
import ipaddress
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import grpc

from aliquot.common.errors import ConfigError, SecurityError

_log = logging.getLogger(__name__)
_LOCAL_SCHEMES: Final = ("unix:", "unix-abstract:")
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_NETWORK_SCHEMES: Final = ("dns:///", "dns:", "ipv4:", "ipv6:")


@dataclass(frozen=True, slots=True)
class ServerTls:
    """PEM files of a server. With `client_ca_file` every client must show a certificate signed by it."""

    certificate_file: Path
    key_file: Path
    client_ca_file: Path | None = None


def server_tls(certificate_file: Path | None, key_file: Path | None, client_ca: Path | None = None) -> ServerTls | None:
    """What settings ask for; None: nothing, it is to serve in the clear. Raises ConfigError for half a pair."""
    if certificate_file is None and key_file is None and client_ca is None:
        return None
    if certificate_file is None or key_file is None:
        raise ConfigError("TLS needs a certificate and its key", hint="give --tls-cert and --tls-key")
    return ServerTls(certificate_file, key_file, client_ca)


@dataclass(frozen=True, slots=True)
class ClientTls:
    """PEM files of a client: the authority it trusts (None: the system's), and its own certificate for mutual TLS."""

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    ca_pem: str = ""
    """The authorities themselves, where they are in no file of their own."""


@dataclass(frozen=True, slots=True)
class MadePair:
    """A certificate chain and its key that were just made, in PEM, and when to make others (ms since 1970): from
    `renew_ms` on, and before `since_ms`, as the clock by which these were made was ahead then.
    """

    chain_pem: bytes
    key_pem: bytes
    renew_ms: int
    since_ms: int = 0

    def __repr__(self) -> str:
        """Without the key."""
        return f"MadePair(until {self.renew_ms})"


@dataclass(frozen=True, slots=True)
class OwnTls:
    """A server that makes its certificates itself. They are in no file."""

    make: Callable[[], MadePair]
    """May be called on any thread."""
    now_ms: Callable[[], int]
    version: Callable[[], object] = lambda: None
    """What it is made from: when that is another value, a certificate is made at the next handshake. On any thread."""


def is_local_address(address: str) -> bool:
    """Whether only this machine can reach a gRPC address: a Unix socket, `localhost` or a loopback IP.

    Names other than `localhost` are not resolved and count as reachable from outside; so do `0.0.0.0` and `[::]`.
    """
    if address.startswith(_LOCAL_SCHEMES):
        return True
    host = host_of(address)
    if host.lower() in ("localhost", "ip6-localhost"):
        return True
    try:
        ip = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback


def require_secure(address: str, tls: ServerTls | OwnTls | None) -> None:
    """Refuses to listen without TLS where other machines can connect. Raises `SecurityError`."""
    if tls is None and not is_local_address(address):
        raise SecurityError(
            f"refusing to listen on {address} without TLS: anybody on the way could read what goes over it",
            hint="give a certificate and its key, or listen on 127.0.0.1 or a unix: socket",
        )


def server_credentials(tls: ServerTls | OwnTls) -> grpc.ServerCredentials:
    """Credentials that follow their files, or their maker. Raises `SecurityError` when they can't be used now.

    When changed files can't be used, that is logged and the old certificate stays in service.
    """
    following = Following(tls)

    def configured(shown: Shown) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(shown.key, shown.chain)], root_certificates=shown.client_ca)

    def refreshed() -> grpc.ServerCertificateConfiguration | None:
        shown = following.renewed()
        return None if shown is None else configured(shown)

    return grpc.dynamic_ssl_server_credentials(
        configured(following.load()),
        refreshed,  # type: ignore[arg-type]  # the stub lacks None: keep the one in service
        require_client_authentication=isinstance(tls, ServerTls) and tls.client_ca_file is not None,
    )


def channel_credentials(tls: ClientTls) -> grpc.ChannelCredentials:
    """Credentials of a client. Raises `SecurityError` when the files can't be used."""
    if (tls.certificate_file is None) != (tls.key_file is None):
        raise SecurityError(
            "a client certificate needs its key, and a key its certificate", hint="give both or neither"
        )
    ca = tls.ca_pem.encode() or None if tls.ca_file is None else _read_pem(tls.ca_file, "CERTIFICATE")
    if tls.certificate_file is None or tls.key_file is None:
        return grpc.ssl_channel_credentials(root_certificates=ca)
    key, chain = _key_pair(tls.certificate_file, tls.key_file)
    return grpc.ssl_channel_credentials(root_certificates=ca, private_key=key, certificate_chain=chain)


class Shown(NamedTuple):
    """What a server shows, in PEM, and whose certificates it wants to see."""

    key: bytes
    chain: bytes
    client_ca: bytes | None = None


class Following:
    """What a server shows, as it follows its files or their maker."""

    def __init__(self, tls: ServerTls | OwnTls) -> None:
        self._tls = tls
        self._seen: object = None
        self._made = MadePair(b"", b"", 0)
        self.shown = Shown(b"", b"")
        """What is in service."""
        self.problem = ""
        """Why what there is now is not what is in service; empty: it is."""

    def load(self) -> Shown:
        """As it is now. Raises `SecurityError`."""
        # Before reading, so that a change in between is seen at the next handshake.
        self._seen = self._version()
        if isinstance(self._tls, OwnTls):
            self._made = made = self._tls.make()
            self.shown = Shown(made.key_pem, made.chain_pem)
        else:
            key, chain = _key_pair(self._tls.certificate_file, self._tls.key_file)
            ca = None if self._tls.client_ca_file is None else _read_pem(self._tls.client_ca_file, "CERTIFICATE")
            self.shown = Shown(key, chain, ca)
        self.problem = ""
        return self.shown

    def renewed(self) -> Shown | None:
        """For every handshake: what is to be shown from now on, or None to keep what is in service."""
        made = self._made
        due = isinstance(self._tls, OwnTls) and not made.since_ms <= self._tls.now_ms() < made.renew_ms
        if not due and self._version() == self._seen:
            return None
        try:
            return self.load()
        except SecurityError as error:
            self.problem = f"the renewed certificate can't be used; the old one stays: {error.message}"
            _log.error("%s", self.problem)
            return None

    def _version(self) -> object:
        if isinstance(self._tls, OwnTls):
            return self._tls.version()
        files = (self._tls.certificate_file, self._tls.key_file, self._tls.client_ca_file)
        return tuple(stamp(file) for file in files if file is not None)


class ServerContext:
    """The same for servers that go by Python's `ssl`: `context` shows what is in service at each handshake."""

    def __init__(self, tls: ServerTls | OwnTls, *, by_itself: bool = True) -> None:
        """`by_itself`: it looks for what is new at each handshake; else it is told to. Raises `SecurityError`."""
        self.following = Following(tls)
        self._by_itself = by_itself
        self.context = self._now = _context(self.following.load())
        self.context.sni_callback = self._show

    def refresh(self) -> None:
        """Show what there is now; what can't be used leaves the old one in service. On any thread."""
        if (renewed := self.following.renewed()) is not None:
            self._now = _context(renewed)

    def _show(self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, begun: ssl.SSLContext) -> None:
        del name, begun
        if self._by_itself:
            self.refresh()
        connection.context = self._now


def _context(shown: Shown) -> ssl.SSLContext:
    import tempfile  # noqa: PLC0415 - brings what unpacks archives, and most programs serve no certificate

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Python reads pairs from files only; this one is there for a moment, for nobody else.
    with tempfile.TemporaryDirectory(prefix="aliquot-") as folder:
        pair = Path(folder) / "pair.pem"
        pair.touch(mode=0o600)
        pair.write_bytes(shown.key + b"\n" + shown.chain)
        context.load_cert_chain(pair)
    return context


def stamp(file: Path) -> tuple[int, int]:
    """Another one when the file has changed."""
    try:
        stat = file.stat()
    except OSError:
        return (0, 0)
    return (stat.st_mtime_ns, stat.st_ino)


def _key_pair(certificate_file: Path, key_file: Path) -> tuple[bytes, bytes]:
    key, chain = _read_pem(key_file, "PRIVATE KEY"), _read_pem(certificate_file, "CERTIFICATE")
    try:
        # gRPC would accept a pair that does not match, and then fail every handshake without saying why. With a
        # password an encrypted key fails too, instead of asking on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate_file, key_file, password="")
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise SecurityError(
            f"{certificate_file} and {key_file} are not a usable pair: {error}",
            hint="give a certificate and its own, unencrypted key, both in PEM",
        ) from error
    return key, chain


def _read_pem(file: Path, kind: str) -> bytes:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise SecurityError(f"{file}: {error.strerror}", hint="name a PEM file that exists and can be read") from error
    if f"{kind}-----".encode() not in content:
        raise SecurityError(f"{file}: no {kind} in it", hint="give a PEM file")
    return content


def fingerprints(pem: str) -> tuple[bytes, ...]:
    """SHA-256 of each certificate in a PEM, in DER and in order. What is none is left out."""
    found = []
    for part in pem.split(_END)[:-1]:
        try:
            found.append(hashlib.sha256(ssl.PEM_cert_to_DER_cert(part[part.index(_BEGIN) :] + _END)).digest())
        except ValueError:
            continue
    return tuple(found)


def in_authority(host: str) -> str:
    """A host as addresses write it: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def host_of(address: str) -> str:
    """The host of a gRPC address, without brackets and port."""
    for scheme in _NETWORK_SCHEMES:
        address = address.removeprefix(scheme)
    if address.startswith("["):
        return address[1:].partition("]")[0]
    # `::1` without brackets has more than one colon and no port.
    return address if address.count(":") > 1 else address.partition(":")[0]
