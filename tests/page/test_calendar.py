"""The calendar of demand: pictures of a week that are words too, moved in by keys; and why there is none."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from playwright.async_api import Page, Route, expect

from tests.page.conftest import AXE, TIMEOUT_MS, Visitor

pytestmark = pytest.mark.asyncio(loop_scope="session")
expect.set_options(timeout=TIMEOUT_MS)
HOUR_MS = 3_600_000
FROM_MS = 1_795_392_000_000
"""Monday, 23 November 2026, 00:00 UTC."""


SPRING_MS = 1_806_163_200_000
"""Saturday, 27 March 2027, 16:00 UTC: on Sunday at 02:00 clocks in Zurich are put forward."""
AUTUMN_MS = 1_824_912_000_000
"""Saturday, 30 October 2027, 16:00 UTC: on Sunday at 03:00 clocks in Zurich are put back."""


def hours(first: int, number: int, *, past: bool, hole: int = -1, from_ms: int = FROM_MS) -> list[dict[str, Any]]:
    """Demand that is highest at 14:00 UTC, more so on each later day; bounds for the first day ahead."""
    found: list[dict[str, Any]] = []
    for hour in range(first, first + number):
        milli = round(8000 + 60 * hour + 6000 * math.cos((hour - 14) * math.pi / 12))
        bounded = not past and hour < 24
        found.append(
            {
                "start_ms": from_ms + hour * HOUR_MS,
                "milli": None if hour == hole else milli,
                "low_milli": milli - 2000 if bounded else None,
                "high_milli": milli + 3000 if bounded else None,
                "past": past,
            }
        )
    return found


def series(kind: str, name: str, method: str, known: list[dict[str, Any]]) -> dict[str, Any]:
    return {"kind": kind, "name": name, "method": method, "hours": known, "score": None}


def document(method: str = "median", *, past: int = 24 * 14, from_ms: int = FROM_MS) -> dict[str, Any]:
    """What REST answers about one series."""
    known = [*hours(-past, past, past=True, hole=-5, from_ms=from_ms), *hours(0, 168, past=False, from_ms=from_ms)]
    return {"from_ms": from_ms, "series": [series("", "", method, known)], "hours_known": past}


async def answering(visitor: Visitor, found: dict[str, Any], zone: str = "UTC") -> Page:
    """The page, where forecasts are these: a pool has none before it is three days old."""
    devtools = await visitor.context.new_cdp_session(visitor.page)
    await devtools.send("Emulation.setTimezoneOverride", {"timezoneId": zone})
    every = {
        **found,
        "series": [*found["series"], series("tenant", "vision", "median", []), series("pool", "a", "", [])],
    }

    async def answer(route: Route) -> None:
        body = found if "series=" in route.request.url else every
        await route.fulfill(json=body)

    await visitor.context.route("**/api/v1/forecast*", answer)
    await visitor.page.emulate_media(reduced_motion="reduce")
    return await visitor.sign_in(visitor.site.admin_token, "/calendar")


async def test_the_peak_is_told_and_keys_move_from_hour_to_hour(visitor: Visitor) -> None:
    page = await answering(visitor, document())
    grid = page.get_by_role("grid")
    await expect(grid.get_by_role("rowheader").last).to_be_visible()  # rows are counted once they are there
    await expect(grid.get_by_role("rowheader")).to_have_count(await grid.get_by_role("row").count() - 1)
    await expect(page.locator("main p[role=status]")).to_have_text("Sun 29 Nov, 14:00: 23.48 devices")
    chosen = grid.locator('[tabindex="0"]')
    await expect(chosen).to_have_count(1)
    await chosen.focus()
    await page.keyboard.press("PageUp")
    await page.keyboard.press("Home")
    await expect(page.locator("main p[role=status]")).to_have_text("Mon 23 Nov, 00:00: 2.8 devices (0.8 to 5.8)")
    await page.keyboard.press("ArrowRight")
    await page.keyboard.press("ArrowDown")
    await expect(page.locator("main p[role=status]")).to_contain_text("Tue 24 Nov, 01:00")
    assert "Tue 24 Nov, 01:00" in str(await page.evaluate("document.activeElement.ariaLabel"))
    await page.get_by_text("the same as text").click()
    text = page.get_by_role("region", name="peaks by day")
    await expect(text.get_by_role("row").nth(1)).to_contain_text("14.84 at 14:00 (12.84 to 17.84)")
    await expect(text.get_by_role("row")).to_have_count(8)


async def test_the_usual_week_and_one_tenant_of_it_are_in_the_address(visitor: Visitor) -> None:
    page = await answering(visitor, document())
    await page.get_by_label("Show").select_option("as it usually was")
    await expect(page.get_by_role("grid").get_by_role("rowheader").first).to_have_text("Monday")
    await expect(page.locator("main p[role=status]")).to_have_text("Sunday, 14:00: 8.36 devices (3.32 to 13.4 seen)")
    async with page.expect_request(lambda request: "series=tenant%2Fvision" in request.url):
        await page.get_by_label("Of").select_option("tenant vision")
    assert page.url.endswith("/calendar?show=usual&series=tenant%2Fvision")
    await expect(page.locator("details.elsewhere pre").first).to_have_text("aliquot forecast tenant/vision --hours 168")


@pytest.mark.parametrize(
    ("from_ms", "day", "unknown"),
    [(SPRING_MS, "Sun 28 Mar", 1), (AUTUMN_MS, "Sun 31 Oct", 0)],
    ids=["put forward", "put back"],
)
async def test_a_day_on_which_clocks_change_has_a_gap_or_no_hour_twice(
    visitor: Visitor, from_ms: int, day: str, unknown: int
) -> None:
    page = await answering(visitor, document(from_ms=from_ms), "Europe/Zurich")
    grid = page.get_by_role("grid")
    row = grid.get_by_role("row").filter(has=page.get_by_role("rowheader", name=day))
    await expect(row.get_by_role("gridcell")).to_have_count(24)
    await expect(row.locator(".unknown")).to_have_count(unknown)
    if unknown:
        await expect(row.get_by_label("02:00")).to_have_attribute("title", f"{day}, 02:00: not known")


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({"from_ms": 0, "series": [], "hours_known": 0}, "No hour of demand is known yet"),
        ({"from_ms": 0, "series": [], "hours_known": 5}, "5 hours of demand are known. One is made after each hour"),
        ({"from_ms": FROM_MS, "series": [], "hours_known": 99}, "There is no forecast of this one"),
        (document("last"), "Less than 72 hours are known: this is the last value"),
        (document("withdrawn"), "the forecast has withdrawn itself"),
    ],
)
async def test_what_is_not_known_is_said(visitor: Visitor, found: dict[str, Any], why: str) -> None:
    page = await answering(visitor, found)
    await expect(page.locator("main")).to_contain_text(why)


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_a_full_calendar_has_nothing_serious_and_fits_a_phone(visitor: Visitor, scheme: Any) -> None:
    page = await answering(visitor, document())
    await page.emulate_media(color_scheme=scheme)
    await expect(page.get_by_role("grid")).to_be_visible()
    await page.evaluate(AXE.read_text())
    found: dict[str, Any] = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    serious = [each for each in found["violations"] if each["impact"] in {"serious", "critical"}]
    assert not serious, json.dumps(serious)[:2000]
    await page.set_viewport_size({"width": 390, "height": 844})
    assert await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0


async def test_a_pool_that_is_young_says_so_itself(visitor: Visitor) -> None:
    """Nothing is made up here: this is what the real coordinator answers."""
    page = await visitor.sign_in(visitor.site.admin_token, "/calendar")
    await expect(page.locator("main")).to_contain_text(
        re.compile(
            "No hour of demand is known yet|no forecast yet|Less than 72 hours are known|no forecast of this one"
        )
    )
