"""What a refusal tells: never whose a lease is, nor what others may do."""

from __future__ import annotations

from typing import Any

import grpc.aio
import pytest

from aliquot.coordinator.settings.config import LimitSettings
from aliquot.v1 import access_pb2, leases_pb2, pool_pb2, types_pb2
from tests.access.people import OTHER, OWN, a_stranger, introduce
from tests.coordinator.pool import reason_of, running, settings_for


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
    async with running(settings_for()) as pool, a_stranger(pool.address) as stranger:
        people = await introduce(pool.channel)
        theirs = (await people.admin.lease(OTHER)).lease_id
        acknowledge = leases_pb2.AcknowledgeShapeRequest(lease_id=theirs)
        workload, _ = await people.workload()
        for stub in (people["user"].leases, people["manager"].leases, workload.leases, stranger):
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
