"""Roles, tokens and the record of who did what, from and to what the core knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aliquot.common.errors import InvalidFieldError
from aliquot.coordinator.core.books.access import AuditEntry, Principal, Token
from aliquot.coordinator.core.books.enrolment import Generation
from aliquot.coordinator.core.books.roles import Grant, Role
from aliquot.coordinator.core.deciding.enrolment import Behind
from aliquot.v1 import access_pb2


def read_grant(message: access_pb2.RoleGrant, field: str) -> Grant:
    """A role on a scope. Raises InvalidFieldError; whether it may be given, the core says."""
    try:
        role = Role(message.role)
    except ValueError:
        raise InvalidFieldError(f"{field}.role", f"{message.role} is not known", hint="viewer, user, …") from None
    return Grant(role, message.scope)


def grant_message(grant: Grant) -> access_pb2.RoleGrant:
    """A role on a scope."""
    return access_pb2.RoleGrant(role=int(grant.role), scope=grant.scope)  # type: ignore[arg-type]  # equal numbers


def principal_message(principal: Principal, tokens: int) -> access_pb2.Principal:
    """A principal with its roles."""
    return access_pb2.Principal(name=principal.name, grants=map(grant_message, principal.grants), tokens=tokens)


def token_message(token: Token) -> access_pb2.Token:
    """A token without its text, which nobody has."""
    return access_pb2.Token(
        token_id=token.token_id,
        principal=token.principal,
        created_ms=token.created_ms,
        expires_ms=token.expires_ms,
        note=token.note,
        issued_by=token.issued_by,
    )


def audit_message(entry: AuditEntry) -> access_pb2.AuditEntry:
    """One line of the record."""
    return access_pb2.AuditEntry(
        number=entry.number,
        at_ms=entry.at_ms,
        principal=entry.principal,
        token_id=entry.token_id,
        peer=entry.peer,
        action=entry.action,
        subject=entry.subject,
    )


_GENERATIONS_TOLD = 16


class Known(Protocol):
    """The certificates of the pool's authority; see `agents.authority.Generations`."""

    @property
    def pem(self) -> bytes:
        """Whom to trust."""

    def sha256_of(self, number: int) -> bytes:
        """Of a generation's certificate; empty: of long ago."""


def authority_message(known: Known, generations: Sequence[Generation], *, shown: bool) -> access_pb2.Authority:
    """The pool's authority, without what its keys are made from."""
    return access_pb2.Authority(
        authorities_pem=known.pem.decode(),
        generations=[
            access_pb2.AuthorityGeneration(
                number=each.number,
                begun_ms=each.begun_ms,
                begun_by=each.by,
                retired_ms=each.retired_ms,
                sha256=known.sha256_of(each.number).hex(),
            )
            for each in generations[-_GENERATIONS_TOLD:]
        ],
        shown=shown,
    )


def behind_message(behind: Behind) -> access_pb2.TrustsOlder:
    """Somebody who still trusts only an older generation."""
    return access_pb2.TrustsOlder(
        generation=behind.generation,
        node_id=behind.node_id,
        token_id=behind.token_id,
        principal=behind.principal,
    )
