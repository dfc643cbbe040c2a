"""Giving leases back from the node: only those that say themselves whose pod they are."""

from __future__ import annotations

from aliquot.client import AsyncPool, LeaseState, WaitUntil
from aliquot.kube.core import names
from aliquot.kube.node.releasing import release
from tests.coordinator.pool import running
from tests.identity import ADMIN_TOKEN


async def test_a_lease_is_given_back_for_its_own_pod_only() -> None:
    async with running() as pool:
        await pool.declare(1)
        async with AsyncPool(pool.address, token=ADMIN_TOKEN) as sdk:
            labels = {names.LEASE_POD_UID: "uid-1"}
            mine = await sdk.grant_on("0.25", "node-0", until=WaitUntil.GRANTED, key="a", detached=True, labels=labels)
            gang = await sdk.grant_on("0.25", "node-0", until=WaitUntil.GRANTED, key="b", detached=True)
            await release(sdk, mine.lease_id, "uid-2")
            await release(sdk, gang.lease_id, "uid-1")
            states = [(await sdk.get(each.lease_id)).state for each in (mine, gang)]
            assert states == [LeaseState.GRANTED, LeaseState.GRANTED]
            await release(sdk, mine.lease_id, "uid-1")
            assert (await sdk.get(mine.lease_id)).state in (LeaseState.RELEASING, LeaseState.ENDED)
            await release(sdk, mine.lease_id, "uid-1")
            await release(sdk, "l-none", "uid-1")
