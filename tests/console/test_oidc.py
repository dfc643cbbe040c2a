"""A browser logs in at the pool's OpenID provider, a real one, and comes back."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from aliquot.client import AsyncPool
from aliquot.client.access import LoginOffer
from aliquot.console.api import oidc
from aliquot.console.app import make_app
from aliquot.console.settings import Settings
from tests.console.conftest import served
from tests.logins.test_logging_in import pool_with, provider

__all__ = ["provider"]


@contextlib.asynccontextmanager
async def console_with(issuer: str, folder: Path) -> AsyncIterator[str]:
    """The address of a console before a pool that has this provider."""
    async with pool_with(issuer, folder) as pool:
        app = make_app(Settings(), lambda token: AsyncPool(pool.address, token=token, timeout_s=5.0, agent_sockets=()))
        async with served(app, lifespan="on") as address:
            yield address


async def enters(http: httpx.AsyncClient, page: str, name: str) -> str:
    """What a person does at the provider. Returns where they are sent then."""
    answer = await http.post(page, data={"sub": name})
    assert answer.is_redirect, answer.text
    return answer.headers["Location"]


async def test_there_and_back(provider: str, tmp_path: Path) -> None:
    async with console_with(provider, tmp_path) as address, httpx.AsyncClient() as http, httpx.AsyncClient() as other:
        begun = await http.get(f"{address}/login/oidc", params={"back": "/leases/l-1"})
        page = begun.headers["Location"]
        assert page.startswith(provider)
        asked = parse_qs(urlsplit(page).query)
        assert asked["redirect_uri"] == [f"{address}/login/oidc/callback"]
        assert "SameSite=lax" in begun.headers["Set-Cookie"]
        back = await enters(http, page, "ann@example.com")
        assert (await other.get(back)).status_code == 401, "it is the answer to another browser's login"
        ended = await http.get(back)
        assert (ended.status_code, ended.headers["Location"]) == (303, "/leases/l-1")
        assert any("samesite=strict" in cookie.lower() for cookie in ended.headers.get_list("Set-Cookie"))
        who = (await http.get(f"{address}/api/v1/whoami")).json()
        assert (who["principal"], who["grants"][0]["scope"]) == ("ann@example.com", "vision")

        # A code from such a session is worth what the session is, whose roles pass to nobody.
        headers = {"X-Aliquot-Console": "1"}
        code = (await http.post(f"{address}/api/v1/session/codes", headers=headers)).json()["code"]
        opened = await other.post(
            f"{address}/api/v1/session", json={"code": code, "principal": who["principal"]}, headers=headers
        )
        assert opened.json()["grants"] == who["grants"]


async def test_who_has_no_rule_is_told_which_groups_were_seen(provider: str, tmp_path: Path) -> None:
    async with console_with(provider, tmp_path) as address, httpx.AsyncClient() as http:
        begun = await http.get(f"{address}/login/oidc")
        ended = await http.get(await enters(http, begun.headers["Location"], "eve@example.com"))
        assert ended.status_code == 401
        assert "groups seen in `team`: none" in ended.text
        assert (await http.get(f"{address}/api/v1/whoami")).status_code == 401


@pytest.mark.parametrize("back", ["//evil.example", "https://evil.example", "/\\evil.example", "x", "/a b"])
async def test_nobody_is_sent_elsewhere_afterwards(provider: str, tmp_path: Path, back: str) -> None:
    async with console_with(provider, tmp_path) as address, httpx.AsyncClient() as http:
        begun = await http.get(f"{address}/login/oidc", params={"back": back})
        ended = await http.get(await enters(http, begun.headers["Location"], "ann@example.com"))
    assert ended.headers["Location"] == "/"


async def test_what_is_no_answer_is_shown_as_text(provider: str, tmp_path: Path) -> None:
    async with console_with(provider, tmp_path) as address, httpx.AsyncClient() as http:
        begun = await http.get(f"{address}/login/oidc")
        state = parse_qs(urlsplit(begun.headers["Location"]).query)["state"][0]
        refused = {"state": state, "error": "<script>", "error_description": "no"}
        for query in ({}, {"state": "x", "code": "y"}, refused):
            answer = await http.get(f"{address}/login/oidc/callback", params=query)
            assert (answer.status_code, "<script>" in answer.text) == (401, False)
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


async def test_a_provider_is_asked_about_itself_once_a_minute(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_000.0]
    monkeypatch.setattr(oidc, "time", SimpleNamespace(monotonic=lambda: now[0]))
    known, offer = oidc.Providers(), LoginOffer(provider, "aliquot-cli", ("openid",), "")
    first = await known.of(offer)
    now[0] += 60
    assert await known.of(offer) is first
    now[0] += 1
    second = await known.of(offer)
    assert second is not first, "it may have moved its pages, or changed its keys"
    assert await known.of(offer) is second
    other = await known.of(replace(offer, client_id="another"))
    assert other.offer.client_id == "another"
