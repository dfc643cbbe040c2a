"""The port of metrics: who is slow, or comes in numbers, takes it from nobody."""

from __future__ import annotations

import contextlib
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.common import scrape_http
from aliquot.common.scraping import Answer, Page, ScrapeServer


@pytest.fixture
def server() -> Iterator[ScrapeServer]:
    found = ScrapeServer(
        "127.0.0.1", 0, lambda _: Page(b"x 1\n", "text/plain"), probes={"/healthz": lambda: Answer(200, "ok")}
    )
    try:
        yield found
    finally:
        found.close()


def answered(server: ScrapeServer) -> bool:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=60) as answer:
        return bool(answer.read() == b"x 1\n")


def test_one_that_trickles_is_ended(server: ScrapeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape_http, "REQUEST_S", 0.2)
    with socket.create_connection(("127.0.0.1", server.port)) as slow:
        slow.settimeout(0.05)
        ended = False
        with contextlib.suppress(ConnectionError):
            while not ended:  # a byte now and then, as long as it is listened to
                slow.send(b"G")
                with contextlib.suppress(TimeoutError):
                    ended = slow.recv(1) == b""
    assert answered(server)


def test_threads_are_bounded(server: ScrapeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape_http, "CONNECTIONS_MAX", 2)
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(2)]
        third = stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
        third.settimeout(60)
        with contextlib.suppress(ConnectionError):
            assert third.recv(1) == b""
        for each in held:
            each.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert each.makefile("rb").read().endswith(b"ok\n")
    assert answered(server)


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="needs IPv6")
def test_it_listens_at_an_address_of_six() -> None:
    found = ScrapeServer("::1", 0, lambda _: Page(b"x 1\n", "text/plain"), probes={})
    try:
        with urllib.request.urlopen(f"http://[::1]:{found.port}/metrics", timeout=60) as answer:
            assert answer.read() == b"x 1\n"
    finally:
        found.close()
