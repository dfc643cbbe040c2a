"""A real browser, and pictures of what it shows: small files, of few colours."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from PIL import Image
from playwright.sync_api import BrowserContext, Page, Route, expect, sync_playwright

from tests.page.conftest import CHROMIUM, Site

Scheme = Literal["light", "dark"]
HOUR_MS = 3_600_000
WIDE, PHONE = (1280, 900), (390, 844)
HEIGHT_MAX = 1000
"""What lies further down is left out."""
COLOURS, APART = 40, 18
"""So many at most, each that far from every other: the sum of its three differences."""


def take(page: Page, file: Path, size: tuple[int, int] = WIDE, scheme: Scheme = "light") -> None:
    """A picture of what is there, once nothing is on its way any more: no higher than HEIGHT_MAX, with few colours."""
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    expect(page.locator(".waiting")).to_have_count(0, timeout=60_000)
    page.wait_for_timeout(700)
    height = page.evaluate("document.documentElement.scrollHeight")
    if not page.locator("dialog").count() and height > size[1]:
        page.set_viewport_size({"width": size[0], "height": min(height, HEIGHT_MAX)})
        page.wait_for_timeout(300)
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for colour in _most_frequent(picture) for part in colour])
    picture.quantize(palette=palette, dither=Image.Dither.NONE).save(file, optimize=True)


def _most_frequent(picture: Image.Image) -> list[tuple[int, int, int]]:
    """As they are, so that grounds and signs keep theirs, none twice: it is letters' edges that lose shades."""
    counted: Any = picture.getcolors(picture.width * picture.height)
    chosen: list[tuple[int, int, int]] = []
    for _, colour in sorted(counted, reverse=True):
        if all(sum(abs(a - b) for a, b in zip(colour, each, strict=True)) >= APART for each in chosen):
            chosen.append(colour)
    return chosen[:COLOURS]


def demand(route: Route) -> None:
    """Of a fortnight, and of the week to come: more by day than by night, less at weekends; a tenant's is a third."""
    part = 3 if "tenant" in route.request.url else 1
    now_ms = int(time.time() * 1000) // HOUR_MS * HOUR_MS
    hours: list[dict[str, Any]] = []
    for hour in range(-24 * 14, 24 * 7):
        start_ms = now_ms + hour * HOUR_MS
        weekday, of_day = (start_ms // (24 * HOUR_MS) + 3) % 7, start_ms // HOUR_MS % 24
        milli = round((6000 if weekday < 5 else 2500) / part * (1.5 + math.cos((of_day - 14) * math.pi / 12)))
        bounded = 0 <= hour < 24
        bounds = {"low_milli": milli - 1500 if bounded else None, "high_milli": milli + 2500 if bounded else None}
        hours.append({"start_ms": start_ms, "milli": milli, **bounds, "past": hour < 0})
    series = [{"kind": "", "name": "", "method": "median", "hours": hours, "score": None}]
    route.fulfill(json={"from_ms": now_ms, "series": series, "hours_known": 24 * 14})


def sign_in(context: BrowserContext, site: Site, token: str) -> None:
    """By the call that the page makes."""
    headers = {"X-Aliquot-Console": "1"}
    answer = context.request.post(f"{site.address}/api/v1/session", data={"token": token}, headers=headers)
    if answer.status != 201:
        raise SystemExit(answer.text())


@contextmanager
def somebody(site: Site, token: str = "", locale: str = "en-US") -> Iterator[Page]:
    """The browser of somebody who is signed in, or without a token is not."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context(locale=locale, viewport={"width": WIDE[0], "height": WIDE[1]})
        if token:
            sign_in(context, site, token)
        page = context.new_page()
        page.set_default_timeout(60_000)
        yield page
        browser.close()
