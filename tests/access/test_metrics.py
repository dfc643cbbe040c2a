"""Metrics are for who shows a token, wherever other machines could ask: and over TLS where there is a pair."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from aliquot.agent.metrics.endpoint import Metrics
from aliquot.common.clock import SystemClock
from aliquot.common.errors import ConfigError
from aliquot.common.scraping import TokenFile
from aliquot.common.tls import ServerTls
from aliquot.coordinator.agents.authority import Authority
from aliquot.v1 import access_pb2
from tests.access.people import introduce
from tests.coordinator.pool import running, settings_for

EVERYWHERE = "0.0.0.0"
SCRAPER = "a-token-of-prometheus-alone"


def scrape(port: int, token: str = "", path: str = "/metrics", ca: str = "") -> tuple[int, str]:
    """The status, and what is said."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    scheme, context = ("https", ssl.create_default_context(cadata=ca)) if ca else ("http", None)
    request = urllib.request.Request(f"{scheme}://localhost:{port}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20, context=context) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "scraper"
    file.write_text(SCRAPER + "\n")
    return file


def pair_of(authority: Authority, folder: Path) -> ServerTls:
    made = authority.serve_as(["localhost"], SystemClock(0).now_ms())
    (folder / "cert.pem").write_bytes(made.chain_pem)
    (folder / "key.pem").write_bytes(made.key_pem)
    return ServerTls(folder / "cert.pem", folder / "key.pem")


async def test_a_coordinator_tells_who_has_a_token_of_a_role_that_may(token_file: Path) -> None:
    settings = settings_for(metrics_port=0, metrics_host=EVERYWHERE, metrics_token_file=token_file)
    async with running(settings) as pool:
        people = await introduce(pool.channel)
        port = int(pool.coordinator.metrics_address.rpartition(":")[2])

        async def status(token: str = "", path: str = "/metrics") -> int:
            return (await asyncio.to_thread(scrape, port, token, path))[0]

        assert await status(path="/healthz") == await status(path="/readyz") == 200
        assert await status() == await status("nobody's") == 401
        for name, expected in (("metrics", 200), ("operator", 200), ("viewer of all", 401), ("user", 401)):
            assert await status(people[name].token) == expected, name
        assert await status(SCRAPER) == 200
        await people.admin.access.RevokeTokens(access_pb2.RevokeTokensRequest(principal="metrics"))
        assert await status(people["metrics"].token) == 401


async def test_on_loopback_everybody_may_ask_unless_a_token_is_set(token_file: Path) -> None:
    for file, expected in ((None, 200), (token_file, 401)):
        async with running(settings_for(metrics_port=0, metrics_token_file=file)) as pool:
            port = int(pool.coordinator.metrics_address.rpartition(":")[2])
            assert (await asyncio.to_thread(scrape, port))[0] == expected


@pytest.fixture
def agents() -> Iterator[Metrics]:
    metrics = Metrics()
    yield metrics
    metrics.close()


def test_an_agent_serves_nobody_off_loopback_without_a_token(agents: Metrics) -> None:
    with pytest.raises(ConfigError, match="to everybody") as refused:
        agents.serve(EVERYWHERE, 0)
    assert "metrics_token_file" in refused.value.hint


def test_an_agent_with_a_certificate_speaks_tls_and_follows_its_files(
    agents: Metrics, token_file: Path, tmp_path: Path
) -> None:
    first, second = Authority(bytes(32)), Authority(bytes(31) + b"1")
    port = agents.serve(EVERYWHERE, 0, token_file, pair_of(first, tmp_path))
    status, said = scrape(port, SCRAPER, ca=first.pem.decode())
    assert (status, "aliquot_agent_poll_seconds" in said) == (200, True)
    assert scrape(port, "another", ca=first.pem.decode())[0] == 401
    pair_of(second, tmp_path)
    assert scrape(port, SCRAPER, ca=second.pem.decode())[0] == 200
    (tmp_path / "key.pem").write_text("no key")
    assert scrape(port, SCRAPER, ca=second.pem.decode())[0] == 200, "the last good pair stays"


def test_a_file_of_tokens_may_hold_their_hashes_and_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "scrapers"
    file.write_text(f"sha256:{hashlib.sha256(SCRAPER.encode()).hexdigest()}\nthe-next-one\n")
    allowed = TokenFile(file)
    assert allowed(SCRAPER)
    assert allowed("the-next-one")
    assert not allowed("")
    assert not allowed(hashlib.sha256(SCRAPER.encode()).hexdigest())
    new = file.with_name("new")
    new.write_text("another\n")
    new.replace(file)
    assert (allowed("another"), allowed(SCRAPER)) == (True, False)
    file.unlink()
    assert not allowed("another")
    for text in ("", "sha256:00", "two words\x00"):
        file.write_text(text)
        with pytest.raises(ConfigError):
            TokenFile(file)
