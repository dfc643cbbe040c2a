"""What a token opened ends with it; what it says is kept, its text is not."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from aliquot.v1 import access_pb2, leases_pb2
from tests.access.people import OTHER, OWN, Person, give, introduce, refusal, watching
from tests.coordinator.pool import allocation, eventually, reason_of, running, settings_for, sqlite
from tests.identity import ADMIN_TOKEN


async def why_it_ended(stream: Any) -> str:
    """The reason for which a stream ends; waits until it does."""
    try:
        async with asyncio.timeout(20):
            while await stream.read() is not grpc.aio.EOF:
                pass
    except grpc.aio.AioRpcError as ended:
        return reason_of(ended)
    return ""


def everything_in(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


async def kept_alive(person: Person, lease_id: str) -> Any:
    """An open stream of keep-alives that has been answered once."""
    stream = person.leases.KeepAlive()
    await stream.write(leases_pb2.KeepAliveRequest(lease_ids=[lease_id]))
    assert (await stream.read()).kept == 1
    return stream


async def test_what_a_token_opened_ends_when_it_is_revoked() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        user = people["user"]
        lease = await user.lease(OWN)
        keeping = await kept_alive(user, lease.lease_id)
        full = allocation("8", tenant=OWN, wait_until=leases_pb2.WAIT_UNTIL_ACTIVE, wait_timeout_ms=600_000)
        waiting = asyncio.ensure_future(user.leases.Allocate(full))
        async with watching(user) as stream, watching(people["viewer"]) as other:
            await eventually(lambda: pool.coordinator.view.totals.queued == 1, "it waits")
            await people.admin.access.RevokeTokens(access_pb2.RevokeTokensRequest(principal="user"))
            assert await why_it_ended(stream) == "TOKEN_REVOKED"
            assert await why_it_ended(keeping) == "TOKEN_REVOKED"
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await waiting
            assert reason_of(refused.value) == "TOKEN_REVOKED"
            assert await refusal(user.access.WhoAmI(access_pb2.WhoAmIRequest())) == "TOKEN_UNKNOWN"
            await people.admin.lease(OWN)
            assert (await other.read()).lease.request.tenant == OWN
        leading = pool.coordinator.leading
        assert leading is not None
        await eventually(lambda: len(leading.door.lasting) == 0, "nothing of them is kept")


async def test_a_stream_that_is_being_written_to_ends_too() -> None:
    """Its task is then within gRPC, which tells nobody when it is cancelled there."""
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        async with watching(people["viewer"]) as stream:
            asks = [allocation("0.001,1Mi", tenant=OWN, detached=True, labels={"pad": "x" * 60}) for _ in range(250)]
            for _ in range(8):  # more than fits on the way to one who does not read
                await people.admin.leases.AllocateBatch(leases_pb2.AllocateBatchRequest(items=asks))
            await people.admin.access.RevokeTokens(access_pb2.RevokeTokensRequest(principal="viewer"))
            assert await why_it_ended(stream) == "TOKEN_REVOKED"
        leading = pool.coordinator.leading
        assert leading is not None
        await eventually(lambda: len(leading.door.lasting) == 0, "nothing of it is kept")


async def test_a_stream_ends_when_its_token_expires() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        short = await give(people.admin, "short", access_pb2.VIEWER, OWN, ttl_ms=1_500)
        async with watching(short) as stream:
            assert await why_it_ended(stream) == "TOKEN_EXPIRED"
        assert await refusal(short.access.WhoAmI(access_pb2.WhoAmIRequest())) == "TOKEN_EXPIRED"


async def test_a_stream_ends_when_a_role_is_taken_and_not_when_one_is_given() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        grant = access_pb2.RoleGrant(role=access_pb2.VIEWER, scope=OTHER)
        async with watching(people["viewer"]) as stream:
            await people.admin.access.GrantRole(access_pb2.GrantRoleRequest(principal="viewer", grant=grant))
            await people.admin.lease(OWN)
            assert (await stream.read()).lease.request.tenant == OWN
            grant.scope = OWN
            await people.admin.access.RevokeRole(access_pb2.RevokeRoleRequest(principal="viewer", grant=grant))
            assert await why_it_ended(stream) == "ROLES_CHANGED"
        async with watching(people["viewer"]) as stream:
            await people.admin.lease(OWN)
            await people.admin.lease(OTHER)
            assert (await stream.read()).lease.request.tenant == OTHER


async def test_what_is_known_of_callers_outlives_the_coordinator(tmp_path: Path) -> None:
    journal = sqlite(tmp_path / "journal.db")
    async with running(settings_for(journal)) as pool:
        people = await introduce(pool.channel)
        await people.admin.access.RevokeTokens(access_pb2.RevokeTokensRequest(principal="viewer"))
    async with running(settings_for(journal)) as pool:
        channel = pool.channel
        user = Person("user", people["user"].token, channel)
        assert (await user.access.WhoAmI(access_pb2.WhoAmIRequest())).principal == "user"
        viewer = Person("viewer", people["viewer"].token, channel)
        assert await refusal(viewer.access.WhoAmI(access_pb2.WhoAmIRequest())) == "TOKEN_UNKNOWN"
        admin = Person("root", ADMIN_TOKEN, channel)
        listed = await admin.access.ListAudit(access_pb2.ListAuditRequest(page_size=3))
        assert listed.entries[0].action == "RevokeTokens"
        more = await admin.access.ListAudit(access_pb2.ListAuditRequest(page_token=listed.next_page_token))
        assert [entry.number for entry in (*listed.entries, *more.entries)] == list(
            range(listed.entries[0].number, 0, -1)
        )


async def test_no_text_of_a_token_is_written_anywhere(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with running(settings_for(sqlite(tmp_path / "journal.db"))) as pool:
        people = await introduce(pool.channel)
        workload, lease_id = await people.workload()
        everybody = [*people.by_name.values(), workload]
        for person in everybody:
            await refusal(person.nodes.Cordon(access_pb2.WhoAmIRequest()))
            await refusal(person.access.WhoAmI(access_pb2.WhoAmIRequest(), metadata=(("authorization", person.token),)))
        said = [str(await people.admin.access.ListAudit(access_pb2.ListAuditRequest()))]
        said.append(str(await people.admin.access.ListTokens(access_pb2.ListTokensRequest())))
        said.append(str(await people.admin.access.ListDenials(access_pb2.ListDenialsRequest())))
        said.append(str(await people.admin.leases.Get(leases_pb2.GetRequest(lease_id=lease_id))))
    kept = everything_in(tmp_path)
    for person in everybody:
        secret = person.token.rpartition("_")[2]
        assert secret.encode() not in kept
        assert secret not in caplog.text
        assert not any(secret in text for text in said)
