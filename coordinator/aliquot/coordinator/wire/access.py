"""Roles, tokens and the record of who did what, from and to what the core knows."""

from __future__ import annotations

from aliquot.common.errors import InvalidFieldError
from aliquot.coordinator.core.access.records import AuditEntry, Principal, Token
from aliquot.coordinator.core.access.roles import Grant, Role
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
