"""What a refusal tells: never whose a lease is, nor what others may do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc.aio
import pytest

from aliquot.coordinator.settings.config import LimitSettings
from aliquot.v1 import (
    access_pb2,
    access_pb2_grpc,
    admin_pb2,
    admin_pb2_grpc,
    leases_pb2,
    leases_pb2_grpc,
    pool_pb2,
    pool_pb2_grpc,
    supply_pb2,
    supply_pb2_grpc,
    types_pb2,
)
from tests.access.people import OTHER, OWN, Person, introduce, watching
from tests.access.test_matrix import EXPECTED
from tests.coordinator.pool import allocation, reason_of, running, settings_for


async def refused(call: Any) -> str:
    """All that a refusal for want of a role says."""
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await call
    assert reason_of(error.value) == "ROLE_MISSING"
    return f"{error.value.details()} {error.value.trailing_metadata()!r}"


async def lost(stub: Any, lease_id: str) -> Any:
    """Keep somebody's lease alive."""
    stream = stub.KeepAlive()
    await stream.write(leases_pb2.KeepAliveRequest(lease_ids=[lease_id]))
    return await stream.read()


async def test_a_refusal_does_not_say_whose_a_lease_is() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        theirs = (await people.admin.lease(OTHER)).lease_id
        acknowledge = leases_pb2.AcknowledgeShapeRequest(lease_id=theirs)
        workload, _ = await people.workload()
        for stub in (people["user"].leases, people["manager"].leases, workload.leases):
            assert OTHER not in await refused(lost(stub, theirs))
            assert OTHER not in await refused(stub.AcknowledgeShape(acknowledge))
        for person in (people["user"], people["manager"], workload):
            release = leases_pb2.ReleaseRequest(lease_id=theirs)
            assert OTHER not in await refused(person.leases.Release(release))
            batch = leases_pb2.ReleaseBatchRequest(lease_ids=[theirs])
            (result,) = (await person.leases.ReleaseBatch(batch)).results
            assert "ROLE_MISSING" in str(result.error)
            assert OTHER not in str(result.error)
        ours = (await people.admin.lease(OWN)).lease_id
        said = await refused(people["user"].leases.Release(leases_pb2.ReleaseRequest(lease_id=ours)))
        assert f"needs manager on {OWN}" in said


async def test_a_refusal_does_not_say_what_others_may_do() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        grant = access_pb2.RoleGrant(role=access_pb2.MANAGER, scope=OTHER)
        await people.admin.access.IssueToken(access_pb2.IssueTokenRequest(principal="eve", grants=[grant]))
        for person in (people["viewer"], people["manager"]):
            issue = access_pb2.IssueTokenRequest(principal="eve")
            revoke = access_pb2.RevokeTokensRequest(principal="eve")
            for call in (person.access.IssueToken(issue), person.access.RevokeTokens(revoke)):
                assert OTHER not in await refused(call)


async def test_tokens_of_who_has_no_role_are_not_anybodys_to_end() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        grant = access_pb2.RoleGrant(role=access_pb2.VIEWER, scope=OTHER)
        await people.admin.access.IssueToken(access_pb2.IssueTokenRequest(principal="eve", grants=[grant]))
        await people.admin.access.RevokeRole(access_pb2.RevokeRoleRequest(principal="eve", grant=grant))
        for name in ("viewer", "manager"):
            await refused(people[name].access.RevokeTokens(access_pb2.RevokeTokensRequest(principal="eve")))
            assert "eve" not in str(await people[name].access.ListTokens(access_pb2.ListTokensRequest()))
        revoke = access_pb2.RevokeTokensRequest(principal="eve")
        assert len((await people.admin.access.RevokeTokens(revoke)).tokens) == 1


async def test_who_may_not_see_a_tenant_does_not_learn_whether_there_is_one() -> None:
    async with running(settings_for(limits=LimitSettings(strict_tenants=True))) as pool:
        people = await introduce(pool.channel)
        said = set()
        for tenant in (OTHER, "nobody-has-declared-it"):
            request = pool_pb2.FitsRequest(request=types_pb2.LeaseRequest(gpu="1", tenant=tenant))
            said.add((await refused(people["user"].nodes.Fits(request))).replace(tenant, "?").split("\n")[0][:60])
        assert len(said) == 1


