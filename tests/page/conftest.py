"""The page in a real browser, against a pool as `aliquot up` starts it: all parts are processes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, Request, async_playwright

from aliquot.cli.localpool import LocalPool
from aliquot.console.page import FOLDER
from tests.client.real_pool import real_pool

PROGRAM = [sys.executable, "-c", "import sys; from aliquot.console.main import main; sys.exit(main())"]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
AXE = Path("console/page/node_modules/axe-core/axe.min.js").absolute()
LOOKS = '[coordinator]\nagents = {use_looked_at_every = "2s", idle_window = "3s"}\n'
"""What does nothing is said to be idle soon; nothing follows from it but words, and that after an hour."""
TIMEOUT_MS = 60_000
"""How long anything may take to appear: long, because tests assert what appears and not when."""


@dataclass(frozen=True, slots=True)
class Site:
    """A pool and its console."""

    address: str
    admin_token: str
    pool: LocalPool | None = None

    @property
    def local(self) -> LocalPool:
        """Its processes, of a pool of this machine."""
        assert self.pool is not None
        return self.pool

    def rest(self, token: str = "") -> httpx.Client:
        """Its API, for an administrator or somebody else."""
        headers = {"Authorization": f"Bearer {token or self.admin_token}"}
        return httpx.Client(base_url=f"{self.address}/api/v1", headers=headers, timeout=30)

    def let_in(self, name: str, role: str = "USER", scope: str = "", ttl_ms: int = 0) -> str:
        """A token for somebody."""
        body = {"principal": name, "grants": [{"role": role, "scope": scope}], "ttl_ms": ttl_ms}
        with self.rest() as http:
            answer = http.post("/tokens", json=body)
            assert answer.status_code == 201, answer.text
            return str(answer.json()["token"])

    def ask(self, token: str = "", gpu: str = "0.1,256Mi", **fields: Any) -> dict[str, Any]:
        """A new lease."""
        body = {"request": {"gpu": gpu, "detached": True, **fields}, "until": "QUEUED"}
        with self.rest(token) as http:
            answer = http.post("/leases", json=body)
            assert answer.status_code == 201, answer.text
            lease: dict[str, Any] = answer.json()
            return lease

    def release(self, *lease_ids: str) -> None:
        """End leases."""
        with self.rest() as http:
            for lease_id in lease_ids:
                http.post(f"/leases/{lease_id}:release").raise_for_status()


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    """Two nodes of two simulated A100-40 each."""
    with real_pool(coordinator=LOOKS) as pool, console_of(pool.address) as address:
        assert pool.token_file is not None
        yield Site(address, pool.token_file.read_text().strip(), pool)


@contextlib.contextmanager
def console_of(coordinators: str) -> Iterator[str]:
    """A console for these, as a process: its address."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ALIQUOT_")}
    command = [*PROGRAM, "--port", "0", "--metrics-port=-1", "--coordinator", coordinators]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as console:
        try:
            assert console.stdout is not None
            word, _, document = console.stdout.readline().partition(" ")
            assert word == "ready"
            yield str(json.loads(document)["address"])
        finally:
            console.terminate()
            console.wait(30)


@dataclass
class Visitor:
    """Somebody's browser, and what it did that it should not."""

    site: Site
    context: BrowserContext
    page: Page
    faults: list[str] = field(default_factory=list)
    streams: list[str] = field(default_factory=list)
    """Streams of events that its tabs opened."""

    async def go(self, path: str, page: Page | None = None) -> Page:
        """Open an address of the page."""
        page = page or self.page
        await page.goto(self.site.address + path)
        return page

    async def tab(self, path: str) -> Page:
        """Another tab of the same browser."""
        return await self.go(path, await self.context.new_page())

    async def sign_in(self, token: str, path: str = "/") -> Page:
        """With a token, at an address: by the call that the page makes, so that each test loads one page less."""
        address = f"{self.site.address}/api/v1/session"
        answer = await self.context.request.post(address, data={"token": token}, headers={"X-Aliquot-Console": "1"})
        assert answer.status == 201, await answer.text()
        page = await self.go(path)
        await page.get_by_role("navigation").wait_for(state="attached")
        return page

    def watch(self, page: Page) -> None:
        """Note what it does."""
        page.set_default_timeout(TIMEOUT_MS)
        page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        page.on("dialog", lambda dialog: self.faults.append(f"dialog: {dialog.message}"))
        page.on("console", self._told)
        page.on("request", self._asked)

    def _told(self, message: ConsoleMessage) -> None:
        # What was refused is told, too; that is what some tests are about.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.faults.append(f"console: {message.text}")

    def _asked(self, request: Request) -> None:
        host = urlsplit(request.url).hostname
        if host not in {"127.0.0.1", "localhost"}:
            self.faults.append(f"off loopback: {request.url}")
        if "/events" in request.url:
            self.streams.append(request.url)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> AsyncIterator[Browser]:
    """Chromium, without a screen."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    if not (FOLDER / "index.html").is_file() or not AXE.is_file():
        pytest.skip("needs the built page: make page")
    async with async_playwright() as playwright:
        # Its own sandbox can't be had by root, nor in most containers.
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="session")
async def visitor(browser: Browser, site: Site) -> AsyncIterator[Visitor]:
    """Somebody at the site of all tests."""
    async with visiting(browser, site) as visitor:
        yield visitor


@contextlib.asynccontextmanager
async def visiting(browser: Browser, site: Site, locale: str = "en-US") -> AsyncIterator[Visitor]:
    """A fresh browser profile, of somebody who reads that language. At the end nothing may have gone wrong in it: no
    error, no violation of the policy, no request to another machine.
    """
    context = await browser.new_context(viewport={"width": 1280, "height": 900}, locale=locale)
    page = await context.new_page()
    visitor = Visitor(site, context, page)
    visitor.watch(page)
    context.on("page", visitor.watch)
    yield visitor
    await context.close()
    assert not visitor.faults
