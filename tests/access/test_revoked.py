"""A token that has ended opens nothing more: not a call that was begun with it, and not another token."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio

from aliquot.common.tokens import bearer
from aliquot.v1 import access_pb2, leases_pb2, pool_pb2
from tests.access.people import OWN, People, Person, introduce
from tests.coordinator.pool import allocation, reason_of, running, settings_for

_LEASES, _POOL = "/aliquot.v1.LeaseService/", "/aliquot.v1.PoolService/"
_ISSUE = "/aliquot.v1.AccessService/IssueToken"


class Begun:
    """A call that has passed the door, and whose message is still to come."""

    def __init__(self, person: Person, method: str) -> None:
        self._may_send = asyncio.Event()
        self._message: Any = None
        call = person.channel.stream_unary(method, lambda message: message.SerializeToString(), None)
        self._call = call(self._messages(), metadata=(bearer(person.token),), timeout=30)

    async def _messages(self) -> Any:
        await self._may_send.wait()
        yield self._message

    async def send(self, message: Any) -> str:
        """Why it is refused; empty: it is not."""
        self._message = message
        self._may_send.set()
        try:
            await self._call
        except grpc.aio.AioRpcError as refused:
            return reason_of(refused)
        return ""


async def begun(person: Person, *methods: str) -> list[Begun]:
    """Calls to all of these that have reached the coordinator."""
    calls = [Begun(person, method) for method in methods]
    await person.access.WhoAmI(access_pb2.WhoAmIRequest())  # it is answered after them on the same connection
    return calls


async def revoke(people: People, principal: str) -> None:
    await people.admin.access.RevokeTokens(access_pb2.RevokeTokensRequest(principal=principal))


async def test_a_call_that_was_begun_with_a_token_ends_with_it() -> None:
    async with running(settings_for()) as pool, grpc.aio.insecure_channel(pool.address) as channel:
        people = await introduce(pool.channel)
        user, operator = (Person(name, people[name].token, channel) for name in ("user", "operator"))
        issue, allocate, batch = await begun(user, _ISSUE, _LEASES + "Allocate", _LEASES + "AllocateBatch")
        cordon, drain = await begun(operator, _POOL + "Cordon", _POOL + "Drain")
        await revoke(people, "user")
        grant = access_pb2.RoleGrant(role=access_pb2.OPERATOR)
        await people.admin.access.RevokeRole(access_pb2.RevokeRoleRequest(principal="operator", grant=grant))
        ask = allocation("0.1", tenant=OWN)
        assert await issue.send(access_pb2.IssueTokenRequest()) == "TOKEN_REVOKED"
        assert await allocate.send(ask) == "TOKEN_REVOKED"
        assert await batch.send(leases_pb2.AllocateBatchRequest(items=[ask])) == "TOKEN_REVOKED"
        assert await cordon.send(pool_pb2.CordonRequest(node_id="n1")) == "ROLE_MISSING"
        await revoke(people, "operator")
        assert await drain.send(pool_pb2.DrainRequest(node_id="n1")) == "TOKEN_REVOKED"
        assert not (await pool.node("n1")).cordoned
