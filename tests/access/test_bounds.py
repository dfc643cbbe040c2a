"""Bounds that strangers can reach keep nobody out who is known."""

from __future__ import annotations

from typing import Any

import grpc.aio
import pytest

from aliquot.coordinator.rpc import keeping
from aliquot.v1 import access_pb2, leases_pb2
from tests.access.people import OWN, a_stranger, introduce
from tests.coordinator.pool import reason_of, running, settings_for


async def test_those_without_a_token_leave_room_for_those_who_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "KEEPERS_MAX", 4)
    async with running(settings_for()) as pool, a_stranger(pool.address) as stranger:
        people = await introduce(pool.channel)
        streams: list[Any] = []
        said = []
        for _ in range(4):
            stream: Any = stranger.KeepAlive()
            streams.append(stream)
            await stream.write(leases_pb2.KeepAliveRequest())
            try:
                await stream.read()
                said.append("")
            except grpc.aio.AioRpcError as refused:
                said.append(reason_of(refused))
        assert said == ["", "", "OVERLOADED", "OVERLOADED"]
        lease = await people["user"].lease(OWN)
        known: Any = people["user"].leases.KeepAlive()
        await known.write(leases_pb2.KeepAliveRequest(lease_ids=[lease.lease_id]))
        assert (await known.read()).kept == 1


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
