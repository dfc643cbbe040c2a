"""Who may do what: principals with their roles, tokens, and what was done and refused; `Pool.access` gives the values.

Field names are those of the contract. Times are milliseconds since the Unix epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Role(StrEnum):
    """What a principal may do, on a tenant and all below it, or on the whole pool."""

    UNSPECIFIED = "UNSPECIFIED"
    VIEWER = "VIEWER"
    """Reads; of other tenants' leases only what places and sums need."""
    USER = "USER"
    """Asks for leases, and keeps and ends those it asked for."""
    MANAGER = "MANAGER"
    """All leases of a tenant; declares what is below the tenant; gives roles there."""
    OPERATOR = "OPERATOR"
    """Nodes, maintenance; ends any lease."""
    ADMIN = "ADMIN"
    """Everything."""
    AGENT = "AGENT"
    """Speaks for a node; comes with its enrolment."""
    METRICS = "METRICS"
    """Reads metrics."""
    CONSOLE = "CONSOLE"
    """Reads what a console shows to people by their own roles."""


@dataclass(frozen=True, slots=True)
class RoleGrant:
    """A role on a scope."""

    role: Role
    scope: str = ""
    """A tenant, and all below it; of an AGENT, its node; empty: the whole pool."""

    def __str__(self) -> str:
        return f"{self.role.lower()} on {self.scope}" if self.scope else self.role.lower()


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the caller is."""

    principal: str
    grants: tuple[RoleGrant, ...]
    token_id: str
    expires_ms: int
    """Of the token; 0: it does not expire."""
    lease_id: str
    """The caller is a program of this lease; empty: it is not."""
    pool_id: str = ""
    """Of all the pool's coordinators alike."""
    coordinators: tuple[str, ...] = ()
    """Where each of several is reached; empty: there is one."""


@dataclass(frozen=True, slots=True)
class Principal:
    """A person or a service."""

    name: str
    grants: tuple[RoleGrant, ...]
    tokens: int
    """How many it has."""


@dataclass(frozen=True, slots=True)
class Token:
    """What the coordinator keeps of a token: everything but its text."""

    token_id: str
    principal: str
    created_ms: int
    expires_ms: int
    """0: it does not expire."""
    note: str
    issued_by: str


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A new token."""

    token: str = field(repr=False)
    """Its text, which is nowhere else."""
    issued: Token
    addresses: tuple[str, ...] = ()
    """Where others reach the coordinators."""
    ca_pem: str = ""
    """Whom to trust there; empty: the coordinator's certificate is not the pool's own, or there is no TLS."""


@dataclass(frozen=True, slots=True)
class LoginOffer:
    """Who vouches for people and pods here."""

    issuer: str
    """Of OpenID Connect; empty: tokens come from an administrator."""
    client_id: str
    scopes: tuple[str, ...]
    pods_audience: str
    """Of the service accounts' tokens that are taken; empty: none are."""
    client_secret: str = ""
    """What the provider wants from installed programs beside their id; everybody may know it."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Somebody changed something."""

    number: int
    at_ms: int
    principal: str
    token_id: str
    peer: str
    action: str
    """The method's name, such as Cordon."""
    subject: str
    """What it was done to: a node, a tenant, a lease, a principal."""


@dataclass(frozen=True, slots=True)
class Audit:
    """A part of what was changed by whom, the latest first."""

    entries: tuple[AuditEntry, ...]
    oldest_ms: int
    """Of what the coordinator keeps."""


@dataclass(frozen=True, slots=True)
class Denial:
    """Somebody was refused something."""

    at_ms: int
    principal: str
    """Empty: nobody that is known."""
    peer: str
    method: str
    reason: str
    message: str
    times: int
    """In a row."""


@dataclass(frozen=True, slots=True)
class NodeInvite:
    """Lets one node join, once."""

    invite: str = field(repr=False)
    """Its text, which is nowhere else."""
    node: str
    expires_ms: int
    addresses: tuple[str, ...]
    """Where the node reaches the coordinators."""
    ca_pem: str
    """Whom it is to trust there; empty: the coordinator's certificate is not the pool's own, or there is no TLS."""


@dataclass(frozen=True, slots=True)
class AuthorityGeneration:
    """One of the pool's own certificate authorities, which follow each other."""

    number: int
    begun_ms: int
    """0: with the pool."""
    begun_by: str
    retired_ms: int
    """0: it is trusted."""
    sha256: str
    """Of its certificate in DER, in hexadecimal; empty: of long ago."""


@dataclass(frozen=True, slots=True)
class Authority:
    """The pool's own certificate authority."""

    authorities_pem: str
    """Of all generations that are trusted, the latest first."""
    generations: tuple[AuthorityGeneration, ...]
    """The oldest first."""
    shown: bool
    """Coordinators' certificates are by it; else they are configured, or only their own machine can connect."""
    coordinators: tuple[str, ...] = ()
    """As of `Identity`."""


@dataclass(frozen=True, slots=True)
class TrustsOlder:
    """Who has not said that it trusts the latest generation: a node, or the holder of a token."""

    generation: int
    """The latest that it trusts, as far as it has said so."""
    node_id: str
    token_id: str
    principal: str


@dataclass(frozen=True, slots=True)
class AuthorityUse:
    """The pool's authority, and who still trusts only an older one."""

    authority: Authority
    behind: tuple[TrustsOlder, ...]
    """At most 1,000."""
    behind_total: int