async def test_strangers_do_not_learn_which_tokens_there_are() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        theirs = people["user"].token
        said = set()
        for text in (theirs[:-64] + "0" * 64, "alq_" + "0" * 12 + "_" + "0" * 64):
            stub = access_pb2_grpc.AccessServiceStub(pool.channel)
            with pytest.raises(grpc.aio.AioRpcError) as error:
                await stub.WhoAmI(access_pb2.WhoAmIRequest(), metadata=[("authorization", f"Bearer {text}")])
            found = f"{reason_of(error.value)} {error.value.details()}"
            said.add(found.replace(text.split("_")[1], "ID"))
        assert len(said) == 1


NAMED = "the-others-secret-project"
"""What a lease of the other tenant is called, and labelled with."""


class Reading:
    """Every call by which somebody of a tenant reads, and all that it answers."""

    def __init__(self, who: Person, mine: str, theirs: str) -> None:
        self.who, self.mine, self.theirs = who, mine, theirs

    async def said(self, names: Iterable[str] = ()) -> list[tuple[str, str, str]]:
        """Method, request and answer (or refusal), as text; of all methods, or of these."""
        found = []
        for name in names or sorted(READ):
            for request in READ[name](self):
                try:
                    answer = str(await getattr(self.who.stub(SERVICES[name]), name)(request))
                except grpc.aio.AioRpcError as error:
                    answer = f"{error.details()} {error.trailing_metadata()!r}"
                found.append((name, str(request), answer))
        return found

    async def answers(self, name: str) -> str:
        """All of a method."""
        return "\n".join([answer for _, _, answer in await self.said([name])])

    def asks(self, gpu: str = "1", **fields: Any) -> types_pb2.LeaseRequest:
        return types_pb2.LeaseRequest(gpu=gpu, tenant=OWN, **fields)


READ: dict[str, Any] = {
    "Get": lambda of: [leases_pb2.GetRequest(lease_id=each) for each in (of.mine, of.theirs)],
    "GetTimeline": lambda of: [leases_pb2.GetTimelineRequest(lease_id=each) for each in (of.mine, of.theirs)],
    "GetUse": lambda of: [
        leases_pb2.GetUseRequest(),
        *(leases_pb2.GetUseRequest(lease_id=each) for each in (of.mine, of.theirs)),
        leases_pb2.GetUseRequest(tenant=OTHER),
    ],
    "List": lambda of: [leases_pb2.ListRequest(), leases_pb2.ListRequest(tenant=OTHER)],
    "Explain": lambda of: [
        *(leases_pb2.ExplainRequest(lease_id=each) for each in (of.mine, of.theirs)),
        *(leases_pb2.ExplainRequest(request=of.asks(priority=each)) for each in (-1, 0, 100)),
        leases_pb2.ExplainRequest(request=of.asks("64")),
    ],
    "Allocate": lambda of: [
        leases_pb2.AllocateRequest(request=of.asks(no_queue=True)),
        leases_pb2.AllocateRequest(request=of.asks(), wait_until=leases_pb2.WAIT_UNTIL_QUEUED),
    ],
    "AllocateBatch": lambda of: [
        leases_pb2.AllocateBatchRequest(items=[leases_pb2.AllocateRequest(request=of.asks()) for _ in range(2)])
    ],
    "GrantOn": lambda of: [leases_pb2.GrantOnRequest(request=of.asks(), places=[leases_pb2.MemberPlace(node_id="n1")])],
    "Release": lambda of: [leases_pb2.ReleaseRequest(lease_id=of.theirs)],
    "ReleaseBatch": lambda of: [leases_pb2.ReleaseBatchRequest(lease_ids=[of.theirs])],
    "AcknowledgeShape": lambda of: [leases_pb2.AcknowledgeShapeRequest(lease_id=each) for each in (of.mine, of.theirs)],
    "GetNode": lambda of: [pool_pb2.GetNodeRequest(node_id="n1")],
    "ListNodes": lambda of: [pool_pb2.ListNodesRequest(with_devices=True)],
    "ListDevices": lambda of: [pool_pb2.ListDevicesRequest()],
    "Fits": lambda of: [pool_pb2.FitsRequest(request=of.asks())],
    "GetStatus": lambda of: [pool_pb2.GetStatusRequest()],
    "GetHealth": lambda of: [pool_pb2.GetHealthRequest()],
    "Forecast": lambda of: [
        pool_pb2.ForecastRequest(),
        *(pool_pb2.ForecastRequest(series=pool_pb2.ForecastSeries(kind="tenant", name=each)) for each in (OWN, OTHER)),
    ],
    "GetSupply": lambda of: [supply_pb2.GetSupplyRequest()],
    "GetTenancy": lambda of: [admin_pb2.GetTenancyRequest()],
    "ListMaintenance": lambda of: [admin_pb2.ListMaintenanceRequest()],
    "GetInvoice": lambda of: [
        admin_pb2.GetInvoiceRequest(tenant=each, from_ms=0, to_ms=1 << 40) for each in (OWN, OTHER)
    ],
    "WhoAmI": lambda of: [access_pb2.WhoAmIRequest()],
    "IssueToken": lambda of: [access_pb2.IssueTokenRequest()],
    "RevokeTokens": lambda of: [access_pb2.RevokeTokensRequest(token_ids=["0" * 12])],
    "ListTokens": lambda of: [access_pb2.ListTokensRequest()],
    "GetAuthority": lambda of: [access_pb2.GetAuthorityRequest()],
}
"""What a viewer or a user may call and is answered at once, with requests that lead to others' leases."""
ASIDE = {"LeaseService.Watch", "LeaseService.KeepAlive", "PoolService.WatchFleet"}
"""Streams; looked at below."""
SERVICES = {
    name: service
    for service, names in (
        (leases_pb2_grpc.LeaseServiceStub, leases_pb2.DESCRIPTOR.services_by_name["LeaseService"]),
        (pool_pb2_grpc.PoolServiceStub, pool_pb2.DESCRIPTOR.services_by_name["PoolService"]),
        (admin_pb2_grpc.AdminServiceStub, admin_pb2.DESCRIPTOR.services_by_name["AdminService"]),
        (supply_pb2_grpc.SupplyServiceStub, supply_pb2.DESCRIPTOR.services_by_name["SupplyService"]),
        (access_pb2_grpc.AccessServiceStub, access_pb2.DESCRIPTOR.services_by_name["AccessService"]),
    )
    for name in [method.name for method in names.methods]
}


