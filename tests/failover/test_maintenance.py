"""A maintenance window whose coordinator is killed in the midst of it: another one carries it through."""

from __future__ import annotations

import signal
from datetime import timedelta

import pytest

from aliquot.client import AsyncPool, WaitUntil
from aliquot.client.admin import MaintenanceWindow
from tests.coordinator.pool import eventually
from tests.failover.cluster import cluster
from tests.maintenance.test_service import HOUR, at, declare, held


@pytest.mark.postgres
@pytest.mark.timeout(240)
async def test_another_coordinator_takes_a_window_over(database: str) -> None:
    async with cluster(database) as several, AsyncPool(several.addresses, tenant="team", timeout_s=60) as sdk:
        await declare(sdk, "n1")
        window = MaintenanceWindow(
            name="short", start=at(-HOUR), end=at(timedelta(seconds=15)), zone="UTC", node_ids=("n1",)
        )
        await sdk.admin.declare_maintenance(window)
        waiting = await sdk.allocate("1", until=WaitUntil.GRANTED, wait_s=0, detached=True)
        assert not waiting.granted
        _, epoch, _ = several.row()
        old = await several.leader()
        old.send(signal.SIGKILL)
        await several.leader(after_epoch=epoch)
        (view,) = await sdk.admin.maintenance()
        assert view.window == window
        await eventually(lambda: held(sdk, waiting.lease_id), "the window ends under the new leader")
        assert not await sdk.admin.maintenance()
