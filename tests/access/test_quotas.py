"""A role on a tenant is one on all below it, and no way around the tenant's limits."""

from __future__ import annotations

from functools import partial
from typing import Any

import grpc.aio
import pytest

from aliquot.v1 import admin_pb2, admin_pb2_grpc, leases_pb2
from tests.access.people import OWN, Person, introduce, refusal
from tests.coordinator.pool import allocation, eventually, reason_of, running, settings_for

BELOW = f"{OWN}/more"
ONE = admin_pb2.Quota(limit=admin_pb2.Amount(share_milli=1_000))


async def declare(person: Person, name: str, **fields: Any) -> None:
    spec = admin_pb2.TenantSpec(name=name, **fields)
    request = admin_pb2.ApplyRequest(tenants=[admin_pb2.TenantItem(spec=spec)])
    await person.stub(admin_pb2_grpc.AdminServiceStub).Apply(request)


async def test_a_limit_holds_all_that_is_below_together() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        user, manager = people["user"], people["manager"]
        await declare(people.admin, OWN, quota=ONE)
        await declare(manager, BELOW, quota=admin_pb2.Quota(limit=admin_pb2.Amount(share_milli=8_000)))
        await user.leases.Allocate(allocation("0.5", tenant=BELOW))
        await user.leases.Allocate(allocation("0.25", tenant=f"{OWN}/undeclared"))
        for tenant in (OWN, BELOW, f"{BELOW}/deeper", f"{OWN}/yet-another"):
            with pytest.raises(
                grpc.aio.AioRpcError, match=f"tenant {OWN} holds 0.75 devices and may hold 1"
            ) as refused:
                await user.leases.Allocate(allocation("0.5", tenant=tenant, no_queue=True))
            assert reason_of(refused.value) == "QUOTA_EXCEEDED"
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await user.leases.Allocate(allocation("2", tenant=tenant))
            assert reason_of(refused.value) == "QUOTA_EXCEEDED", "and waiting would not help"
        waits = await user.leases.Allocate(allocation("0.5", tenant=BELOW, wait_until=leases_pb2.WAIT_UNTIL_QUEUED))
        with pytest.raises(grpc.aio.AioRpcError, match="below what is held"):
            await declare(people.admin, OWN, quota=admin_pb2.Quota(limit=admin_pb2.Amount(share_milli=700)))
        for lease in (await user.leases.List(leases_pb2.ListRequest(tenant=f"{OWN}/undeclared"))).leases:
            await people.admin.leases.Release(leases_pb2.ReleaseRequest(lease_id=lease.lease_id))
        await eventually(partial(_granted, user, waits.lease.lease_id), "it has its turn")


async def _granted(user: Person, lease_id: str) -> bool:
    lease = await user.leases.Get(leases_pb2.GetRequest(lease_id=lease_id))
    return bool(lease.slices)


async def test_below_a_tenant_with_a_budget_nothing_is_had_beyond_what_an_administrator_declares() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        user, manager = people["user"], people["manager"]
        await user.leases.Allocate(allocation("0.1", tenant=BELOW))
        await declare(people.admin, OWN, budget=admin_pb2.Budget(period="month", money_micro=10**9))
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
        await declare(people.admin, OWN)
        promise = admin_pb2.Quota(guaranteed=admin_pb2.Amount(share_milli=8_000))
        assert await refusal(declare(people["manager"], BELOW, quota=promise)) == "ROLE_MISSING"
        at_night = admin_pb2.Quota()
        at_night.windows.add(when="daily 22:00-06:00", guaranteed=promise.guaranteed)
        assert await refusal(declare(people["manager"], BELOW, quota=at_night)) == "ROLE_MISSING"
        await declare(people["manager"], BELOW, quota=ONE)


async def test_a_manager_neither_shuts_the_pool_to_others_nor_opens_it() -> None:
    """Where one tenant is declared, only declared ones are served."""
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        manager = people["manager"]
        assert await refusal(declare(manager, BELOW)) == "ROLE_MISSING", "nobody has declared its tenant"
        await people.admin.leases.Allocate(allocation("0.1", tenant="others"))
        await declare(people.admin, BELOW)
        with pytest.raises(grpc.aio.AioRpcError, match="there is no tenant 'others'"):
            await people.admin.leases.Allocate(allocation("0.1", tenant="others"))
        withdraw = admin_pb2.WithdrawRequest(kind="tenant", name=BELOW)
        assert await refusal(manager.stub(admin_pb2_grpc.AdminServiceStub).Withdraw(withdraw)) == "ROLE_MISSING"
