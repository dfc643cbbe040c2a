"""A standby takes over while the page is open: a yellow line, and everything goes on."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest
from playwright.async_api import Browser, expect

from aliquot.client import AsyncPool, DeviceDeclaration, NodeDeclaration
from tests.conftest import postgres_bin_dir
from tests.failover import server
from tests.failover.cluster import cluster
from tests.identity import ADMIN_TOKEN
from tests.page.conftest import TIMEOUT_MS, Site, console_of, visiting

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.postgres]
expect.set_options(timeout=TIMEOUT_MS)


@pytest.fixture
def database() -> Iterator[str]:
    bin_dir = postgres_bin_dir()
    assert bin_dir is not None
    with server.running(bin_dir) as postgres:
        yield postgres.database("page")


async def test_a_standby_that_takes_over_is_a_yellow_line(browser: Browser, database: str) -> None:
    async with cluster(database) as several:
        async with AsyncPool(several.addresses, token=ADMIN_TOKEN, agent_sockets=()) as pool:
            devices = [DeviceDeclaration("A100-80")] * 4
            await pool.declare([NodeDeclaration("n1", devices=devices, agentless=True)])
        with console_of(",".join(several.addresses)) as address:
            site = Site(address, ADMIN_TOKEN)
            lease = await asyncio.to_thread(site.ask, name="goes on")
            async with visiting(browser, site) as visitor:
                page = await visitor.sign_in(ADMIN_TOKEN, "/leases?view=all")
                row = page.get_by_role("link", name="goes on")
                await expect(row).to_be_visible()
                await row.focus()
                fleet = await visitor.tab("/fleet")
                await expect(fleet.locator("canvas")).to_be_visible()
                _, epoch, _ = several.row()
                (await several.leader()).send(signal.SIGKILL)
                await expect(page.locator(".note.warn")).to_be_visible()
                await expect(row).to_be_focused()
                await several.leader(after_epoch=epoch)
                # Each tab says so for a while only: they are looked at together.
                news = "Another coordinator took the lead"
                await asyncio.gather(
                    *(expect(tab.locator(".note.warn")).to_contain_text(news) for tab in (page, fleet))
                )
                for tab in (page, fleet):
                    await expect(tab.locator(".fresh")).to_contain_text("live")
                await expect(row).to_be_focused()
                # What changes from now on arrives, without anything being opened again.
                await asyncio.to_thread(site.release, lease["lease_id"])
                await expect(row).to_be_hidden()
