"""Quotas that differ by the time of day: what is in force, what comes next, and an edit that leaves windows alone."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from tests.page.conftest import TIMEOUT_MS, Visitor
from tests.page.test_every_screen import parse

pytestmark = pytest.mark.asyncio(loop_scope="session")
expect.set_options(timeout=TIMEOUT_MS)
WINDOWS = [
    {"when": "daily 00:00-12:00", "limit": {"share_milli": 1000}},
    {"when": "daily 12:00-24:00", "limit": {"share_milli": 3000}},
]


async def test_what_is_in_force_is_shown_and_an_edit_leaves_windows_as_they_are(visitor: Visitor) -> None:
    quota = {"limit": {"share_milli": 2000, "memory_bytes": 1 << 40}, "windows": WINDOWS}
    with visitor.site.rest() as http:
        http.put("/tenancy", json={"tenants": [{"name": "by-day", "quota": quota}]}).raise_for_status()
    page = await visitor.sign_in(visitor.site.admin_token, "/queues")
    row = page.get_by_role("region", name="tenants").get_by_role("row").filter(has_text="by-day")
    await expect(row).to_contain_text("then")
    await row.get_by_role("button", name="edit by-day").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text("Outside of its windows, which stay as they are")
    await dialog.get_by_label("Limit, devices").fill("2.5")
    await dialog.get_by_text("as a command").click()
    command = dialog.get_by_role("region", name="command line")
    await expect(command).to_contain_text("--limit 2.5,1099511627776")
    parse(await command.inner_text())
    await dialog.get_by_role("button", name="Try").click()
    await dialog.get_by_role("button", name="Declare").click()
    await expect(dialog).to_have_count(0)
    with visitor.site.rest() as http:
        (view,) = [each for each in http.get("/tenancy").json()["tenants"] if each["spec"]["name"] == "by-day"]
        assert [each["when"] for each in view["spec"]["quota"]["windows"]] == [each["when"] for each in WINDOWS]
        assert view["spec"]["quota"]["limit"]["share_milli"] == 2500
        http.delete("/tenancy/tenant/by-day").raise_for_status()
