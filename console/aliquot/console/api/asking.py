"""What comes in: the SDK's values as bodies of requests. A field that they don't have is an error."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from fastapi import Header, Query
from pydantic import BaseModel, ConfigDict, Field
from pydantic.dataclasses import dataclass as checked

from aliquot.client import MemberPlace, NodeDeclaration, Request, WaitUntil
from aliquot.client.access import Role
from aliquot.client.admin import Declarations, MaintenanceWindow
from aliquot.common import limits

T = TypeVar("T")
MILLISECONDS_MAX = 253_402_300_799_999
"""The end of the year 9999."""
_STRICT = ConfigDict(extra="forbid")


def _body(kind: type[T]) -> type[T]:
    made: Any = checked(kind, config=_STRICT, frozen=True)
    return made  # type: ignore[no-any-return]


class Body(BaseModel):
    """Of requests that are no value of the SDK."""

    model_config = _STRICT


Asked = _body(Request)
Declared = _body(Declarations)
DeclaredNode = _body(NodeDeclaration)
Window = _body(MaintenanceWindow)
Place = _body(MemberPlace)


class Allocation(Body):
    """A request for a lease, and what the answer is to wait for."""

    request: Asked  # type: ignore[valid-type]
    until: WaitUntil = WaitUntil.GRANTED
    wait_s: float = Field(30.0, ge=0, le=3600, description="Then the lease is answered as it is: it may be QUEUED.")
    places: list[Place] = Field(  # type: ignore[valid-type]
        [], description="Exactly there, or refused: a place for each member. Empty: where the pool finds room."
    )


class Reason(Body):
    """Why, for people."""

    reason: str = ""


class Return(Reason):
    """`overrule`: although its agent says that it is not well."""

    overrule: bool = False


class Drain(Reason):
    """Why, and how long what runs has."""

    grace_s: int = Field(0, ge=0, description="0: each lease's own.")


class Quarantine(Reason):
    """Why a card is taken out of service, and what becomes of what runs there."""

    drain: bool = Field(False, description="Also end its leases, each with its grace.")


class Slices(Body):
    """Which slices are meant."""

    slice_ids: list[str] = Field(default_factory=list, description="None: all.")


class Shape(Body):
    """What an elastic lease's launcher has adapted to."""

    shape: int = Field(ge=0)


class Extension(Body):
    """How long a lease may run in all, counted from its grant."""

    time_limit_s: int = Field(ge=1, le=limits.MAX_TIME_LIMIT_S, description="No shorter than it is.")
    reason: str = ""


class Exemption(Body):
    """For how long idleness of a lease has no consequences, and why."""

    for_s: int = Field(ge=0, le=86_400, description="0: it has consequences again.")
    reason: str = ""


class Fitting(Body):
    """A request, and the nodes to try: ids or names; empty: all."""

    request: Asked  # type: ignore[valid-type]
    node_ids: list[str] = Field([], max_length=5000)


class Grant(Body):
    """A role for somebody, on a tenant and all below it; no scope: on the whole pool."""

    principal: str
    role: Role
    scope: str = ""


class RoleOn(Body):
    """A role on a scope."""

    role: Role
    scope: str = ""


class NewToken(Body):
    """Whom a token is for, and what comes with it."""

    principal: str = Field("", description="Empty: the caller.")
    grants: list[RoleOn] = []
    ttl_ms: int = Field(0, ge=0, le=MILLISECONDS_MAX, description="0: it does not expire.")
    note: str = ""


class Credit(Body):
    """Money, once for each reference."""

    money_micro: int = Field(ge=-(1 << 62), le=1 << 62, description="Millionths of the currency.")
    reference: str
    note: str = ""


PageSize = Annotated[int, Query(ge=1, le=1000)]
Moment = Annotated[int, Query(ge=0, le=MILLISECONDS_MAX, description="Milliseconds since the Unix epoch.")]
Key = Annotated[str, Header(alias="Idempotency-Key", description="The same key again gives the same lease.")]
PoolName = Annotated[str, Query(alias="pool")]
Fields = Annotated[
    str, Query(max_length=1000, description="Of each item, only these, with commas between; empty: all of them.")
]
IfMatch = Annotated[
    str, Header(max_length=1000, description="The `ETag` of what was looked at; if it is another: 412.")
]
