"""Who makes the call that is being answered: found at the door, asked by the services."""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, TypeVar

from aliquot.common.names import plain_text
from aliquot.coordinator.core.books.access import SYSTEM, Actor
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.roles import Action, Grant, Role, may, needed
from aliquot.coordinator.core.commands import Command, OnBehalf
from aliquot.coordinator.core.values.errors import RoleMissing
from aliquot.coordinator.wire.calls import this_call
from aliquot.coordinator.wire.hiding import Sees
from aliquot.v1.types_pb2 import LeaseRequest

T = TypeVar("T")
SUBJECT_CHARS_MAX = 256


@dataclass(frozen=True, slots=True)
class Caller:
    """A principal that has shown who it is, with what it may do."""

    principal: str
    grants: tuple[Grant, ...] = ()
    token_id: str = ""
    expires_ms: int = 0
    """When its token ends; 0: never."""
    lease_id: str = ""
    """The caller is the workload of this lease, and of no other."""

    @property
    def from_token(self) -> bool:
        """Whether it is a principal of the books, known by a token in them: no lease, no invite and not the pool."""
        return bool(self.token_id) and ":" not in self.principal

    def may(self, action: Action, scope: str = "") -> bool:
        """Whether its roles allow that there."""
        return may(self.grants, action, scope)

    def must(self, action: Action, scope: str = "") -> None:
        """Raises RoleMissing unless its roles allow that there."""
        if not may(self.grants, action, scope):
            raise missing(self, action, scope)

    def may_see(self, lease: Lease) -> bool:
        """Whether it sees the whole of this lease."""
        return self.lease_id == lease.lease_id or may(self.grants, Action.READ_LEASES, lease.request.tenant)

    def must_hold(self, lease: Lease, others: Action) -> None:
        """Raises RoleMissing unless it asked for this lease or runs in it, or `others` is allowed."""
        if self.lease_id == lease.lease_id:
            return
        tenant = lease.request.tenant
        if lease.by == self.principal and may(self.grants, Action.HOLD_OWN, tenant):
            return
        if not may(self.grants, others, tenant):
            raise missing(self, others, tenant if self.may_see(lease) else "")

    @property
    def home(self) -> str:
        """The only tenant that it may ask for, if there is only one; a request that names none is for that."""
        scopes = {grant.scope for grant in self.grants if grant.role in (Role.USER, Role.MANAGER, Role.ADMIN)}
        return scopes.pop() if len(scopes) == 1 else ""

    @property
    def sees_all(self) -> bool:
        """Whether it sees the leases of every tenant."""
        return may(self.grants, Action.READ_LEASES)

    @property
    def sees(self) -> Sees | None:
        """Which leases it sees the whole of; None: all."""
        return None if self.sees_all else self.may_see

    def actor(self, action: str = "") -> Actor:
        """As the record will have it. `action`: where the method's name does not say what is done."""
        method, context = this_call()
        return Actor(self.principal, self.token_id, context.peer(), action or method)


NOBODY: Final = Caller("")
OURSELVES: Final = Caller(SYSTEM, (Grant(Role.ADMIN),))
"""Whoever gets into the coordinator's own socket."""
_CALLER: ContextVar[Caller] = ContextVar("caller", default=NOBODY)


def caller() -> Caller:
    """Who makes this call; outside of a call, nobody, who may do nothing."""
    return _CALLER.get()


def set_caller(who: Caller) -> None:
    """From here on, in this task and what it begins."""
    _CALLER.set(who)


_OF_TENANTS = frozenset({Role.USER.name.lower(), Role.MANAGER.name.lower()})
"""Roles that are given on a tenant; on the whole pool only by somebody who means that."""


def missing(who: Caller, action: Action, scope: str = "") -> RoleMissing:
    """The refusal: what is missing, what there is, and the command that gets it."""
    wanted = needed(action, scope)
    has = ", ".join(map(str, who.grants)) or "nobody"
    role, _, where = wanted.partition(" on ")
    if not where and role in _OF_TENANTS:
        # Whose it is can't be said to this caller: followed as printed, the command must not give the whole pool.
        where = "TENANT"
    command = f"aliquot access grant {who.principal or 'NAME'} {role}" + (f" --tenant {where}" if where else "")
    return RoleMissing(
        f"to {_asked(action, scope)} needs {wanted}; {who.principal or 'the caller'} is {has}",
        principal=who.principal,
        hint=f"somebody who may give it: {command}",
    )


def at_home(request: LeaseRequest) -> LeaseRequest:
    """The request, for its caller's tenant where it names none and the caller has just one."""
    if not request.tenant and (home := caller().home):
        request.tenant = home
    return request


def _asked(action: Action, scope: str) -> str:
    """What is asked for, there; at the door it is not known where."""
    if scope:
        return f"{action.value} {scope}"
    return re.sub(r",? (?:of|on|for|below) (?:the )?(?:tenant|node)$", "", action.value)


def on_behalf(subject: str, command: Command[T], action: str = "") -> OnBehalf[T]:
    """The command, with who gives it by this call, for the record. `action`: see `Caller.actor`."""
    return OnBehalf(caller().actor(action), plain_text(subject, SUBJECT_CHARS_MAX), command)
