"""`may`: the one place that says what a role allows. Pure, and a table.

A grant is a role on a scope. Scopes are tenants, and everything below them; the empty scope is the whole pool. What has
no tenant (nodes, maintenance, rates) needs a grant on the whole pool, but for reading it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Final

import msgspec


class Role(enum.IntEnum):
    """Numbers equal those of the contract."""

    VIEWER = 1
    USER = 2
    MANAGER = 3
    OPERATOR = 4
    ADMIN = 5
    AGENT = 6
    METRICS = 7
    CONSOLE = 8
    WORKLOAD = 100
    """The programs of one lease. Never granted: it comes with the lease's own token, and its scope is the lease."""
    INVITED = 101
    """A node that is to join. Never granted: it comes with an invite, and its scope is the node that is invited."""


class Grant(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A role on a scope: a tenant (and all below), a node, a lease, or (empty) the whole pool."""

    role: Role
    scope: str = ""

    def __str__(self) -> str:
        return f"{self.role.name.lower()} on {self.scope}" if self.scope else self.role.name.lower()


class Action(enum.StrEnum):
    """What is asked of the pool. Each method of the contract is one of these, or one of two (own and others')."""

    IDENTIFY = "say who you are"
    READ_POOL = "read the pool's state"
    READ_LEASES = "read whole leases of tenant"
    ALLOCATE = "ask for leases of tenant"
    HOLD_OWN = "keep and end your own leases of tenant"
    KEEP_OTHERS = "keep leases alive that others asked for, of tenant"
    END_OTHERS = "end leases that others asked for, of tenant"
    READ_BILLS = "read invoices of tenant"
    DECLARE_BELOW = "declare what is below tenant"
    DECLARE = "declare pools, tenants, queues and rates of the pool"
    OPERATE = "change nodes, maintenance windows and where things run"
    KEEP_BOOKS = "post credits, correct usage and close the books"
    GRANT_BELOW = "give and take roles on tenant"
    GRANT = "give and take roles on the pool"
    AUDIT = "read who did what"
    SCRAPE = "read metrics"
    JOIN = "bring a node's key"
    BOOTSTRAP = "become administrator on the coordinator's own socket"


class Scoped(enum.Enum):
    """What an action's scope is."""

    NONE = 0
    """It is the pool's: any scope of a grant will do."""
    POOL = 1
    """It is the pool's: the grant must be on the whole pool."""
    TENANT = 2


_V, _U, _M, _O, _A = Role.VIEWER, Role.USER, Role.MANAGER, Role.OPERATOR, Role.ADMIN
_READERS: Final = frozenset({_V, _U, _M, _O, _A, Role.CONSOLE})

RULES: Final[dict[Action, tuple[Scoped, frozenset[Role]]]] = {
    Action.IDENTIFY: (Scoped.NONE, frozenset(Role) - {Role.INVITED}),
    Action.READ_POOL: (Scoped.NONE, _READERS | {Role.METRICS}),
    Action.READ_LEASES: (Scoped.TENANT, _READERS | {Role.WORKLOAD}),
    Action.ALLOCATE: (Scoped.TENANT, frozenset({_U, _M, _A})),
    Action.HOLD_OWN: (Scoped.TENANT, frozenset({_U, _M, _A, Role.WORKLOAD})),
    Action.KEEP_OTHERS: (Scoped.TENANT, frozenset({_M, _A})),
    Action.END_OTHERS: (Scoped.TENANT, frozenset({_M, _O, _A})),
    Action.READ_BILLS: (Scoped.TENANT, _READERS),
    Action.DECLARE_BELOW: (Scoped.TENANT, frozenset({_M, _A})),
    Action.DECLARE: (Scoped.POOL, frozenset({_A})),
    Action.OPERATE: (Scoped.POOL, frozenset({_O, _A})),
    Action.KEEP_BOOKS: (Scoped.POOL, frozenset({_A})),
    Action.GRANT_BELOW: (Scoped.TENANT, frozenset({_M, _A})),
    Action.GRANT: (Scoped.POOL, frozenset({_A})),
    Action.AUDIT: (Scoped.POOL, frozenset({_O, _A})),
    Action.SCRAPE: (Scoped.NONE, frozenset({Role.METRICS, Role.CONSOLE, _O, _A})),
    Action.JOIN: (Scoped.NONE, frozenset({Role.INVITED})),
    Action.BOOTSTRAP: (Scoped.POOL, frozenset()),
}
"""Who may do what. An action that is not here is refused to everybody."""

GIVABLE: Final = frozenset({_V, _U, _M, _O, _A, Role.METRICS, Role.CONSOLE})
"""What a person can give. AGENT comes with an enrolled key, WORKLOAD with a lease."""
LEAST: Final = Grant(Role.VIEWER)
"""Who may give this looks after those who have no role at all."""
_BY_MANAGERS: Final = frozenset({_V, _U, _M})


def may(grants: Iterable[Grant], action: Action, scope: str = "") -> bool:
    """Whether any of these allows that there. `scope` is the tenant in question."""
    rule = RULES.get(action)
    if rule is None:
        return False
    scoped, roles = rule
    for grant in grants:
        if grant.role not in roles:
            continue
        if scoped is Scoped.NONE:
            return True
        if scoped is Scoped.POOL and not grant.scope:
            return True
        if scoped is Scoped.TENANT and grant.role is not Role.WORKLOAD and covers(grant.scope, scope):
            return True
    return False


def ever_may(grants: Iterable[Grant], action: Action) -> bool:
    """Whether any of these allows that anywhere: what can be said before it is known where it is asked for."""
    rule = RULES.get(action)
    if rule is None:
        return False
    scoped, roles = rule
    return any(grant.role in roles and (scoped is not Scoped.POOL or not grant.scope) for grant in grants)


def may_give(grants: Iterable[Grant], given: Grant) -> bool:
    """Whether somebody with these may give that: nobody gives more than they have."""
    if given.role not in GIVABLE:
        return False
    if may(grants := tuple(grants), Action.GRANT):
        return True
    return bool(given.scope) and given.role in _BY_MANAGERS and may(grants, Action.GRANT_BELOW, given.scope)


def covers(scope: str, tenant: str) -> bool:
    """Whether a tenant is in a scope: it is that tenant, or below it, or the scope is the whole pool."""
    return not scope or tenant == scope or tenant.startswith(scope + "/")


def needed(action: Action, scope: str = "") -> str:
    """The least role that would do, as it is given: `user on vision`."""
    scoped, roles = RULES[action]
    if not roles:
        return "the coordinator's own socket"
    least = min(roles)
    return str(Grant(least, scope if scoped is Scoped.TENANT else ""))
