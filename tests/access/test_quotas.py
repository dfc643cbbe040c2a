"""A role on a tenant is one on all below it, and no way around the tenant's limits."""

from __future__ import annotations

from typing import Any

import grpc.aio
import pytest

from aliquot.v1 import admin_pb2, admin_pb2_grpc
from tests.access.people import OWN, Person, introduce, refusal
from tests.coordinator.pool import allocation, reason_of, running, settings_for

BELOW = f"{OWN}/more"
ONE = admin_pb2.Quota(limit=admin_pb2.Amount(share_milli=1_000))


async def declare(person: Person, name: str, **fields: Any) -> None:
    spec = admin_pb2.TenantSpec(name=name, **fields)
    request = admin_pb2.ApplyRequest(tenants=[admin_pb2.TenantItem(spec=spec)])
    await person.stub(admin_pb2_grpc.AdminServiceStub).Apply(request)


async def test_below_a_limited_tenant_nothing_is_had_beyond_what_an_administrator_declares() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        user, manager = people["user"], people["manager"]
        await user.leases.Allocate(allocation("0.1", tenant=BELOW))
        await declare(people.admin, OWN, quota=ONE)
        for person in (user, manager):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await person.leases.Allocate(allocation("1", tenant=BELOW))
            assert reason_of(refused.value) == "TENANT_NOT_FOUND"
        assert await refusal(declare(manager, BELOW)) == "ROLE_MISSING"
        await declare(people.admin, BELOW, quota=ONE)
        await user.leases.Allocate(allocation("0.5", tenant=BELOW))
        assert await refusal(declare(manager, BELOW)) == "ROLE_MISSING"
        withdraw = admin_pb2.WithdrawRequest(kind="tenant", name=BELOW)
        assert await refusal(manager.stub(admin_pb2_grpc.AdminServiceStub).Withdraw(withdraw)) == "ROLE_MISSING"


async def test_a_manager_guarantees_nothing_to_its_own() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        promise = admin_pb2.Quota(guaranteed=admin_pb2.Amount(share_milli=8_000))
        assert await refusal(declare(people["manager"], BELOW, quota=promise)) == "ROLE_MISSING"
        await declare(people["manager"], BELOW, quota=ONE)
