"""What people do with the page, each as a whole: ask, watch, release; and what happens to it meanwhile."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Page, expect

from tests.page.conftest import TIMEOUT_MS, Site, Visitor

pytestmark = pytest.mark.asyncio(loop_scope="session")
expect.set_options(timeout=TIMEOUT_MS)
GPU = "input.big"


@contextmanager
def burning(site: Site, line: str, bytes_: str) -> Iterator[None]:
    """The command that the page shows, run on this machine: a program that holds memory of the lease."""
    exports, _, command = line.rpartition("\n")
    words = shlex.split(command)
    assert words[-2:] == ["python", "train.py"]
    program = [sys.executable, "-m", "aliquot.simgpu.burn", "--bytes", bytes_, "--seconds", "600"]
    name, _, value = exports.removeprefix("export ").partition("=")
    environment = {
        **os.environ,
        name: shlex.split(value)[0],
        "ALIQUOT_COORDINATOR": site.local.address,
        "ALIQUOT_AGENT_SOCKET": os.pathsep.join(str(node.socket) for node in site.local.nodes),
        "ALIQUOT_TOKEN_FILE": str(site.local.token_file),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    with subprocess.Popen([*words[:-2], *program], env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


async def test_from_the_question_to_the_release(visitor: Visitor) -> None:
    page = await visitor.sign_in(visitor.site.let_in("ann"), "/ask")
    await page.locator(GPU).fill("20x1")
    await expect(page.locator(".verdict")).to_contain_text("Never in this pool")
    await expect(page.locator(".changes")).to_contain_text("ask for at most 2 per member")
    await page.locator(GPU).fill("0.25,2Gi")
    await expect(page.locator(".verdict")).to_contain_text("Yes, now")
    # Whoever clicks twice asks once.
    await page.get_by_role("button", name="Ask for it").dblclick()
    await page.wait_for_url(re.compile("/lease\\?id="))
    await expect(page.locator(".facts .state")).to_contain_text("active")
    with visitor.site.rest() as http:
        assert len([each for each in http.get("/leases").json()["items"] if each["asked_by"] == "ann"]) == 1
    shown = await page.get_by_role("region", name="command line").first.inner_text()
    with burning(visitor.site, shown.strip(), "1Gi"):
        await expect(page.locator(".big-number")).to_have_text(re.compile(r"^1\.?\d?\sGiB$"))
    await page.get_by_role("button", name="Release").click()
    await page.get_by_label("Reason, for people").fill("done")
    await page.get_by_role("dialog").get_by_role("button", name="Release").click()
    await expect(page.locator(".note.bad")).to_contain_text("Ended: released")
    await expect(page.locator(".story")).to_contain_text("active")


async def test_the_overview_says_how_full_it_is_what_is_mine_what_waits_and_what_is_wrong(visitor: Visitor) -> None:
    site = visitor.site
    token = site.let_in("olga")
    held = site.ask(token, "0.5,2Gi", name="held by olga")
    waits = site.ask(site.let_in("omar"), "2", gang_size=2, name="too much for now")
    try:
        page = await visitor.sign_in(token)
        numbers = page.get_by_role("region", name="the pool in numbers")
        await expect(numbers).to_contain_text("of 4")
        await expect(numbers.get_by_role("link", name=re.compile("^Waiting"))).to_contain_text("1")
        await expect(page.get_by_role("region", name="my leases")).to_contain_text("held by olga")
        await expect(page.get_by_role("region", name="my leases")).not_to_contain_text("too much")
        # Each model that is free leads to the question, with the model in it.
        await page.get_by_role("region", name="free devices by model").get_by_role("button", name="A100-40").click()
        await expect(page.locator(GPU)).to_have_value("0.25(A100-40)")
        page = await visitor.sign_in(site.admin_token)
        await expect(page.get_by_role("region", name="waiting requests")).to_contain_text("too much for now")
    finally:
        site.release(held["lease_id"], waits["lease_id"])


async def test_that_a_mig_instance_will_do_as_well_is_asked_in_every_language(visitor: Visitor) -> None:
    page = await visitor.sign_in(visitor.site.let_in("mia"), "/ask")
    await page.locator(GPU).fill("0.25,2Gi")
    await page.get_by_text("more", exact=True).click()
    await page.get_by_label("a MIG instance will do as well").check()
    how = page.get_by_role("group", name="how to use it")
    for title, said in (
        ("Command line", "--or-mig"),
        ("Python", "or_mig=True"),
        ("Kubernetes", 'aliquot.dev/or-mig: "true"'),
        ("curl", '"or_mig":true'),
    ):
        await how.get_by_role("button", name=title).click()
        await expect(page.get_by_role("region", name=title).last).to_contain_text(said)
    await expect(page.locator(".verdict")).to_contain_text("Yes, now")


async def test_the_score_that_dashboards_know_stands_with_a_lease_and_with_what_is_held_for_nothing(
    visitor: Visitor,
) -> None:
    site = visitor.site
    lease = site.ask(tenant="vision", name="asleep")
    try:
        page = await visitor.sign_in(site.admin_token, "/use")
        row = page.get_by_role("row").filter(has_text="asleep")
        await expect(row).to_contain_text("0, idle")
        await visitor.go(f"/lease?id={lease['lease_id']}")
        await expect(page.locator("dl.facts").filter(has_text="Efficiency")).to_contain_text("0, idle")
    finally:
        site.release(lease["lease_id"])


async def test_a_tenant_sees_nothing_of_another(visitor: Visitor) -> None:
    site = visitor.site
    lease = site.ask(site.let_in("vera", scope="vision"), tenant="vision", name="secret sauce")
    try:
        page = await visitor.sign_in(site.let_in("otto", scope="audio"), "/leases?view=all")
        await expect(page.locator("main h1")).to_have_text("My leases")
        for path in ("/leases?view=all", f"/lease?id={lease['lease_id']}", "/queues", "/fleet", "/use", "/access"):
            await visitor.go(path)
            await expect(page.locator("main h1")).to_be_visible()
            await expect(page.locator(".waiting")).to_have_count(0)
            content = await page.content()
            assert "secret sauce" not in content
            assert "vera" not in content
        assert await page.get_by_role("button", name="Release").count() == 0
    finally:
        site.release(lease["lease_id"])


async def test_a_failover_is_a_yellow_line(visitor: Visitor) -> None:
    site = visitor.site
    lease = site.ask(name="goes on")
    try:
        page = await visitor.sign_in(site.admin_token, "/leases?view=all")
        row = page.get_by_role("link", name="goes on")
        await expect(row).to_be_visible()
        site.local.coordinator.kill()
        await expect(page.locator(".note.warn")).to_contain_text("no answer comes")
        await expect(row).to_be_visible()
        site.local.start_coordinator()
        await expect(page.locator(".note.warn")).to_contain_text("Another coordinator took the lead")
        await expect(page.locator(".fresh")).to_contain_text("live")
        site.release(lease["lease_id"])
        await expect(row).to_be_hidden()
    finally:
        if not site.local.coordinator.running:
            site.local.start_coordinator()


async def test_while_a_coordinator_stands_still_the_dot_says_what_the_banner_says(visitor: Visitor) -> None:
    site = visitor.site
    page = await visitor.sign_in(site.admin_token)
    await expect(page.locator(".fresh")).to_contain_text("● live")
    os.kill(site.local.coordinator.pid, signal.SIGSTOP)
    try:
        await expect(page.locator(".note.warn")).to_contain_text("no answer comes")
        await expect(page.locator(".fresh")).to_contain_text("▲ not live since")
        await expect(page.locator(".note.warn")).to_contain_text(". What you see is from")
    finally:
        os.kill(site.local.coordinator.pid, signal.SIGCONT)
    await expect(page.locator(".note.warn")).to_be_hidden()
    await expect(page.locator(".fresh")).to_contain_text("● live")


async def test_loaded_again_while_nothing_answers_it_shows_what_was_seen_last(visitor: Visitor) -> None:
    site = visitor.site
    lease = site.ask(name="seen before")
    page = await visitor.sign_in(site.admin_token)
    await expect(page.get_by_role("link", name="seen before")).to_be_visible()
    os.kill(site.local.coordinator.pid, signal.SIGSTOP)
    try:
        await page.reload()
        await expect(page.get_by_role("link", name="seen before")).to_be_visible()
        await expect(page.locator(".note.warn")).to_contain_text(". What you see is from")
        await expect(page.locator(".fresh")).to_contain_text("▲ not live since")
        await page.reload()
        await expect(page.get_by_role("link", name="seen before")).to_be_visible()
        other = await visitor.tab("/")
        await expect(other.locator(".note.warn")).to_contain_text("no answer comes")
        await expect(other.get_by_role("link", name="seen before")).to_be_hidden()
    finally:
        os.kill(site.local.coordinator.pid, signal.SIGCONT)
    await expect(page.locator(".note.warn")).to_be_hidden()
    site.release(lease["lease_id"])
    await expect(page.get_by_role("link", name="seen before")).to_be_hidden()
    await page.get_by_role("button", name="log out").click()
    await expect(page.get_by_role("button", name="Sign in")).to_be_visible()
    assert await page.evaluate("sessionStorage.length") == 0


async def test_eight_tabs_share_one_stream(visitor: Visitor) -> None:
    site = visitor.site
    first = await visitor.sign_in(site.admin_token, "/leases?view=all")
    tabs = [first, *[await visitor.tab("/leases?view=all") for _ in range(7)]]
    for tab in tabs:
        await expect(tab.locator(".fresh")).to_contain_text("live")
    assert len(visitor.streams) == 1
    one = site.ask(name="seen by eight")
    for tab in tabs:
        await expect(tab.get_by_role("link", name="seen by eight")).to_be_visible()
    # The one that reads the stream goes: another takes over.
    await first.close()
    two = site.ask(name="seen by seven")
    for tab in tabs[1:]:
        await expect(tab.get_by_role("link", name="seen by seven")).to_be_visible()
    site.release(one["lease_id"], two["lease_id"])


async def test_who_is_logged_out_comes_back_to_the_same_place(visitor: Visitor) -> None:
    site = visitor.site
    page = await visitor.sign_in(site.let_in("ida", ttl_ms=4_000), "/leases?view=all&q=abc")
    await expect(page.get_by_role("searchbox")).to_have_value("abc")
    await expect(page.locator(".alone .note")).to_contain_text("session")
    await page.get_by_label("Token").fill(site.let_in("ida"))
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("searchbox")).to_have_value("abc")
    assert page.url.endswith("/leases?view=all&q=abc")
    # Logging out is logging out of all tabs, and the cookie counts no more.
    other = await visitor.tab("/queues")
    await expect(other.locator("main h1")).to_have_text("Queues and tenants")
    cookies = await visitor.context.cookies()
    assert all(cookie["httpOnly"] and cookie["sameSite"] == "Strict" for cookie in cookies)
    await page.get_by_role("button", name="log out").click()
    await expect(page.get_by_label("Token")).to_be_visible()
    await expect(other.get_by_label("Token")).to_be_visible()
    await visitor.context.add_cookies(
        [{"name": each["name"], "value": each["value"], "url": site.address} for each in cookies]
    )
    await visitor.go("/queues")
    await expect(page.get_by_label("Token")).to_be_visible()


async def test_a_one_time_code_signs_in_once_whoever_agrees_to_it(visitor: Visitor) -> None:
    with visitor.site.rest() as http:
        path = urlsplit(http.post("/session/codes").json()["url"])._replace(scheme="", netloc="").geturl()
    page = await visitor.go(path)
    await expect(page.get_by_role("main")).to_contain_text("signs this browser in as admin")
    assert "code" not in page.url
    await page.get_by_role("button", name="Sign in as admin").click()
    await expect(page.locator("main h1")).to_have_text("Overview")
    await page.get_by_role("button", name="log out").click()
    await expect(page.get_by_label("Token")).to_be_visible()
    await page.goto("about:blank")
    await visitor.go(path)
    await page.get_by_role("button", name="Sign in as admin").click()
    await expect(page.get_by_role("alert")).to_contain_text("has been used")


async def test_a_link_makes_nobody_its_sender_without_a_word(visitor: Visitor) -> None:
    mallory = visitor.site.let_in("mallory", scope="vision")
    with visitor.site.rest(mallory) as http:
        made = http.post("/session/codes").json()
    page = await visitor.sign_in(visitor.site.let_in("victim", scope="vision"), "/leases")
    for principal, said in (("victim", "somebody else's"), ("mallory", "")):
        await page.goto("about:blank")
        await visitor.go(f"/login#code={made['code']}&principal={principal}")
        await expect(page.get_by_role("main")).to_contain_text(f"signs this browser in as {principal}")
        assert (await page.evaluate("fetch('/api/v1/whoami').then(r => r.json())")).get("principal") == "victim"
        if said:  # what the link says of itself is not believed
            await page.get_by_role("button", name=f"Sign in as {principal}").click()
            await expect(page.get_by_role("alert")).to_contain_text(said)
    await page.get_by_role("button", name="Not me").click()
    await expect(page.locator(".who")).to_have_text("victim")


HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "\u05e9\u05dc\u05d5\u05dd (123) \u05e2\u05d5\u05dc\u05dd",
    "\U0001f680\U0001f469 a\u0300\u0301\u0302\u0303\u0304 \U0001f1fa\U0001f1f3",
    "W" * 100,
    "javascript:alert(1)",
    "exp[lr=0.1]",
    "train [/] eval [bold red]x[/]",
)


async def test_names_are_but_names(visitor: Visitor) -> None:
    site = visitor.site
    token = site.let_in("mal")
    leases = [site.ask(token, gpu="0.01,64Mi", name=name) for name in HOSTILE]
    page = await visitor.sign_in(token, "/leases")
    await page.set_viewport_size({"width": 390, "height": 844})
    for lease, name in zip(leases, HOSTILE, strict=True):
        await visitor.go("/leases")
        await expect(page.locator(f'bdi[title="{_css(name)}"]')).to_be_visible()
        await visitor.go(f"/lease?id={lease['lease_id']}")
        await expect(page.locator("h1 bdi")).to_have_text(name)
        assert await page.locator("main img").count() == 0
        assert await _overflow(page) <= 0
    site.release(*(lease["lease_id"] for lease in leases))


def _css(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


async def _overflow(page: Page) -> int:
    """How far the page is wider than its window, in pixels."""
    return int(await page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


async def test_by_keyboard_alone(visitor: Visitor) -> None:
    site = visitor.site
    page = await visitor.go("/ask")
    await _tab_to(page, "input[type=password]")
    await page.keyboard.type(site.admin_token)
    await page.keyboard.press("Enter")
    await page.get_by_role("navigation").wait_for(state="attached")
    await _tab_to(page, "input.big")
    await page.keyboard.press("Control+a")
    await page.keyboard.type("0.05,128Mi")
    await expect(page.locator(".verdict")).to_contain_text("Yes, now")
    await _tab_to(page, "button.primary")
    await page.keyboard.press("Enter")
    await page.wait_for_url(re.compile("/lease\\?id="))
    await expect(page.locator(".facts .state")).to_contain_text("active")
    await _tab_to(page, "main button.danger")
    await page.keyboard.press("Enter")
    for _ in range(20):  # as fast as fingers can: what has closed the last one must not close the next
        await expect(page.get_by_role("dialog")).to_be_visible()
        await page.keyboard.press("Escape")
        # A dialog that is hidden may be in the page for a moment longer.
        await expect(page.locator("main button.danger:not(dialog *)")).to_be_focused()
        await page.keyboard.press("Enter")
    await expect(page.get_by_role("dialog")).to_be_visible()  # before that a Tab goes on in the page behind it
    await _tab_to(page, "dialog[open] button.danger")
    await page.keyboard.press("Enter")
    await expect(page.locator(".note.bad")).to_contain_text("Ended: released")
    await _tab_to(page, "a[href='/fleet']")
    await page.keyboard.press("Enter")
    await expect(page.locator("main h1")).to_have_text("Fleet")
    await expect(page.locator("canvas")).to_be_visible()
    await _tab_to(page, "canvas")
    await expect(page.locator(".hint")).to_contain_text("node-1")
    await page.keyboard.press("ArrowRight")
    await expect(page.locator(".hint")).to_contain_text("node-2")
    await page.keyboard.press("Enter")
    await expect(page.locator("main h1")).to_have_text("node-2")


async def _tab_to(page: Page, selector: str) -> None:
    await expect(page.locator(selector).first).to_be_enabled()
    for _ in range(80):
        if await page.evaluate("wanted => document.activeElement.matches(wanted)", selector):
            return
        await page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {selector}")


async def test_a_drain_shows_its_victims_beforehand(visitor: Visitor) -> None:
    site = visitor.site
    with site.rest() as http:
        node_id = http.get("/nodes/node-2").json()["node_id"]
    lease = site.ask(name="in the way", node_ids=[node_id])
    with site.rest() as http:  # another test that failed may have left some, too
        here = len(http.get("/leases", params={"node_id": node_id}).json()["items"])
    page = await visitor.sign_in(site.admin_token, "/node?id=node-2")
    await page.get_by_role("button", name="Drain").click()
    dialog = page.get_by_role("dialog")
    await expect(dialog).to_contain_text(f"{here} lease{'s' * (here > 1)} here would be ended")
    await expect(dialog.get_by_role("link", name="in the way").first).to_be_visible()
    await dialog.get_by_label("Reason, for people").fill("new driver")
    await dialog.get_by_role("button", name="Drain").click()
    await expect(page.locator("main")).to_contain_text("new driver")
    await page.get_by_role("button", name="Open again").click()
    await page.get_by_role("dialog").get_by_role("button", name="Open again").click()
    await expect(page.get_by_role("button", name="Cordon")).to_be_visible()
    with site.rest() as http:
        assert http.get(f"/leases/{lease['lease_id']}").json()["state"] in {"ENDED", "RELEASING", "PREEMPTING"}


async def test_a_card_is_taken_out_and_comes_back(visitor: Visitor) -> None:
    page = await visitor.sign_in(visitor.site.admin_token, "/node?id=node-1")
    card = page.locator("article").first
    await card.get_by_role("button", name="Quarantine").click()
    await page.get_by_label("Reason, for people").fill("smells of smoke")
    await page.get_by_role("dialog").get_by_role("button", name="Quarantine").click()
    await card.get_by_role("link", name=re.compile("incident")).click()
    await expect(page.locator(".story")).to_contain_text("smells of smoke")
    await page.get_by_role("button", name="Return").click()
    await page.get_by_role("dialog").get_by_role("button", name="Return").click()
    await expect(page.locator(".facts")).to_contain_text(re.compile("resolved|probation"))


async def test_what_if_stands_side_by_side(visitor: Visitor) -> None:
    page = await visitor.sign_in(visitor.site.admin_token, "/what-if")
    await page.get_by_label("Requests, a line for each kind").fill("6 x 1")
    await page.get_by_role("button", name="Place 6 requests").click()
    table = page.get_by_role("region", name="outcomes")
    await expect(table).to_contain_text("4 of 6")
    await expect(table).to_contain_text("6 of 6")


async def test_a_browsers_clock_that_is_off_changes_no_times(visitor: Visitor) -> None:
    site = visitor.site
    lease = site.ask(gpu="0.01,64Mi", name="just now")
    await visitor.context.add_init_script("const right = Date.now; Date.now = () => right() + 600_000;")
    page = await visitor.sign_in(site.admin_token, f"/lease?id={lease['lease_id']}")
    await expect(page.locator(".facts").first).to_contain_text(re.compile(r"Asked\s*\d+\ss\sago"))
    await expect(page.locator(".stale")).to_have_count(0)
    site.release(lease["lease_id"])
