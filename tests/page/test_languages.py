"""The page in each language: chosen by the browser or by hand, complete, and nothing of it outside the catalogues."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from playwright.async_api import Browser, Page, expect

from aliquot.coordinator.core.values.types import EndReason
from aliquot.v1 import access_pb2, types_pb2
from tests.page.conftest import AXE, TIMEOUT_MS, Site, Visitor, visiting
from tests.page.test_every_screen import SCREENS, findings, settled

expect.set_options(timeout=TIMEOUT_MS)
SESSION = pytest.mark.asyncio(loop_scope="session")
PAGE = Path("console/page")
TOLD = """() => {
  const own = (node) => !node.closest("bdi, code, pre, .code, option, script, noscript, [lang]:not(html)");
  const told = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) if (own(walker.currentNode.parentElement)) told.push(walker.currentNode.data);
  for (const name of ["aria-label", "title", "placeholder", "label"])
    for (const node of document.querySelectorAll(`[${name}]`)) if (own(node)) told.push(node.getAttribute(name));
  return told;
}"""
"""What the page itself says, as text or to who hears it: not what others wrote, nor commands."""
ENGLISH = re.compile(r"[A-Za-z]{2,} [a-z]{2,}|^[a-z]{4,}$|^[A-Z][a-z]{3,}$")
NAMES = {"aliquot", "vision", "default", "root", "price", "binpack", "spread", "Python", "Kubernetes", "curl"}


async def _told(page: Page) -> list[str]:
    told: list[str] = await page.evaluate(TOLD)
    return [text.strip() for text in told if text.strip()]


@SESSION
async def test_in_chinese_each_screen_is_chinese_and_not_wider_than_a_phone(browser: Browser, site: Site) -> None:
    lease = site.ask(name="训练", tenant="vision", gpu="0.25,2Gi", time_limit_s=3600)
    async with visiting(browser, site, locale="zh-CN") as visitor:
        page = await visitor.go("/")
        await expect(page.get_by_role("button", name="登录")).to_be_visible()
        await visitor.sign_in(site.admin_token)
        found: list[str] = []
        for path in (*SCREENS, f"/lease?id={lease['lease_id']}"):
            await page.set_viewport_size({"width": 1280, "height": 900})
            await visitor.go(path)
            await settled(page)
            found += [f"{path}: {text}" for text in await _told(page) if ENGLISH.search(text) and text not in NAMES]
            await page.evaluate(AXE.read_text())
            found += [
                f"{path}: {finding}" for finding in await findings(page, ("color-contrast", "label", "button-name"))
            ]
            await page.set_viewport_size({"width": 390, "height": 844})
            wider = await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            if wider > 0:
                found.append(f"{path}: {wider} pixels wider than a phone")
        assert not found
        assert await page.evaluate("document.documentElement.lang") == "zh-CN"
    site.release(lease["lease_id"])


@SESSION
async def test_the_switch_is_remembered_and_english_alone_is_loaded_before(visitor: Visitor) -> None:
    loaded: list[str] = []
    visitor.page.on("request", lambda request: loaded.append(request.url))
    page = await visitor.sign_in(visitor.site.admin_token)
    await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert not any("/zh-" in url for url in loaded)
    await page.get_by_role("button", name="中文").click()
    await expect(page.get_by_role("heading", name="总览")).to_be_visible()
    assert any("/zh-" in url for url in loaded)
    other = await visitor.tab("/leases")
    await expect(other.get_by_role("heading", name="我的租约")).to_be_visible()
    await other.get_by_role("button", name="English").click()
    await expect(other.get_by_role("heading", name="My leases")).to_be_visible()


@SESSION
async def test_other_languages_get_the_first_that_there_is(browser: Browser, site: Site) -> None:
    async with visiting(browser, site, locale="fr-FR") as visitor:
        page = await visitor.go("/")
        await expect(page.get_by_role("button", name="Sign in")).to_be_visible()


def _enum_words() -> set[str]:
    """Of states and kinds that screens show: what is shown for the value 0 is said by the screens themselves."""
    words: set[str] = set(EndReason)
    names = "LeaseState SliceState NodeState UseState Standing SignSeverity SignScope Remedy MaintenancePhase Tier"
    for enum in (getattr(types_pb2, name) for name in names.split()):
        prefix = enum.keys()[0].removesuffix("UNSPECIFIED")
        words |= {name.removeprefix(prefix) for name in list(enum.keys())}
    words |= set(access_pb2.Role.keys())
    return words - {"UNSPECIFIED", "ROLE_UNSPECIFIED"}


def test_chinese_has_each_word_of_the_contract_that_screens_show() -> None:
    source = (PAGE / "src/texts/zh.ts").read_text()
    block = re.search(r"^  words: \{(.*?)^  \}", source, re.DOTALL | re.MULTILINE)
    assert block is not None
    known = set(re.findall(r"^\s+([A-Z_]+): ", block[1], re.MULTILINE))
    assert known >= _enum_words()


@pytest.mark.skipif(shutil.which("node") is None or not AXE.is_file(), reason="needs node, and what npm installs")
def test_a_text_outside_the_catalogues_is_found(tmp_path: Path) -> None:
    screen = tmp_path / "screen.tsx"
    screen.write_text(
        """export const Screen = (props: { busy: boolean; n: number; id: string }) => (
  <section class="card wide" aria-label="between tags">
    <h1>{props.busy ? "sending" : t.shell.menu}</h1>
    <p title={`${props.n} leases`}>alone</p>
    <Link to={`/lease?id=${props.id}`} current={props.id === "first"}>{t.shell.menu}</Link>
    <code>aliquot ls</code>
  </section>
);
const later = (error: Error): string => `it broke ${error}`;
"""
    )
    ran = subprocess.run(["node", "texts.js", screen], cwd=PAGE, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    said = [re.sub(r".*?: (\".*\") belongs.*", r"\1", line) for line in ran.stderr.splitlines()]
    assert said == ['"between tags"', '"sending"', '"leases"', '"alone"', '"it broke"']
    whole = subprocess.run(["node", "texts.js"], cwd=PAGE, capture_output=True, text=True, check=False)
    assert (whole.returncode, whole.stderr) == (0, "")
