"""Settings of logins: whom to believe, and which roles follow from what they say. Nobody without a rule gets in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from aliquot.common.errors import AliquotError
from aliquot.common.names import validate_tenant
from aliquot.common.urls import check_url
from aliquot.coordinator.core.books.roles import Grant, Role

RoleName = Literal["viewer", "user", "manager", "operator", "admin", "metrics", "console"]
_TENANTS = ("viewer", "user", "manager")


class _Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    role: RoleName
    tenant: str = ""
    """Empty: on the whole pool."""

    def __post_init__(self) -> None:
        if not self.tenant:
            return
        if self.role not in _TENANTS:
            raise ValueError(f"{self.role} is a role on the whole pool; leave tenant out")
        try:
            validate_tenant(self.tenant, "tenant")
        except AliquotError as error:
            raise ValueError(error.message) from error

    @property
    def grant(self) -> Grant:
        """What it gives."""
        return Grant(Role[self.role.upper()], self.tenant)


class OidcRule(_Rule, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A role for a group, or for one user."""

    group: str = ""
    user: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.group) == bool(self.user):
            raise ValueError("a rule is for a group or for a user")


class PodRule(_Rule, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A role for the service accounts of a namespace, or for one of them."""

    namespace: str
    account: str = ""


@dataclass(frozen=True, slots=True)
class OidcSettings:
    """An OpenID provider that vouches for people."""

    issuer: str = ""
    """Its address, exactly as its tokens have it in `iss`. Empty: nobody logs in that way."""
    client_id: str = ""
    client_secret: str = ""
    """What some providers want from programs on people's machines, too (RFC 8252, 8.5). Everybody who asks is told it,
    so it must be of a client for installed programs; others are public and have none.
    """
    audience: str = ""
    """What `aud` of a token must have; by default the client id."""
    username_claim: str = "email"
    """Becomes the principal's name. It must be one that people can't choose at the provider."""
    groups_claim: str = "groups"
    scopes: tuple[str, ...] = ("openid", "email", "profile")
    rules: tuple[OidcRule, ...] = ()
    ca_file: Path | None = None
    """The authority of the provider's certificate, in PEM; by default the system's."""

    def __post_init__(self) -> None:
        if not self.issuer:
            if self.rules:
                raise ValueError("rules without an issuer")
            return
        if not self.client_id:
            raise ValueError("an issuer without client_id")
        if "openid" not in self.scopes:
            raise ValueError("scopes must have openid")
        try:
            check_url(self.issuer)
        except AliquotError as error:
            raise ValueError(error.message) from error

    def grants_of(self, user: str, groups: Iterable[str]) -> tuple[Grant, ...]:
        """What the rules give."""
        of = frozenset(groups)
        rules = (rule for rule in self.rules if rule.user == user or rule.group in of)
        return tuple(sorted({rule.grant for rule in rules}))


_OF_THE_POD = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class PodSettings:
    """A Kubernetes cluster that vouches for its pods. Without rules and nodes it is not asked."""

    audience: str = "aliquot"
    """What tokens must be projected for: others are for the cluster itself, or for others in it."""
    rules: tuple[PodRule, ...] = ()
    nodes: tuple[str, ...] = ()
    """Service accounts, each NAMESPACE/NAME, whose pods bring in the node on which they run: the agents'."""
    api: str = ""
    """The API server's address; by default that of the cluster in which the coordinator runs."""
    token_file: Path = _OF_THE_POD / "token"
    """The coordinator's own; its service account needs the cluster role system:auth-delegator."""
    ca_file: Path = _OF_THE_POD / "ca.crt"

    def __post_init__(self) -> None:
        if (self.rules or self.nodes) and not self.audience:
            raise ValueError("pods.rules and pods.nodes need an audience")
        if self.api:
            try:
                check_url(self.api)
            except AliquotError as error:
                raise ValueError(error.message) from error

    def grants_of(self, namespace: str, account: str) -> tuple[Grant, ...]:
        """What the rules give."""
        rules = (rule for rule in self.rules if rule.namespace == namespace and rule.account in ("", account))
        return tuple(sorted({rule.grant for rule in rules}))


@dataclass(frozen=True, slots=True)
class Vouched:
    """A caller, as others know it."""

    by: str
    """Who vouches, as the record will have it: `oidc:login.example.com`."""
    principal: str
    grants: tuple[Grant, ...]
    expires_ms: int
    """When the voucher ends, and so the session at the latest."""
    node: str = ""
    """Of a pod that may bring in its node: which that is."""
