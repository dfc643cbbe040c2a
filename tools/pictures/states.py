"""What is seldom seen, to be looked at: a pool that is empty, full, silent, or as good as unknown to who looks."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, expect

from aliquot.client import DeviceDeclaration, Lease, NodeDeclaration, Request
from tests.client.real_pool import real_pool
from tests.page.conftest import Site, console_of
from tools.pictures.camera import PHONE, WIDE, somebody, take

NARROWER = (1200, 900)
LONG = "a-name-that-somebody-made-up-by-a-script-and-that-does-not-end-before-the-hundredth-character-of-it-x"
MANY_NODES, MANY_EACH, CROWD_NODES = 40, 8, 10_000


def every_state(out: Path, only: str) -> None:
    """Pictures of each, of those whose name has `only` in it."""
    for state in (nobody, empty, ordinary, full, silent, many):
        if only in state.__name__:
            state(out)


def nobody(out: Path) -> None:
    """Logged out; and somebody who may see nothing."""
    with _site(1, 2) as site:
        with somebody(site) as page:
            _look(page, site, "/", out / "logged-out.png", every_size=True)
        with somebody(site, site.let_in("stranger", scope="elsewhere")) as page:
            for name, path in (("overview", "/"), ("leases", "/leases"), ("access", "/access"), ("queues", "/queues")):
                _look(page, site, path, out / f"no-rights-{name}.png")


def empty(out: Path) -> None:
    """A coordinator, and nothing else yet."""
    with _site(0, 1) as site, somebody(site, site.admin_token) as page:
        for name, path in (
            ("overview", "/"),
            ("ask", "/ask"),
            ("fleet", "/fleet"),
            ("use", "/use"),
            ("queues", "/queues"),
        ):
            _look(page, site, path, out / f"empty-{name}.png", every_size=name == "overview")


def ordinary(out: Path) -> None:
    """Nothing waits; then names that are too long."""
    with _site(2, 2) as site:
        site.ask(name="train", gpu="0.5,8Gi")
        with somebody(site, site.admin_token) as page:
            _look(page, site, "/", out / "nothing-waits.png", every_size=True)
        lease = site.ask(name=LONG, gpu="0.25,4Gi", tenant=LONG[:60])
        with somebody(site, site.let_in(LONG[:60], role="ADMIN")) as page:
            for name, path in (("overview", "/"), ("leases", "/leases?view=all"), ("queues", "/queues")):
                _look(page, site, path, out / f"long-{name}.png", every_size=True)
            _look(page, site, f"/lease?id={lease['lease_id']}", out / "long-lease.png", every_size=True)


def full(out: Path) -> None:
    """Nothing is free, much waits."""
    with _site(2, 2) as site:
        for number in range(4):
            site.ask(name=f"whole-{number}", gpu="1")
        for number in range(9):
            site.ask(name=f"later-{number}", gpu="1", tenant="vision")
        with somebody(site, site.admin_token) as page:
            for name, path in (("overview", "/"), ("ask", "/ask?gpu=1"), ("fleet", "/fleet"), ("queues", "/queues")):
                _look(page, site, path, out / f"full-{name}.png", every_size=name == "overview")


def silent(out: Path) -> None:
    """A node is lost; then the coordinator stands still, and the page is loaded again meanwhile."""
    with _site(2, 2) as site:
        site.ask(name="train", gpu="2x1")
        with somebody(site, site.admin_token) as page:
            _look(page, site, "/", out / "before-silence.png")
            site.local.nodes[0].agent.kill()
            expect(page.locator("main")).to_contain_text("lost", timeout=120_000)
            _look(page, site, "/", out / "lost-overview.png", every_size=True)
            _look(page, site, "/fleet", out / "lost-fleet.png")
            page.goto(site.address)
            take(page, out / "before-freeze.png")
            os.kill(site.local.coordinator.pid, signal.SIGSTOP)
            try:
                page.locator(".note.warn").wait_for()
                page.wait_for_timeout(5_000)
                take(page, out / "frozen.png")
                take(page, out / "frozen-dark.png", scheme="dark")
                take(page, out / "frozen-phone.png", PHONE)
                page.reload()
                page.locator(".note.warn").wait_for()
                page.wait_for_timeout(5_000)
                page.screenshot(path=out / "frozen-reload.png")
            finally:
                os.kill(site.local.coordinator.pid, signal.SIGCONT)
            expect(page.locator(".fresh")).to_contain_text("live")
            page.wait_for_timeout(3_000)
            take(page, out / "thawed.png")


def many(out: Path) -> None:
    """More cards than are drawn large."""
    with _site(1, 2) as site:
        cards = [DeviceDeclaration("A100-80")] * MANY_EACH
        with site.local.connect() as pool:
            pool.declare([NodeDeclaration(f"gpu-{n:03}", devices=cards, agentless=True) for n in range(MANY_NODES)])
            for number in range(25):
                pool.allocate("4x0.5(A100-80)", name=f"part-{number}", detached=True, wait_s=0)
        with somebody(site, site.admin_token) as page:
            _look(page, site, "/fleet", out / "many-fleet.png", every_size=True)
            _look(page, site, "/", out / "many-overview.png")


@contextmanager
def _site(nodes: int, gpus: int) -> Iterator[Site]:
    with real_pool(nodes, gpus) as local, console_of(local.address) as address:
        assert local.token_file is not None
        yield Site(address, local.token_file.read_text().strip(), local)


def _look(page: Page, site: Site, path: str, file: Path, *, every_size: bool = False) -> None:
    page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})
    page.goto(site.address + path)
    take(page, file)
    if every_size:
        take(page, file.with_stem(f"{file.stem}-dark"), scheme="dark")
        take(page, file.with_stem(f"{file.stem}-1200"), NARROWER)
        take(page, file.with_stem(f"{file.stem}-phone"), PHONE)


def crowd(file: Path) -> None:
    """80,000 devices in one picture, most of them leased."""
    with _site(0, 1) as site:
        with site.local.connect() as pool:
            for first in range(0, CROWD_NODES, 200):
                cards = [DeviceDeclaration("H100-80" if first % 1000 else "A100-80")] * MANY_EACH
                numbers = range(first, first + 200)
                pool.declare([NodeDeclaration(f"gpu-{n:05}", devices=cards, agentless=True) for n in numbers])
            chance = random.Random(7)  # noqa: S311 - any choice will do, the same each time
            for _ in range(40):
                wanted = chance.choices(("8x1", "4x1", "1", "0.5", "0.3", "0.1"), k=1000)
                asked = pool.allocate_batch([Request(gpu, detached=True) for gpu in wanted])
                ended = [each.lease_id for each in asked if isinstance(each, Lease) and chance.random() < 0.4]
                pool.release_batch(ended)
        with somebody(site, site.admin_token) as page:
            page.goto(site.address + "/fleet")
            take(page, file, scheme="dark")
