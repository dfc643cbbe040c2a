"""Who may do what: roles, tokens, nodes that join, the pool's own authority."""

from __future__ import annotations

from dataclasses import dataclass

from aliquot.coordinator.core.books.access import Actor, Token
from aliquot.coordinator.core.books.enrolment import Enrolled, Invite
from aliquot.coordinator.core.books.roles import Grant
from aliquot.coordinator.core.commands.base import Command


@dataclass(frozen=True, slots=True)
class GrantRole(Command[None]):
    """Give a principal a role."""

    by: Actor
    principal: str
    grant: Grant


@dataclass(frozen=True, slots=True)
class RevokeRole(Command[None]):
    """Take a role from a principal."""

    by: Actor
    principal: str
    grant: Grant


@dataclass(frozen=True, slots=True)
class IssueToken(Command[Token]):
    """Let a token count. Its id and hash are fresh; when it was made, and by whom, is filled in."""

    by: Actor
    token: Token
    grants: tuple[Grant, ...] = ()
    """Roles that its principal is given in the same step."""


@dataclass(frozen=True, slots=True)
class OpenSession(Command[Token]):
    """Let a token count that has roles of its own, for somebody whom `by`, an identity provider, vouches for."""

    by: Actor
    token: Token


@dataclass(frozen=True, slots=True)
class RevokeTokens(Command[tuple[Token, ...]]):
    """End tokens: these, and all of a principal's."""

    by: Actor
    token_ids: tuple[str, ...] = ()
    principal: str = ""


@dataclass(frozen=True, slots=True)
class InviteNode(Command[Invite]):
    """Let a node bring a key. The invite's id and hash are fresh; when it was made and ends is filled in."""

    invite: Invite
    ttl_ms: int


@dataclass(frozen=True, slots=True)
class JoinNode(Command[Enrolled]):
    """A node comes with an invite and a key that it has proven to have."""

    invite_id: str
    invite_sha256: bytes
    node_id: str
    node_name: str
    key_sha256: bytes


@dataclass(frozen=True, slots=True)
class DisenrolNode(Command[None]):
    """Let no key speak for a node any more."""

    node_id: str


@dataclass(frozen=True, slots=True)
class RotateAuthority(Command[int]):
    """Begin a generation of the pool's authority, made with this fresh salt. The answer is its number."""

    salt: bytes
    by: str


@dataclass(frozen=True, slots=True)
class RetireAuthority(Command[int]):
    """Let the older of two generations be trusted no more. `callers`: those with tokens trust the authority, too."""

    force: bool = False
    callers: bool = True


@dataclass(frozen=True, slots=True)
class NoteTrust(Command[None]):
    """A node or the holder of a token says which generation is the latest that it trusts."""

    number: int
    node_id: str = ""
    token_id: str = ""
