"""Every screen: nothing serious by axe, no wider than a phone, and its commands are real ones."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from playwright.async_api import Page, expect

from aliquot.cli._parser import UsageError
from aliquot.cli.main import build_parser, commands
from tests.page.conftest import AXE, TIMEOUT_MS, Visitor

pytestmark = pytest.mark.asyncio(loop_scope="session")
expect.set_options(timeout=TIMEOUT_MS)
SCREENS = (
    "/",
    "/ask?gpu=0.5,2Gi",
    "/ask?gpu=20x1",
    "/leases?view=all",
    "/fleet",
    "/fleet?as=table",
    "/node?id=node-1",
    "/queues",
    "/incidents",
    "/use?tenant=vision",
    "/calendar",
    "/maintenance",
    "/access",
    "/what-if",
    "/nowhere",
)


async def settled(page: Page) -> None:
    """Its screen is there, with all that it waits for."""
    await expect(page.locator("main h1")).to_be_visible()
    await expect(page.locator(".waiting")).to_have_count(0)


async def findings(page: Page, rules: tuple[str, ...] = ()) -> list[str]:
    """What axe calls serious, by all rules or these."""
    options = {"resultTypes": ["violations"]} | ({"runOnly": list(rules)} if rules else {})
    found: dict[str, Any] = await page.evaluate("options => axe.run(document, options)", options)
    return [
        f"{each['id']}: {node['html'][:160]} {node['failureSummary'][:200]}"
        for each in found["violations"]
        if each["impact"] in {"serious", "critical"}
        for node in each["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_nothing_serious_and_nothing_wider_than_the_window(visitor: Visitor, scheme: Any) -> None:
    site = visitor.site
    lease = site.ask(name="looked at", tenant="vision")
    page = await visitor.sign_in(site.admin_token)
    await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    found: list[str] = []
    for path in (*SCREENS, f"/lease?id={lease['lease_id']}"):
        await page.set_viewport_size({"width": 1280, "height": 900})
        await visitor.go(path)
        await settled(page)
        await page.evaluate(AXE.read_text())
        # In the dark nothing is otherwise than the colours.
        rules = ("color-contrast",) if scheme == "dark" else ()
        found += [f"{path}: {finding}" for finding in await findings(page, rules)]
        await page.set_viewport_size({"width": 390, "height": 844})
        wider = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if wider > 0:
            found.append(f"{path}: {wider} pixels wider than a phone")
    assert not found
    site.release(lease["lease_id"])


async def test_signing_in_has_nothing_serious_either(visitor: Visitor) -> None:
    page = await visitor.go("/")
    await page.get_by_label("Token").wait_for()
    await page.evaluate(AXE.read_text())
    assert not await findings(page)


async def test_each_command_that_is_shown_is_one(visitor: Visitor) -> None:
    site = visitor.site
    lease = site.ask(name='it\'s "named" $HOME', tenant="vision")
    page = await visitor.sign_in(site.admin_token)
    shown: set[str] = set()
    for path in (*SCREENS, f"/lease?id={lease['lease_id']}"):
        await visitor.go(path)
        await settled(page)
        texts: list[str] = await page.locator("details.elsewhere pre").all_text_contents()
        for button in await page.locator("main button.danger").all():
            await button.click()
            texts += await page.locator("dialog details.elsewhere pre").all_text_contents()
            await page.keyboard.press("Escape")
        shown |= {text.strip() for text in texts}
    lines = sorted(text for text in shown if text.startswith("aliquot "))
    assert len(lines) > 10
    for line in lines:
        parse(line)
    curls = [text for text in shown if text.startswith("curl ")]
    assert all(site.address in text for text in curls)
    site.release(lease["lease_id"])


def parse(command: str) -> None:
    """Raises AssertionError where a command line would not be understood."""
    words = shlex.split(command)[1:]
    try:
        build_parser(commands(words)).parse_whole(words)
    except (SystemExit, UsageError) as error:
        raise AssertionError(f"no such command: {command}") from error
