"""Bounds of streams, and of what is asked for by pages."""

from __future__ import annotations

from typing import Any

import grpc.aio
import pytest

from aliquot.coordinator.rpc import keeping
from aliquot.v1 import access_pb2, leases_pb2
from tests.access.people import OWN, introduce
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
