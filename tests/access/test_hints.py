"""What a refusal advises can be followed as it is printed."""

from __future__ import annotations

import grpc
import pytest

from aliquot.v1 import leases_pb2
from tests.access.people import OTHER, OWN, introduce
from tests.coordinator.pool import error_info, running, settings_for, status_of


async def test_the_command_that_gets_a_role_on_a_lease_does_not_give_the_whole_pool() -> None:
    async with running(settings_for()) as pool:
        people = await introduce(pool.channel)
        theirs = await people.admin.lease(OTHER, "0.1")
        own = await people.admin.lease(OWN, "0.1")
        hints = []
        for lease_id in (theirs.lease_id, own.lease_id):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await people["viewer"].leases.Release(leases_pb2.ReleaseRequest(lease_id=lease_id))
            hints.append(error_info(status_of(refused.value)).metadata["hint"])
        assert all("aliquot access grant" in hint and "--tenant" in hint for hint in hints), hints
        assert hints[0].endswith("--tenant TENANT")
