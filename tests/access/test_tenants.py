"""Two tenants on one pool: what each sees of the other, and what a lease's own programs may do."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest

from aliquot.v1 import access_pb2, admin_pb2, admin_pb2_grpc, leases_pb2, pool_pb2, types_pb2
from tests.access.people import OTHER, OWN, Person, give, introduce, refusal, watching
from tests.coordinator.pool import allocation, reason_of, running, settings_for


async def test_a_tenant_sees_its_own_leases_and_of_others_what_they_hold() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        user = people["user"]
        async with watching(user, nodes=False) as stream:
            theirs = await people.admin.lease(OTHER)
            mine = await user.lease(OWN)
            assert (await stream.read()).lease.lease_id == mine.lease_id
        listed = await user.leases.List(leases_pb2.ListRequest())
        assert [lease.lease_id for lease in listed.leases] == [mine.lease_id]
        redacted = await user.leases.Get(leases_pb2.GetRequest(lease_id=theirs.lease_id))
        assert redacted.redacted
        assert redacted.slices[0].share_milli == theirs.slices[0].share_milli
        assert not redacted.HasField("request")
        assert not redacted.asked_by
        assert OTHER not in str(redacted)
        status = await user.nodes.GetStatus(pool_pb2.GetStatusRequest())
        assert [row.tenant for row in status.tenants] == [OWN]
        assert status.leases == 2
        tenancy = await user.stub(admin_pb2_grpc.AdminServiceStub).GetTenancy(admin_pb2.GetTenancyRequest())
        assert OTHER not in str(tenancy)


async def test_a_watch_of_anothers_lease_by_its_id_says_nothing() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        theirs = await people.admin.lease(OTHER)
        async with watching(people["user"], lease_ids=[theirs.lease_id]) as stream:
            await people.admin.leases.Release(leases_pb2.ReleaseRequest(lease_id=theirs.lease_id))
            mine = await people["user"].lease(OWN)
            async with watching(people["user"], after_seq=1) as again:
                assert (await again.read()).lease.lease_id == mine.lease_id
            stream.cancel()


async def test_those_who_asked_keep_and_end_their_leases_and_no_colleagues() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        colleague = await give(people.admin, "colleague", access_pb2.USER, OWN)
        lease = await people["user"].lease(OWN)
        assert lease.asked_by == "user"
        release = leases_pb2.ReleaseRequest(lease_id=lease.lease_id)
        assert await refusal(colleague.leases.Release(release)) == "ROLE_MISSING"
        ended = (await people["user"].leases.Release(release)).lease
        assert (ended.ended_by, ended.end_reason) == ("user", "RELEASED")


async def test_a_key_that_a_colleague_used_gives_nobody_the_colleagues_secret() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        colleague = await give(people.admin, "colleague", access_pb2.USER, OWN)
        request = allocation("0.1", tenant=OWN, idempotency_key="again")
        first = await people["user"].leases.Allocate(request)
        again = await people["user"].leases.Allocate(request)
        assert again.replayed
        assert again.lease.secret == first.lease.secret
        assert await refusal(colleague.leases.Allocate(request)) == "ROLE_MISSING"
        # Nor is a colleague's lease kept alive by waiting for it with its key.
        later = allocation("8", tenant=OWN, idempotency_key="later", wait_until=leases_pb2.WAIT_UNTIL_QUEUED)
        assert (await people["user"].leases.Allocate(later)).lease.state == types_pb2.LEASE_STATE_QUEUED
        later.wait_until, later.wait_timeout_ms = leases_pb2.WAIT_UNTIL_GRANTED, 600_000
        async with asyncio.timeout(5):  # not when the wait is over
            assert await refusal(colleague.leases.Allocate(later)) == "ROLE_MISSING"


async def test_a_leases_programs_look_after_that_lease_and_nothing_else() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        workload, lease_id = await people.workload()
        other = await people.admin.lease(OWN)
        who = await workload.access.WhoAmI(access_pb2.WhoAmIRequest())
        assert (who.principal, who.lease_id) == (f"lease:{lease_id}", lease_id)
        assert not (await workload.leases.Get(leases_pb2.GetRequest(lease_id=lease_id))).redacted
        assert (await workload.leases.Get(leases_pb2.GetRequest(lease_id=other.lease_id))).redacted
        assert not (await workload.leases.List(leases_pb2.ListRequest())).leases[1:]
        for call in (
            workload.leases.Release(leases_pb2.ReleaseRequest(lease_id=other.lease_id)),
            workload.leases.Allocate(allocation("0.1", tenant=OWN)),
            workload.nodes.GetStatus(pool_pb2.GetStatusRequest()),
        ):
            assert await refusal(call) == "ROLE_MISSING"
        issue = access_pb2.IssueTokenRequest(ttl_ms=1_000)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await workload.access.IssueToken(issue)
        assert reason_of(refused.value) == "INVALID_FIELD"
        await workload.leases.Release(leases_pb2.ReleaseRequest(lease_id=lease_id))
        assert await refusal(workload.access.WhoAmI(access_pb2.WhoAmIRequest())) == "TOKEN_EXPIRED"


async def test_a_refusal_says_what_is_missing_and_what_gets_it() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await people["viewer"].leases.Allocate(allocation("0.1", tenant=OWN))
        assert "needs user" in str(refused.value.details())
        assert "viewer is viewer on vision" in str(refused.value.details())
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await people["user"].leases.Allocate(allocation("0.1", tenant=OTHER))
        assert (
            refused.value.details()
            == f"to ask for leases of tenant {OTHER} needs user on {OTHER}; user is user on {OWN}"
        )
        denials = (await people.admin.access.ListDenials(access_pb2.ListDenialsRequest())).denials
        assert [(denial.principal, denial.method) for denial in denials] == [
            ("user", "Allocate"),
            ("viewer", "Allocate"),
        ]


async def test_a_manager_sets_ceilings_within_those_of_its_tenant() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)

        def apply(who: Any, name: str, **ceilings: Any) -> Any:
            item = admin_pb2.TenantItem(spec=admin_pb2.TenantSpec(name=name, **ceilings))
            return who.stub(admin_pb2_grpc.AdminServiceStub).Apply(admin_pb2.ApplyRequest(tenants=[item]))

        await apply(people.admin, OWN, priority_max=10, waiting_max=100)
        for beyond in ("priority_max", "waiting_max"):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await apply(people["manager"], f"{OWN}/edge", **{beyond: 101})
            assert reason_of(refused.value) == "INVALID_FIELD"
            assert f"of tenant {OWN}" in str(refused.value.details())
        await apply(people["manager"], f"{OWN}/edge", priority_max=-1, waiting_max=100)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await people["user"].leases.Allocate(allocation("0.1", tenant=f"{OWN}/edge"))
        assert reason_of(refused.value) == "QUOTA_EXCEEDED"


async def test_who_has_one_tenant_need_not_name_it() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        request = allocation("0.1", tenant="")
        lease = (await people["user"].leases.Allocate(request)).lease
        assert lease.request.tenant == OWN
        two = await give(people.admin, "two", access_pb2.USER, OWN)
        more = access_pb2.RoleGrant(role=access_pb2.USER, scope=OTHER)
        await people.admin.access.GrantRole(access_pb2.GrantRoleRequest(principal="two", grant=more))
        with pytest.raises(grpc.aio.AioRpcError, match="needs user on default"):
            await two.leases.Allocate(request)
        assert (await people.admin.leases.Allocate(request)).lease.request.tenant == "default"


async def test_a_tenant_is_told_what_it_has_used_of_its_budget_and_of_no_other() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)

        async def alerts(who: Person) -> list[str]:
            asked = who.stub(admin_pb2_grpc.AdminServiceStub).GetTenancy(admin_pb2.GetTenancyRequest())
            return [text.partition(" has used ")[0] for text in (await asked).alerts]

        spent = admin_pb2.Budget(period="month", share_milli_ms=1)
        items = [
            admin_pb2.TenantItem(spec=admin_pb2.TenantSpec(name=name, budget=spent)) for name in ("default", OWN, OTHER)
        ]
        await people.admin.stub(admin_pb2_grpc.AdminServiceStub).Apply(admin_pb2.ApplyRequest(tenants=items))
        for tenant in (OWN, OTHER):
            await people.admin.lease(tenant)
        both = [f"BUDGET_USED_UP: tenant {name}" for name in sorted((OWN, OTHER))]
        seen: list[str] = []
        while seen != both:
            seen = await alerts(people.admin)
        assert await alerts(people["manager"]) == await alerts(people["viewer"]) == [f"BUDGET_USED_UP: tenant {OWN}"]
