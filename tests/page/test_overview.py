"""The overview fits its window: full rows of tiles, what is free above the fold, a curve from the first reading on."""

from __future__ import annotations

import re

import pytest
from playwright.async_api import Locator, Page, expect

from tests.page.conftest import TIMEOUT_MS, Visitor

pytestmark = pytest.mark.asyncio(loop_scope="session")
expect.set_options(timeout=TIMEOUT_MS)
TOPS = "tiles => tiles.map(tile => Math.round(tile.getBoundingClientRect().top))"


async def _rows(page: Page) -> list[int]:
    """How many tiles each row has."""
    tops: list[int] = await page.locator(".tile").evaluate_all(TOPS)
    return [tops.count(top) for top in sorted(set(tops))]


async def _top(of: Locator) -> float:
    box = await of.bounding_box()
    assert box is not None
    return box["y"]


@pytest.mark.parametrize(("width", "rows"), [(1280, [6]), (1200, [3, 3]), (900, [3, 3]), (390, [2, 2, 2])])
async def test_every_row_of_tiles_is_full(visitor: Visitor, width: int, rows: list[int]) -> None:
    page = await visitor.sign_in(visitor.site.admin_token)
    await page.set_viewport_size({"width": width, "height": 900})
    await expect(page.locator(".tile")).to_have_count(6)
    assert await _rows(page) == rows


async def test_on_a_phone_the_header_is_one_row(visitor: Visitor) -> None:
    page = await visitor.sign_in(visitor.site.let_in("admin-2"))
    await page.set_viewport_size({"width": 390, "height": 844})
    await expect(page.locator(".fresh")).to_contain_text("live")
    menu, log_out = (page.get_by_role("button", name=name) for name in ("menu", "log out"))
    assert await _top(menu) == await _top(log_out)


async def test_what_is_free_stands_beside_the_curve_and_before_the_leases(visitor: Visitor) -> None:
    page = await visitor.sign_in(visitor.site.admin_token)
    free, mine = (page.get_by_role("heading", name=name) for name in ("Free now", "My leases"))
    await expect(free).to_be_visible()
    assert await _top(free) < await _top(mine)
    await expect(page.get_by_role("button", name="A100-40")).to_be_in_viewport()


async def test_the_first_reading_is_a_point(visitor: Visitor) -> None:
    await visitor.context.clock.install()
    page = await visitor.sign_in(visitor.site.admin_token)
    await visitor.context.clock.pause_at("2100-01-01")
    await page.reload()
    curve = page.get_by_role("img", name=re.compile("GPUs")).locator(".points")
    await expect(curve.first).to_have_attribute("d", re.compile(r"^M59 [\d.]+h0$"))
