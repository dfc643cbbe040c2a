"""Whether an agent is who it says it is, by the certificate that it showed to us, or to the relay in between.

What a relay says of a certificate is not believed: it is checked again here against our own authorities, and its names
are read here. What remains to be believed of a relay is that the agent had the certificate's key, and that it passes on
what the agent says; which is why a relay must itself be named by its certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from aliquot.common.errors import ConfigError
from aliquot.coordinator.errors import NotAllowed

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

    def admit(self, relay: Caller) -> None:
        """Raises NotAllowed unless that is a relay of this pool."""
        if not self.enabled:
            raise NotAllowed("this coordinator takes no relays", hint="start it with --relays (relays.enabled)")
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
    """Those whose signature a certificate needs. Raises ConfigError where they can't be used."""

    def __init__(self, ca_file: Path) -> None:
        try:
            from cryptography import x509  # noqa: PLC0415 - an extra
            from cryptography.x509 import verification  # noqa: PLC0415
        except ImportError as error:
            raise ConfigError(
                "checking the certificates of agents behind relays needs the cryptography package",
                hint="pip install 'aliquot[relay]'",
            ) from error

        def may_sign(policy: object, certificate: x509.Certificate, basic: x509.BasicConstraints) -> None:
            if not basic.ca:
                raise ValueError("it may not sign others")

        try:
            store = verification.Store(x509.load_pem_x509_certificates(ca_file.read_bytes()))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{ca_file}: {error}", hint="name a PEM file of certificate authorities") from error
        authority = verification.ExtensionPolicy.permit_all().require_present(
            x509.BasicConstraints, verification.Criticality.AGNOSTIC, may_sign
        )
        # As TLS does for clients: signature, dates and chain count; what else is in it is for who reads the names.
        self._policy = (
            verification.PolicyBuilder()
            .store(store)
            .extension_policies(ca_policy=authority, ee_policy=verification.ExtensionPolicy.permit_all())
        )
        self._x509 = x509
        self._not_verified = verification.VerificationError

    def auth_context(self, certificate_pem: bytes) -> dict[str, list[bytes]]:
        """What gRPC would say of a caller with this certificate. Raises NotAllowed: not by us, or expired."""
        x509 = self._x509
        try:
            certificate = x509.load_pem_x509_certificate(certificate_pem)
            self._policy.build_client_verifier().verify(certificate, [])
        except (ValueError, self._not_verified) as error:
            raise NotAllowed(
                f"the agent behind the relay has no certificate that counts here: {error}",
                hint="relays must ask agents for certificates of the same authorities as the coordinator",
            ) from error
        common = [
            str(name.value).encode() for name in certificate.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        ]
        alternative: list[bytes] = []
        try:
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            alternative = [str(name.value).encode() for name in names]
        except (x509.ExtensionNotFound, ValueError):
            pass
        return {COMMON_NAME: common, ALTERNATIVE_NAMES: alternative}
