"""Who may do what: roles, tokens, nodes that join, the pool's own authority."""

from __future__ import annotations

from aliquot.coordinator.core.books.access import Actor, Token
from aliquot.coordinator.core.books.enrolment import Enrolled, Invite
from aliquot.coordinator.core.books.roles import Grant
from aliquot.coordinator.core.commands.base import Command


class GrantRole(Command[None], frozen=True):
    """Give a principal a role."""

    by: Actor
    principal: str
    grant: Grant


class RevokeRole(Command[None], frozen=True):
    """Take a role from a principal."""

    by: Actor
    principal: str
    grant: Grant


class IssueToken(Command[Token], frozen=True):
    """Let a token count. Its id and hash are fresh; when it was made, and by whom, is filled in."""

    by: Actor
    token: Token
    grants: tuple[Grant, ...] = ()
    """Roles that its principal is given in the same step."""


class OpenSession(Command[Token], frozen=True):
    """Let a token count that has roles of its own, for somebody whom `by`, an identity provider, vouches for."""

    by: Actor
    token: Token


class RevokeTokens(Command[tuple[Token, ...]], frozen=True):
    """End tokens: these, and all of a principal's."""

    by: Actor
    token_ids: tuple[str, ...] = ()
    principal: str = ""


class InviteNode(Command[Invite], frozen=True):
    """Let a node bring a key. The invite's id and hash are fresh; when it was made and ends is filled in."""

    invite: Invite
    ttl_ms: int


class JoinNode(Command[Enrolled], frozen=True):
    """A node comes with an invite and a key that it has proven to have."""

    invite_id: str
    invite_sha256: bytes
    node_id: str
    node_name: str
    key_sha256: bytes


class DisenrolNode(Command[None], frozen=True):
    """Let no key speak for a node any more."""

    node_id: str


class RotateAuthority(Command[int], frozen=True):
    """Begin a generation of the pool's authority, made with this fresh salt. The answer is its number."""

    salt: bytes
    by: str


class RetireAuthority(Command[int], frozen=True):
    """Let the older of two generations be trusted no more. `callers`: those with tokens trust the authority, too."""

    force: bool = False
    callers: bool = True


class NoteTrust(Command[None], frozen=True):
    """A node or the holder of a token says which generation is the latest that it trusts."""

    number: int
    node_id: str = ""
    token_id: str = ""
