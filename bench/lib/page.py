"""The page's own fields of bench/console.py: the fleet in a real browser, while leases come and go.

`first_picture_ms` is from the start of the navigation to the moment when all devices have been drawn, the page's
files and the fleet's columns included; `update_ms` the 95th percentile of how long a batch of changes took from its
arrival to its pixels; `js_gzip_kb` all JavaScript as it is sent. The bars: 1,000 ms, 50 ms, 150 kB.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import shutil
from typing import Any

from aliquot.client import AsyncPool, Request
from aliquot.console.page import FOLDER

CHURN = 250
"""Leases that come or go at once."""
UPDATES = 20
PATIENCE_S = 60.0
_OBSERVE = """
globalThis.drawn = [];
new PerformanceObserver((list) => {
  for (const each of list.getEntriesByName("fleet-drawn")) drawn.push([each.startTime, each.duration]);
}).observe({entryTypes: ["measure"]});
"""


async def fields_of_the_page(pool: str, console: str, token: str) -> dict[str, Any]:
    """`pool` and `console` are addresses."""
    scripts = [path.read_bytes() for path in FOLDER.rglob("*.js")]
    found: dict[str, Any] = dict.fromkeys(("first_picture_ms", "update_ms", "js_gzip_kb"))
    if scripts:
        found["js_gzip_kb"] = round(sum(len(gzip.compress(each, 9)) for each in scripts) / 1000, 1)
    chromium = shutil.which("chromium")
    if chromium is None or not scripts:
        return found
    from playwright.async_api import async_playwright  # noqa: PLC0415 - only where there is a browser

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": 1400, "height": 900})
        await page.goto(console)
        await page.get_by_label("Token").fill(token)
        await page.get_by_role("button", name="Sign in").click()
        await page.get_by_role("navigation").wait_for()
        await page.add_init_script(_OBSERVE)
        await page.goto(f"{console}/fleet")
        await _drawn(page, 0)
        start_ms, took_ms = await page.evaluate("drawn[0]")
        found["first_picture_ms"] = round(start_ms + took_ms)
        churning = asyncio.create_task(_churn(pool, token))
        await _drawn(page, UPDATES)
        churning.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await churning
        updates = sorted(took for _, took in (await page.evaluate("drawn"))[1:])
        found["update_ms"] = round(updates[len(updates) * 95 // 100], 1)
        await browser.close()
    return found


async def _drawn(page: Any, times: int) -> None:  # noqa: ANN401 - a page of a library that is imported late
    """Wait until more was drawn than so many times. The page's policy forbids the browser to wait by itself."""
    async with asyncio.timeout(PATIENCE_S):
        while await page.evaluate("drawn.length") <= times:  # noqa: ASYNC110 - a number in another process
            await asyncio.sleep(0.05)


async def _churn(address: str, token: str) -> None:
    async with AsyncPool(address, token=token) as pool:
        while True:
            asked = await pool.allocate_batch([Request("0.5", detached=True)] * CHURN)
            await pool.release_batch([lease.lease_id for lease in asked if hasattr(lease, "lease_id")])
