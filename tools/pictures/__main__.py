"""Takes pictures of the console's page, in a real browser, of a pool with simulated cards.

    python -m tools.pictures                          # every screen, into docs/img
    python -m tools.pictures --states build/states    # every state, to be looked at: nothing of it is kept

The demand of each hour is made up: a pool knows its own after three days.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.page.conftest import CHROMIUM
from tools.pictures.camera import PHONE, WIDE, demand, somebody, take
from tools.pictures.day import Day, ordinary_day
from tools.pictures.states import crowd, every_state

ASKED = "/ask?gpu=2x1(A100-40),30Gi&gang_size=4&tenant=vision"
"""What would have to wait."""


def screens(day: Day) -> Iterator[tuple[str, str, Callable[[Page], None]]]:
    """A name, an address, and what is done there before the picture is taken; the overview first."""
    node = f"/node?id={day.node_id}"
    yield "overview", "/", still
    yield "ask", ASKED, still
    yield "leases", "/leases?view=all", still
    yield "lease", f"/lease?id={day.leases['finetune-7b']}", still
    yield "fleet", "/fleet", still
    yield "node", node, still
    yield "queues", "/queues", still
    yield "incidents", "/incidents", still
    yield "use", "/use?tenant=vision", still
    yield "calendar", "/calendar", still
    yield "maintenance", "/maintenance", still
    yield "access", "/access", still
    yield "what-if", "/what-if", try_policies


def details(day: Day) -> Iterator[tuple[str, str, Callable[[Page], None]]]:
    """What screens show of something else: by day only."""
    yield "waits", f"/lease?id={day.leases['sweep']}", still
    yield "elastic", f"/lease?id={day.leases['pretrain-elastic']}", still
    yield "notebook", f"/lease?id={day.leases['notebook']}", still
    yield "extend", f"/lease?id={day.leases['notebook']}", press("Extend")
    yield "remote", f"/lease?id={day.leases['laptop']}", still
    yield "fleet-table", "/fleet?as=table", still
    yield "drain", f"/node?id={day.node_id}", press("Drain")


def still(page: Page) -> None:
    """Nothing is done."""


def press(word: str) -> Callable[[Page], None]:
    """Open a dialog by the button whose name begins with this."""

    def do(page: Page) -> None:
        page.locator("main button").filter(has_text=word).first.click()
        page.locator("dialog").wait_for()

    return do


def try_policies(page: Page) -> None:
    """Ask what would be, and wait for the answer."""
    page.locator("main button.primary").click()
    page.locator("main .table").wait_for()


def every_screen(day: Day, out: Path, only: str) -> None:
    """In light, in the dark and on a phone; two of them in Chinese."""
    with somebody(day.site, day.token) as page:
        page.context.route("**/api/v1/forecast*", demand)
        page.goto(day.site.address)
        # A curve of what was while the page was open.
        page.wait_for_timeout(0 if only else 30_000)
        for name, address, do in (*screens(day), *details(day)):
            if only in name:
                _go(page, address)
                do(page)
                take(page, out / f"console-{name}-light.png")
                if name in {each for each, _, _ in screens(day)}:
                    take(page, out / f"console-{name}-dark.png", scheme="dark")
                    take(page, out / f"console-{name}-phone.png", PHONE)
                page.keyboard.press("Escape")
    with somebody(day.site, day.token, "zh-CN") as page:
        page.context.route("**/api/v1/forecast*", demand)
        for name, address in (("ask", ASKED), ("overview", "/")):
            if only in name:
                page.goto(day.site.address + address)
                take(page, out / f"console-{name}-zh-light.png")


def _go(page: Page, address: str) -> None:
    """As somebody goes who follows a link: what was seen so far stays known."""
    page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})
    page.evaluate("to => { history.pushState(null, '', to); dispatchEvent(new PopStateEvent('popstate')); }", address)
    expect(page.locator("main h1")).to_be_visible()
    expect(page.locator(".waiting")).to_have_count(0, timeout=60_000)


def main() -> int:
    """The pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/img"), help="where to (default %(default)s)")
    parser.add_argument("--states", type=Path, help="every state instead, into this folder")
    parser.add_argument("--only", default="", help="only those whose name has this in it")
    options = parser.parse_args()
    if CHROMIUM is None:
        raise SystemExit("needs Chromium: apt-get install chromium")
    if options.states:
        options.states.mkdir(parents=True, exist_ok=True)
        every_state(options.states, options.only)
        return 0
    if options.only in "crowd":
        crowd(options.out / "console-crowd-dark.png")
    if options.only == "crowd":
        return 0
    with ordinary_day() as day:
        every_screen(day, options.out, options.only)
    return 0


if __name__ == "__main__":
    sys.exit(main())
