"""Principals of the tests, each with a token of its own, and a pool that knows them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from aliquot.common.tokens import lease_token
from aliquot.v1 import access_pb2, access_pb2_grpc, leases_pb2, leases_pb2_grpc, pool_pb2, pool_pb2_grpc
from tests.coordinator.pool import allocation, declared, reason_of
from tests.identity import ADMIN_TOKEN, with_token

OWN, OTHER = "vision", "audio"
GRANTS: dict[str, tuple[Any, str]] = {
    "viewer": (access_pb2.VIEWER, OWN),
    "user": (access_pb2.USER, OWN),
    "manager": (access_pb2.MANAGER, OWN),
    "viewer of all": (access_pb2.VIEWER, ""),
    "operator": (access_pb2.OPERATOR, ""),
    "admin": (access_pb2.ADMIN, ""),
    "console": (access_pb2.CONSOLE, ""),
    "metrics": (access_pb2.METRICS, ""),
}


@dataclass(slots=True)
class Person:
    """Somebody with a token, and the calls that they can make."""

    name: str
    token: str
    channel: Any

    def stub(self, service: Any) -> Any:
        """The stub of a service, as this person."""
        return service(with_token(self.channel, self.token))

    @property
    def leases(self) -> Any:
        """LeaseService."""
        return self.stub(leases_pb2_grpc.LeaseServiceStub)

    @property
    def nodes(self) -> Any:
        """PoolService."""
        return self.stub(pool_pb2_grpc.PoolServiceStub)

    @property
    def access(self) -> Any:
        """AccessService."""
        return self.stub(access_pb2_grpc.AccessServiceStub)

    async def lease(self, tenant: str, gpu: str = "0.01") -> Any:
        """A new one."""
        return (await self.leases.Allocate(allocation(gpu, tenant=tenant))).lease


@dataclass(slots=True)
class People:
    """All of them by name, and those who are nobody."""

    admin: Person
    by_name: dict[str, Person] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Person:
        return self.by_name[name]

    async def workload(self, tenant: str = OWN) -> tuple[Person, str]:
        """The programs of a new lease, and its id."""
        lease = await self.admin.lease(tenant)
        text = lease_token(lease.lease_id, lease.secret)
        return Person(f"lease:{lease.lease_id}", text, self.admin.channel), lease.lease_id


async def introduce(channel: grpc.aio.Channel, devices: int = 8) -> People:
    """Declare a node and give everybody in GRANTS a role and a token."""
    people = People(Person("root", ADMIN_TOKEN, channel))
    await people.admin.nodes.DeclareNodes(pool_pb2.DeclareNodesRequest(nodes=[declared("n1", devices)]))
    for name, (role, scope) in GRANTS.items():
        people.by_name[name] = await give(people.admin, name.replace(" ", "-"), role, scope)
    return people


async def give(admin: Person, principal: str, role: Any, scope: str = "", ttl_ms: int = 0) -> Person:
    """Somebody new with one role."""
    grant = access_pb2.RoleGrant(role=role, scope=scope)
    request = access_pb2.IssueTokenRequest(principal=principal, grants=[grant], ttl_ms=ttl_ms)
    answer = await admin.access.IssueToken(request)
    return Person(principal, answer.token, admin.channel)


async def refusal(call: Any) -> str:
    """The reason for which a call was refused; empty where it was let in, whatever came of it then."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        if error.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
            return reason_of(error)
    return ""


@contextlib.asynccontextmanager
async def watching(person: Person, **fields: Any) -> AsyncIterator[Any]:
    """A Watch that has begun."""
    stream = person.leases.Watch(leases_pb2.WatchRequest(**fields))
    await stream.read()
    try:
        yield stream
    finally:
        stream.cancel()


@contextlib.asynccontextmanager
async def a_stranger(address: str) -> AsyncIterator[Any]:
    """LeaseService for somebody without any token."""
    async with grpc.aio.insecure_channel(address) as channel:
        yield leases_pb2_grpc.LeaseServiceStub(channel)
