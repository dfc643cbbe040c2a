"""What was: of a card while the page is open, of a tenant in the last day; and few cards are drawn large."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from tests.page.conftest import TIMEOUT_MS, Visitor
from tests.page.test_calendar import answering, document

pytestmark = pytest.mark.asyncio(loop_scope="session")
expect.set_options(timeout=TIMEOUT_MS)
LINES = "document.querySelector('.devices .spark path').getAttribute('d').split('L').length - 1"


async def _drawn(page: Page) -> int:
    """How many known values follow another in its picture; a page that was not painted in time knows one less."""
    await expect(page.locator(".devices .spark").first).to_be_visible()
    return int(await page.evaluate(LINES))


async def test_how_busy_a_card_was_is_there_again_after_another_screen(visitor: Visitor) -> None:
    await visitor.context.clock.install()
    page = await visitor.sign_in(visitor.site.admin_token, "/node?id=node-1")
    while (drawn := await _drawn(page)) < 5:
        await visitor.context.clock.run_for(5_000)
    await page.get_by_role("navigation").get_by_role("link", name="Fleet").click()
    await expect(page.locator("canvas")).to_be_visible()
    await page.go_back()
    assert await _drawn(page) >= drawn


async def test_use_shows_a_tenants_last_day(visitor: Visitor) -> None:
    await answering(visitor, document())
    asked: list[str] = []
    visitor.page.on("request", lambda request: asked.append(request.url))
    page = await visitor.go("/use?tenant=vision")
    card = page.locator(".card").filter(has_text="Demand of vision")
    await expect(card).to_contain_text("Held or waited for, last 24 hours")
    await expect(card.locator(".spark")).to_be_visible()
    await expect(card).to_contain_text("GPUs")
    assert any("forecast?series=tenant%2Fvision" in url for url in asked)
    await card.get_by_role("link", name="What is expected").click()
    await expect(page.get_by_label("Of")).to_have_value("tenant/vision")


async def test_few_cards_are_drawn_large_and_each_is_where_it_is_pointed_at(visitor: Visitor) -> None:
    page = await visitor.sign_in(visitor.site.admin_token, "/fleet")
    canvas = page.locator("canvas")
    await expect(canvas).to_be_visible()
    box = await canvas.bounding_box()
    assert box is not None
    assert box["height"] > 96
    await canvas.hover(position={"x": 150, "y": 60})
    await expect(page.locator(".hint")).to_contain_text("node-1, device 1")
    await canvas.hover(position={"x": 50, "y": 60})
    await expect(page.locator(".hint")).to_contain_text("node-1, device 0")
    await canvas.click(position={"x": 250, "y": 60})
    await expect(page.locator("main h1")).to_have_text("node-2")
