"""`aliquot login` at a provider, as people do it: a real provider in a process of its own, and a device's code."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aliquot.cli import _oidc
from aliquot.cli._exits import Exit
from aliquot.cli.main import main
from aliquot.client import NotLoggedIn
from aliquot.client.access import LoginOffer
from aliquot.client.credentials import CredentialsFile
from aliquot.common.urls import HttpError
from aliquot.coordinator.settings.arguments import parse_settings
from aliquot.v1 import access_pb2
from tests.access.people import Person
from tests.coordinator.pool import Pool, running
from tests.failover.cluster import free_address
from tests.identity import ADMIN_TOKEN, TOKEN_FILE
from tests.logins.issuer import CLIENT, Issuer, issuer

NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
CONFIG = """
[coordinator]
listen = "127.0.0.1:0"
journal = "memory:"
metrics_port = -1
[coordinator.access]
admin_token_file = "{token_file}"
dir = "{folder}"
[coordinator.access.oidc]
issuer = "{issuer}"
client_id = "{client}"
client_secret = "known-to-all"
groups_claim = "team"
[[coordinator.access.oidc.rules]]
user = "ann@example.com"
role = "user"
tenant = "vision"
"""


@contextlib.asynccontextmanager
async def pool_with(issuer_url: str, folder: Path) -> AsyncIterator[Pool]:
    file = folder / "coordinator.toml"
    file.write_text(CONFIG.format(token_file=TOKEN_FILE, folder=folder / "access", issuer=issuer_url, client=CLIENT))
    async with running(parse_settings(["--config", str(file)], "test")) as pool:
        yield pool


@pytest.fixture
async def provider() -> AsyncIterator[str]:
    """`oidc-provider-mock`, which serves."""
    port = free_address().rpartition(":")[2]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "oidc_provider_mock", "--port", port,
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    url = f"http://127.0.0.1:{port}"
    try:
        async with asyncio.timeout(60):
            while True:
                try:
                    await asyncio.to_thread(lambda: NO_PROXY.open(f"{url}/.well-known/openid-configuration").close())
                    break
                except OSError:
                    assert process.returncode is None
                    await asyncio.sleep(0.05)
        yield url
    finally:
        process.terminate()
        await process.wait()


@pytest.fixture
def idp() -> Iterator[Issuer]:
    with issuer() as made:
        yield made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CredentialsFile:
    """A user without any token."""
    for name in [name for name in os.environ if name.startswith("ALIQUOT_")]:
        if not name.startswith("ALIQUOT_COORDINATOR_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("SSH_CONNECTION", "1 2 3 4")  # so no browser opens
    return CredentialsFile.of(os.environ)


def person_enters(url: str, name: str) -> str:
    """What a browser does: show the page, send its form, and follow the provider back. Returns the last page."""
    form = urllib.parse.urlencode({"sub": name}).encode()
    with NO_PROXY.open(urllib.request.Request(url, form)) as answer:
        return str(answer.read().decode())


def by_a_person(monkeypatch: pytest.MonkeyPatch, name: str, pages: list[str]) -> None:
    """Whoever reads which page to open, opens it."""

    def note(self: Any, text: Any) -> None:
        if (found := re.search(r"open (http\S+)", str(text))) and "code_challenge" in str(text):
            pages.append(found[1])
            pages.append(person_enters(found[1], name))

    monkeypatch.setattr("aliquot.cli._out.Out.note", note)


async def run(*arguments: str) -> int:
    return await asyncio.to_thread(main, arguments)


async def test_in_a_browser_at_a_real_provider(
    provider: str, home: CredentialsFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    pages: list[str] = []
    by_a_person(monkeypatch, "ann@example.com", pages)
    async with pool_with(provider, tmp_path) as pool:
        assert await run("login", "-c", pool.address) == Exit.OK, capsys.readouterr().err
        asked = urllib.parse.parse_qs(urllib.parse.urlsplit(pages[0]).query)
        assert asked["code_challenge_method"] == ["S256"]
        assert asked["redirect_uri"][0].startswith("http://127.0.0.1:")
        assert "You are logged in" in pages[1]
        kept = home.current()
        assert kept is not None
        assert kept.issuer == provider
        assert "ann@example.com" in capsys.readouterr().out
        assert await run("whoami") == Exit.OK
        assert "may: user on vision" in capsys.readouterr().out

        admin = Person("admin", ADMIN_TOKEN, pool.channel)
        await admin.access.RevokeTokens(access_pb2.RevokeTokensRequest(principal="ann@example.com"))
        assert await run("ls") == Exit.NOT_LOGGED_IN
        said = capsys.readouterr().err
        assert "aliquot login" in said
        assert provider in said
        assert kept.token not in said

        by_a_person(monkeypatch, "eve@example.com", pages)
        assert await run("login", "--oidc", "-c", pool.address) == Exit.NOT_PERMITTED
        assert "groups seen in `team`: none" in capsys.readouterr().err
        assert home.current() == kept  # what does not work replaces nothing


async def test_by_a_code_on_another_device(
    idp: Issuer, home: CredentialsFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    idp.pending = 2
    monkeypatch.setattr(time, "sleep", lambda _: None)
    async with pool_with(idp.url, tmp_path) as pool:
        assert await run("login", "--device", "-c", pool.address) == Exit.OK
        assert "enter the code ABCD-EFGH" in capsys.readouterr().err
        idp.status = 500
        assert await run("login", "--device", "-c", pool.address) != Exit.OK
    assert idp.asked.count("/token") == 3


async def test_a_pool_without_a_provider_asks_for_a_string(home: CredentialsFile, capsys: Any) -> None:
    async with running() as pool:
        assert await run("login", "-c", pool.address) == Exit.USAGE
        assert "has no OpenID provider" in capsys.readouterr().err
    assert await run("login", "-c", pool.address) == Exit.USAGE
    assert await run("login", "--oidc", "-c", pool.address, "--timeout", "1s") == Exit.UNAVAILABLE
    assert await run("login", "alq1.x", "--device") == Exit.USAGE


def offer_of(idp: Issuer) -> LoginOffer:
    return LoginOffer(idp.url, CLIENT, ("openid",), "")


def with_query(url: str, **fields: str) -> str:
    asked = urllib.parse.parse_qs(urllib.parse.urlsplit(url).query)
    return f"{asked['redirect_uri'][0]}?{urllib.parse.urlencode({'state': asked['state'][0]} | fields)}"


def status_of(url: str) -> int:
    try:
        with NO_PROXY.open(url) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_only_the_answer_to_this_login_is_taken(idp: Issuer) -> None:
    seen: list[int] = []

    def say(text: str) -> None:
        url = text.removeprefix("open ")
        seen.append(status_of(with_query(url, code="forged", state="guessed")))
        seen.append(status_of(with_query(url, code="mixed-up", iss="https://other.example")))
        seen.append(status_of(with_query(url, code="x").replace("/callback", "/elsewhere")))
        seen.append(status_of(with_query(url, error="access_denied", error_description="no\x1b[2J")))
        seen.append(status_of(with_query(url, code="too-late")))

    with pytest.raises(NotLoggedIn, match="access_denied") as refused:
        _oidc.in_browser(offer_of(idp), say)
    assert seen == [400, 400, 400, 200, 400]
    assert "\x1b" not in str(refused.value)
    assert "/token" not in idp.asked


def test_nobody_comes(idp: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_oidc, "PATIENCE_S", 0.01)
    with pytest.raises(NotLoggedIn, match="nobody logged in"):
        _oidc.in_browser(offer_of(idp), lambda _: None)


def test_a_code_that_is_refused_or_never_entered(idp: Issuer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    idp.expires_in = 0
    with pytest.raises(NotLoggedIn, match="in time"):
        _oidc.by_device(offer_of(idp), lambda _: None)
    idp.expires_in = 600
    said: Callable[[str, dict[str, str]], Any] = idp.answer
    monkeypatch.setattr(
        idp, "answer", lambda path, form: (400, {"error": "access_denied"}) if path == "/token" else said(path, form)
    )
    with pytest.raises(NotLoggedIn, match="access_denied"):
        _oidc.by_device(offer_of(idp), lambda _: None)


@pytest.mark.parametrize("url", ["http://login.example.com", "ftp://x", "https://u:p@x", "nonsense", "https://"])
def test_secrets_are_not_sent_to_what_is_not_safe(url: str) -> None:
    with pytest.raises(HttpError):
        _oidc.in_browser(LoginOffer(url, CLIENT, ("openid",), ""), lambda _: None)


def test_a_provider_that_is_none(idp: Issuer) -> None:
    idp.named = "https://other.example"
    with pytest.raises(HttpError, match="no OpenID provider"):
        _oidc.in_browser(offer_of(idp), lambda _: None)
