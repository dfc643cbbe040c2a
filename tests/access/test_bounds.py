"""Bounds of streams, and of what is asked for by pages."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import grpc.aio
import pytest

from aliquot.coordinator.core.books import access as records
from aliquot.coordinator.reading import callers
from aliquot.coordinator.rpc import keeping
from aliquot.v1 import access_pb2, leases_pb2
from tests.access.people import OTHER, OWN, give, introduce
from tests.coordinator.pool import reason_of, running, settings_for


async def test_launchers_beyond_the_bound_are_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "KEEPERS_MAX", 2)
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        lease = await people["user"].lease(OWN)
        said = []
        streams: list[Any] = []
        for _ in range(3):
            stream: Any = people["user"].leases.KeepAlive()
            streams.append(stream)
            await stream.write(leases_pb2.KeepAliveRequest(lease_ids=[lease.lease_id]))
            try:
                said.append((await stream.read()).kept)
            except grpc.aio.AioRpcError as refused:
                said.append(reason_of(refused))
        assert said == [1, 1, "OVERLOADED"]


@pytest.mark.parametrize("token", ["p9999999999999999999", "p-1", "p", "p１"])
async def test_a_page_token_of_nobodys_is_refused(token: str) -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        for call in (
            people.admin.access.ListTokens(access_pb2.ListTokensRequest(page_token=token)),
            people.admin.access.ListPrincipals(access_pb2.ListPrincipalsRequest(page_token=token)),
            people.admin.access.ListAudit(access_pb2.ListAuditRequest(page_token=token)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call
            assert reason_of(refused.value) == "INVALID_FIELD"


# -- what a tenant's manager fills, with as many principals as it likes, is its own tenant's


def granting(principal: str, scope: str) -> access_pb2.GrantRoleRequest:
    return access_pb2.GrantRoleRequest(
        principal=principal, grant=access_pb2.RoleGrant(role=access_pb2.VIEWER, scope=scope)
    )


async def told(call: Any) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    assert reason_of(refused.value) == "INVALID_FIELD"
    return str(refused.value.details())


async def test_roles_on_one_tenant_leave_room_for_those_on_others() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        manager, other = people["manager"].access, await give(people.admin, "other", access_pb2.MANAGER, OTHER)
        for number in range(records.GRANTS_PER_PRINCIPAL_MAX):
            await manager.GrantRole(granting("ann", f"{OWN}/{number}"))
        assert f"on {OWN} and below" in await told(manager.GrantRole(granting("ann", OWN)))
        await other.access.GrantRole(granting("ann", OTHER))
        await people.admin.access.GrantRole(granting("ann", ""))


async def test_tokens_that_others_make_leave_room_for_ones_own() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        request = access_pb2.IssueTokenRequest(principal="user")
        for _ in range(records.TOKENS_PER_PRINCIPAL_MAX - 1):  # one is there
            await people["manager"].access.IssueToken(request)
        assert "by others" in await told(people["manager"].access.IssueToken(request))
        await people["user"].access.IssueToken(access_pb2.IssueTokenRequest())


async def until_refused(call: Callable[[int], Any]) -> int:
    """How many of these calls the tenant's share has room for."""
    for number in itertools.count():
        try:
            await call(number)
        except grpc.aio.AioRpcError as refused:
            assert f"{OWN} has" in str(refused.details()), refused.details()
            return number
    raise AssertionError


async def test_one_tenants_principals_and_tokens_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        manager, other = people["manager"].access, await give(people.admin, "other", access_pb2.MANAGER, OTHER)
        monkeypatch.setattr(records, "PRINCIPALS_MAX", 40)
        made = await until_refused(lambda number: manager.GrantRole(granting(f"puppet-{number}", OWN)))
        assert made < 40 - len(people.by_name)
        await give(other, "eve", access_pb2.USER, OTHER)

        monkeypatch.setattr(records, "TOKENS_MAX", 60)
        requests = [access_pb2.IssueTokenRequest(principal=f"puppet-{number}") for number in range(made)]
        assert await until_refused(lambda number: manager.IssueToken(requests[number % made])) < 60
        await other.access.IssueToken(access_pb2.IssueTokenRequest(principal="eve"))
        await people.admin.access.IssueToken(access_pb2.IssueTokenRequest(principal="operator"))


async def test_puppets_push_their_own_tenants_acts_out_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (records, callers):
        monkeypatch.setattr(module, "AUDIT_MAX", 60)
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        manager, other = people["manager"], await give(people.admin, "other", access_pb2.MANAGER, OTHER)
        for name in ("eve", "bob"):
            await give(other, name, access_pb2.USER, OTHER)
        puppets = [await give(manager, f"puppet-{number}", access_pb2.USER, OWN) for number in range(30)]
        for _ in range(3):
            for puppet in puppets:
                await puppet.access.IssueToken(access_pb2.IssueTokenRequest())
        audit = await people.admin.access.ListAudit(access_pb2.ListAuditRequest(page_size=100))
        assert len(audit.entries) == 60
        kept = [entry.principal for entry in audit.entries]
        assert kept.count("other") == 2
        assert kept.count("root") + kept.count("admin") >= len(people.by_name) - 1