def test_every_method_that_a_tenant_may_call_is_read() -> None:
    open_to_them = {name for name, (own, _) in EXPECTED.items() if {"viewer", "user"} & set(own.split())}
    assert {name.partition(".")[2] for name in open_to_them - ASIDE} <= set(READ)


async def test_no_answer_to_a_tenant_names_anothers_lease() -> None:
    """Neither by its id nor by its name, its labels or its tenant, also where one has to do with the other."""
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel, devices=1)
        user = people["user"]
        ask = people.admin.leases.Allocate
        fields: dict[str, Any] = {"name": NAMED, "labels": {"what": NAMED}, "preemptible": True}
        mine = (await user.leases.Allocate(allocation("1", tenant=OWN, preemptible=True))).lease.lease_id
        theirs = (await ask(allocation("1", tenant=OTHER, priority=10, **fields))).lease.lease_id
        queued = leases_pb2.WAIT_UNTIL_QUEUED
        ahead = (await ask(allocation("1", tenant=OTHER, priority=10, wait_until=queued, **fields))).lease.lease_id
        secrets = {theirs, ahead, NAMED, OTHER}

        whole = Reading(people["admin"], mine, theirs)
        assert theirs in await whole.answers("Get"), "an administrator sees for whom it had to give way"
        assert ahead in await whole.answers("Explain")
        assert theirs in await whole.answers("ListDevices")
        async with watching(people["viewer"], after_seq=1) as stream:
            for name in ("viewer", "user"):
                for method, request, answer in await Reading(people[name], mine, theirs).said():
                    # What the caller has said itself may be said again.
                    told = {secret for secret in secrets if secret in answer and secret not in request}
                    assert not told, f"{method} tells a {name}: {answer}"
            seen = str(await stream.read())
            while mine not in seen or "preempt" not in seen.lower():
                seen += str(await stream.read())
            assert not [secret for secret in secrets if secret in seen]
        fleet = user.nodes.WatchFleet(pool_pb2.WatchFleetRequest())
        first = str(await fleet.read())
        assert first
        assert not [secret for secret in secrets if secret in first]
        fleet.cancel()
        keeping = user.leases.KeepAlive()
        await keeping.write(leases_pb2.KeepAliveRequest(lease_ids=[mine]))
        assert theirs not in str(await keeping.read())
        keeping.cancel()
