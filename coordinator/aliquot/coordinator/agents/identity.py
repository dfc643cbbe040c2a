"""Whether an agent is who it says it is, by the certificate that it showed to us, or to the relay in between.

What a relay says of a certificate is not believed: it is checked again here against our own authorities, and its names
are read here. What remains to be believed of a relay is that the agent had the certificate's key, and that it passes on
what the agent says; which is why a relay must itself be named by its certificate.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from aliquot.common.errors import ConfigError
from aliquot.coordinator.errors import NotAllowed

if TYPE_CHECKING:  # an extra
    from cryptography.x509 import verification

log = logging.getLogger(__name__)

AuthContext = Mapping[str, Iterable[bytes]]
COMMON_NAME, ALTERNATIVE_NAMES = "x509_common_name", "x509_subject_alternative_name"


class Caller(Protocol):
    """What gRPC's contexts have."""

    def auth_context(self) -> AuthContext:
        """What was learnt at the handshake."""


AgentRule = Callable[[Caller, str], None]
"""Raises NotAllowed when the caller may not speak for the node of that id."""


def any_agent(caller: Caller, node_id: str) -> None:
    """Whoever could connect may speak for any node."""


def named_agent(caller: Caller, node_id: str) -> None:
    """The caller's certificate must have the node's id among its names."""
    names = certificate_names(caller.auth_context())
    if node_id not in names:
        raise NotAllowed(
            f"the certificate of this agent is for {', '.join(sorted(names)) or 'nobody'}, not for node {node_id}",
            hint="give the agent a certificate with its node id as a name, or set its --node-id",
        )


def certificate_names(auth_context: AuthContext) -> frozenset[str]:
    """The common and alternative names of the certificate that the other side showed; empty without one."""
    return frozenset(
        name.decode(errors="replace") for key in (COMMON_NAME, ALTERNATIVE_NAMES) for name in auth_context.get(key, ())
    )


@dataclass(frozen=True, slots=True)
class RelayRules:
    """Whether, and for whom, a coordinator serves agents behind relays."""

    enabled: bool = False
    names: frozenset[str] | None = None
    """Of relays' certificates; None where callers show none."""
    authorities: Authorities | None = None
    """What the certificates of the agents themselves are checked by; None where they need none."""

    def admit(self, relay: Caller, *, known: bool = False) -> None:
        """Raises NotAllowed unless that is a relay of this pool. `known`: by a token of its own."""
        if not self.enabled:
            raise NotAllowed("this coordinator takes no relays", hint="start it with --relays (relays.enabled)")
        if known:
            return
        names = certificate_names(relay.auth_context())
        if self.names is not None and not names & self.names:
            raise NotAllowed(
                f"{', '.join(sorted(names)) or 'a caller without a name'} is no relay of this pool",
                hint="name its certificate in the coordinator's setting relays.names",
            )

    def auth_context(self, certificate_pem: bytes) -> AuthContext:
        """Of an agent that a relay says has shown this certificate. Raises NotAllowed."""
        return {} if self.authorities is None else self.authorities.auth_context(certificate_pem)


class Authorities:
    """Those whose signature a certificate needs, read again when their file changes.

    Raises ConfigError where they can't be used now.
    """

    def __init__(self, ca_file: Path) -> None:
        try:
            import cryptography.x509.verification  # noqa: F401, PLC0415 - an extra
        except ImportError as error:
            raise ConfigError(
                "checking the certificates of agents behind relays needs the cryptography package",
                hint="pip install 'aliquot[relay]'",
            ) from error
        self._ca_file = ca_file
        self._seen = _stamp(ca_file)
        self._policy = self._read()

    def _read(self) -> verification.PolicyBuilder:
        from cryptography import x509  # noqa: PLC0415
        from cryptography.x509 import oid, verification  # noqa: PLC0415

        def may_sign(_: verification.Policy, signer: x509.Certificate, basic: x509.BasicConstraints) -> None:
            if not basic.ca:
                raise ValueError(f"{signer.subject.rfc4514_string()} may not sign others")

        def is_for_clients(
            _: verification.Policy, certificate: x509.Certificate, usage: x509.ExtendedKeyUsage | None
        ) -> None:
            allowed = (oid.ExtendedKeyUsageOID.CLIENT_AUTH, oid.ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE)
            if usage is not None and not any(each in usage for each in allowed):
                raise ValueError(f"{certificate.subject.rfc4514_string()} is no client's")

        try:
            store = verification.Store(x509.load_pem_x509_certificates(self._ca_file.read_bytes()))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self._ca_file}: {error}", hint="name a PEM file of certificate authorities") from error
        # As TLS has it for clients: signature, dates, chain and use count; the rest is for who reads the names.
        either = verification.Criticality.AGNOSTIC
        everything = verification.ExtensionPolicy.permit_all()
        return (
            verification.PolicyBuilder()
            .store(store)
            .extension_policies(
                ca_policy=everything.require_present(x509.BasicConstraints, either, may_sign),
                ee_policy=everything.may_be_present(x509.ExtendedKeyUsage, either, is_for_clients),
            )
        )

    def _refresh(self) -> None:
        stamp = _stamp(self._ca_file)
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._policy = self._read()
        except ConfigError as error:
            log.error("the renewed authorities can't be used; the old ones stay: %s", error.message)  # noqa: TRY400

    def auth_context(self, certificate_pem: bytes) -> dict[str, list[bytes]]:
        """What gRPC would say of a caller with this certificate. Raises NotAllowed: not by us, or expired."""
        from cryptography import x509  # noqa: PLC0415
        from cryptography.x509 import oid, verification  # noqa: PLC0415

        self._refresh()
        try:
            certificate = x509.load_pem_x509_certificate(certificate_pem)
            self._policy.build_client_verifier().verify(certificate, [])
        except (ValueError, verification.VerificationError) as error:
            raise NotAllowed(
                f"the agent behind the relay has no certificate that counts here: {error}",
                hint="relays must ask agents for certificates of the same authorities as the coordinator",
            ) from error
        subject = certificate.subject.get_attributes_for_oid(oid.NameOID.COMMON_NAME)
        alternative: list[bytes] = []
        with contextlib.suppress(x509.ExtensionNotFound, ValueError):
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            alternative = [str(name.value).encode() for name in names]
        return {COMMON_NAME: [str(name.value).encode() for name in subject], ALTERNATIVE_NAMES: alternative}


def _stamp(file: Path) -> tuple[int, int]:
    try:
        stat = file.stat()
    except OSError:
        return (0, 0)
    return (stat.st_mtime_ns, stat.st_ino)
