"""Whoever works on the page keeps their place while live data changes what is around them; and what they do there."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import expect

from tests.page.conftest import TIMEOUT_MS, Visitor

pytestmark = pytest.mark.asyncio(loop_scope="session")
expect.set_options(timeout=TIMEOUT_MS)


async def test_the_focus_stays_on_what_it_was_on_while_rows_come_and_go(visitor: Visitor) -> None:
    site = visitor.site
    names = ("first", "second", "third")
    first, second, third = (site.ask(gpu="0.01,64Mi", name=f"hands {name}")["lease_id"] for name in names)
    page = await visitor.sign_in(site.admin_token, "/leases?view=all")
    row = page.get_by_role("link", name="hands second")
    await row.focus()
    for lease_id, name in ((third, "third"), (first, "first")):
        site.release(lease_id)
        await expect(page.get_by_role("link", name=f"hands {name}")).to_be_hidden()
        await expect(row).to_be_focused()
    later = site.ask(gpu="0.01,64Mi", name="hands later")["lease_id"]
    await expect(page.get_by_role("link", name="hands later")).to_be_visible()
    await expect(row).to_be_focused()
    # What it is on goes: it is on what stood around that.
    site.release(second)
    await expect(row).to_be_hidden()
    await expect(page.get_by_role("region", name="leases", exact=True)).to_be_focused()
    site.release(later)


async def test_another_screen_begins_at_its_name_and_an_answered_question_gives_the_focus_back(
    visitor: Visitor,
) -> None:
    page = await visitor.sign_in(visitor.site.admin_token, "/fleet")
    await page.get_by_role("navigation").get_by_role("link", name="Queues and tenants").click()
    await expect(page.get_by_role("heading", name="Queues and tenants")).to_be_focused()
    await visitor.go("/node?id=node-1")
    await page.get_by_role("button", name="Cordon").click()
    await page.get_by_label("Reason, for people").fill("hands")
    await page.get_by_role("dialog").get_by_role("button", name="Cordon").click()
    await expect(page.get_by_role("button", name="Open again")).to_be_focused()
    await page.keyboard.press("Enter")
    await page.get_by_role("dialog").get_by_role("button", name="Open again").click()
    await expect(page.get_by_role("button", name="Cordon")).to_be_focused()


async def test_whose_button_is_gone_goes_on_at_the_name_of_the_screen(visitor: Visitor) -> None:
    lease = visitor.site.ask(gpu="0.01,64Mi", name="hands off")
    page = await visitor.sign_in(visitor.site.admin_token, f"/lease?id={lease['lease_id']}")
    await page.get_by_role("button", name="Release").click()
    await page.get_by_role("dialog").get_by_role("button", name="Release").click()
    await expect(page.locator(".note.bad")).to_contain_text("Ended: released")
    await expect(page.get_by_role("heading", name="hands off")).to_be_focused()


async def test_a_question_keeps_its_words_while_the_world_changes(visitor: Visitor) -> None:
    site = visitor.site
    page = await visitor.sign_in(site.admin_token, "/node?id=node-1")
    await page.get_by_role("button", name="Cordon").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("Reason, for people").fill("mine")
    with site.rest() as http:
        http.post("/nodes/node-1:cordon", json={"reason": "somebody else's"}).raise_for_status()
    await expect(page.get_by_text("somebody else's")).to_be_visible()
    await expect(dialog.get_by_role("heading")).to_have_text("Place nothing new here?")
    await dialog.get_by_role("button", name="Cordon").click()
    await expect(page.locator("main .note.warn")).to_contain_text("mine")
    with site.rest() as http:
        http.post("/nodes/node-1:uncordon").raise_for_status()


async def test_a_lease_is_extended(visitor: Visitor) -> None:
    site = visitor.site
    token = site.let_in("eve")
    lease_id = site.ask(token, gpu="0.01,64Mi", time_limit_s=3600)["lease_id"]
    page = await visitor.sign_in(token, f"/lease?id={lease_id}")
    await page.get_by_role("button", name="Extend").click()
    dialog = page.get_by_role("dialog")
    await dialog.get_by_label("How much longer").select_option("4 hours")
    await dialog.get_by_label("Reason, for people").fill("it converges")
    await dialog.get_by_role("button", name="Extend").click()
    await expect(page.locator(".story")).to_contain_text("extended: time limit 5h, it converges, by eve")
    await expect(page.locator(".facts").first).to_contain_text(re.compile(r"Ends\s*in (5|4\.9)\sh"))
    site.release(lease_id)


async def test_what_is_held_for_nothing_is_seen_and_may_be_let_alone(visitor: Visitor) -> None:
    site = visitor.site
    lease_id = site.ask(gpu="0.05,64Mi", name="for nothing", tenant="vision")["lease_id"]
    page = await visitor.sign_in(site.admin_token, "/use?tenant=vision")
    table = page.get_by_role("region", name="leases that do nothing")
    row = table.get_by_role("row").filter(has_text="for nothing")
    await expect(row).to_contain_text("held")
    await row.get_by_role("link", name="for nothing").click()
    await expect(page.get_by_text("No process of it is there.")).to_be_visible()
    await page.get_by_role("button", name="Leave it alone").click()
    await page.get_by_label("Reason, for people").fill("I debug it")
    await page.get_by_role("dialog").get_by_role("button", name="Leave it alone").click()
    await expect(page.locator("main")).to_contain_text("I debug it")
    await page.get_by_role("button", name="End exemption").click()
    await page.get_by_role("dialog").get_by_role("button", name="End exemption").click()
    await expect(page.get_by_role("button", name="Leave it alone")).to_be_visible()
    site.release(lease_id)
