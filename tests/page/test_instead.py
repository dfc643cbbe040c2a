"""The smallest change as a button: a form filled with it; what waits is withdrawn once the other has its devices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.page.conftest import TIMEOUT_MS, Site, Visitor

pytestmark = pytest.mark.asyncio(loop_scope="session")
expect.set_options(timeout=TIMEOUT_MS)
GPU = "input.big"


@contextmanager
def parts_of_all_cards_held(site: Site) -> Iterator[list[str]]:
    """No card is whole, each has something left; the leases."""
    held = [site.ask(gpu="0.75,4Gi", name="in the way")["lease_id"] for _ in range(4)]
    try:
        yield held
    finally:
        with site.rest() as http:
            mine = [each["lease_id"] for each in http.get("/leases").json()["items"] if "instead" in each["name"]]
        site.release(*held, *mine)


def state_of(site: Site, lease_id: str) -> str:
    with site.rest() as http:
        return str(http.get(f"/leases/{lease_id}").json()["state"])


async def follow(visitor: Visitor, token: str, lease: dict[str, Any]) -> Page:
    """From the lease that waits to the filled form."""
    page = await visitor.sign_in(token, f"/lease?id={lease['lease_id']}")
    await expect(page.locator(".note.good code")).to_contain_text("aliquot alloc 0.")
    await page.get_by_role("link", name="Ask for this instead").click()
    await expect(page.locator(".verdict")).to_contain_text("Yes, now")
    return page


async def test_the_question_is_asked_again_with_the_change(visitor: Visitor) -> None:
    with parts_of_all_cards_held(visitor.site):
        page = await visitor.sign_in(visitor.site.let_in("ines"), "/ask")
        await page.locator(GPU).fill("1")
        await expect(page.locator(".verdict")).to_contain_text("Not now")
        await page.get_by_role("link", name="Ask for this instead").click()
        await expect(page.locator(GPU)).to_have_value(re.compile(r"^0\.[0-9]+$"))
        await expect(page.locator(".verdict")).to_contain_text("Yes, now")
        await expect(page.get_by_role("link", name="Ask for this instead")).to_be_hidden()


async def test_who_waits_takes_less_and_gives_up_the_place(visitor: Visitor) -> None:
    site = visitor.site
    token = site.let_in("ivan")
    with parts_of_all_cards_held(site):
        waits = site.ask(token, "1", name="instead of this", labels={"port": "8888"}, cpu_milli=10, time_limit_s=3600)
        page = await follow(visitor, token, waits)
        # What the form has no place for is asked for all the same, and seen.
        await expect(page.locator("form")).to_contain_text("--label port=8888 --cpu 10m")
        await expect(page.get_by_label("Ends after, seconds")).to_have_value("3600")
        assert state_of(site, waits["lease_id"]) == "QUEUED", "nobody has confirmed anything"
        await page.get_by_role("button", name="Ask for it").click()
        await expect(page.locator(".note.good")).to_contain_text("It took the place of")
        await expect(page.locator(".facts .state").first).to_contain_text("active")
        assert state_of(site, waits["lease_id"]) == "ENDED"
        taken = page.url.partition("id=")[2].partition("&")[0]
        with site.rest() as http:
            found = http.get(f"/leases/{taken}").json()
        assert (found["labels"], found["time_limit_s"], found["name"]) == ({"port": "8888"}, 3600, "instead of this")


async def test_where_the_other_waits_too_it_is_said_and_nothing_is_withdrawn(visitor: Visitor) -> None:
    site = visitor.site
    token = site.let_in("iris")
    with parts_of_all_cards_held(site):
        waits = site.ask(token, "1", name="instead of this")
        page = await follow(visitor, token, waits)
        await page.locator(GPU).fill("2")
        await page.get_by_role("button", name="Ask for it, and wait").click()
        await expect(page.locator(".note.warn").first).to_contain_text("Both wait")
        assert state_of(site, waits["lease_id"]) == "QUEUED"


async def test_what_has_got_its_devices_meanwhile_is_not_taken_back(visitor: Visitor) -> None:
    site = visitor.site
    token = site.let_in("igor")
    with parts_of_all_cards_held(site) as held:
        waits = site.ask(token, "1", name="instead of this")
        page = await follow(visitor, token, waits)
        site.release(held[0])
        tab = await visitor.tab(f"/lease?id={waits['lease_id']}")
        await expect(tab.locator(".facts .state").first).to_contain_text("active")
        await page.get_by_role("button", name="Ask for it").click()
        await expect(page.locator(".note.warn").first).to_contain_text("Both stand")
        assert state_of(site, waits["lease_id"]) == "ACTIVE"
