"""Roles, tokens and the record of who did what, from and to what the core knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from aliquot.common.errors import InvalidFieldError
from aliquot.common.fields import Writer
from aliquot.coordinator.core.books.access import AuditEntry, Principal, Token
from aliquot.coordinator.core.books.enrolment import Generation
from aliquot.coordinator.core.books.roles import Grant, Role
from aliquot.coordinator.core.deciding.enrolment import Behind
from aliquot.coordinator.reading.denials import Denial
from aliquot.v1 import access_pb2


def read_grant(message: access_pb2.RoleGrant, field: str) -> Grant:
    """A role on a scope. Raises InvalidFieldError; whether it may be given, the core says."""
    try:
        role = Role(message.role)
    except ValueError:
        raise InvalidFieldError(f"{field}.role", f"{message.role} is not known", hint="viewer, user, …") from None
    return Grant(role, message.scope)


grant_message = Writer(access_pb2.RoleGrant, Grant).message
"""A role on a scope."""
_PRINCIPAL = Writer(access_pb2.Principal, Principal, {"tokens": lambda _, tokens: tokens})
token_message = Writer(access_pb2.Token, Token).message
"""A token without its text, which nobody has."""
audit_message = Writer(access_pb2.AuditEntry, AuditEntry).message
"""One line of the record."""
denial_message = Writer(access_pb2.Denial, Denial).message
"""Calls that were refused for who made them."""
behind_message = Writer(access_pb2.TrustsOlder, Behind).message
"""Somebody who still trusts only an older generation."""


def principal_message(principal: Principal, tokens: int) -> access_pb2.Principal:
    """A principal with its roles."""
    return _PRINCIPAL.message(principal, tokens)


_GENERATIONS_TOLD = 16


class Known(Protocol):
    """The certificates of the pool's authority; see `agents.authority.Generations`."""

    @property
    def pem(self) -> bytes:
        """Whom to trust."""

    def sha256_of(self, number: int) -> bytes:
        """Of a generation's certificate; empty: of long ago."""


_GENERATION = Writer(
    access_pb2.AuthorityGeneration,
    Generation,
    {"begun_by": "by", "sha256": lambda generation, known: known.sha256_of(generation.number).hex()},
)


def authority_message(
    known: Known, generations: Sequence[Generation], *, shown: bool, coordinators: Sequence[str]
) -> access_pb2.Authority:
    """The pool's authority, without what its keys are made from."""
    return access_pb2.Authority(
        authorities_pem=known.pem.decode(),
        generations=[_GENERATION.message(each, known) for each in generations[-_GENERATIONS_TOLD:]],
        shown=shown,
        coordinators=coordinators,
    )
