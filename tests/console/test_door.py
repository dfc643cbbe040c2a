"""What stands before everything else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from aliquot.common.errors import ConfigError
from aliquot.console.app import BODY_BYTES_MAX
from aliquot.console.settings import Settings, TlsSettings, parse_settings
from tests.console.conftest import Site, served


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "127.0.0.1.nip.io:7074"])
async def test_a_name_that_was_made_to_point_here_is_refused(site: Site, host: str) -> None:
    async with site.browse("admin") as http:
        refused = await http.get("/leases", headers={"Host": host})
    assert (refused.status_code, refused.json()["reason"]) == (421, "NAME_UNKNOWN")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:7074", "127.0.0.1:1", "[::1]:7074"])
async def test_its_own_names_are_let_in(site: Site, host: str) -> None:
    async with site.browse("admin") as http:
        assert (await http.get("/leases", headers={"Host": host})).status_code == 200


async def test_bodies_are_bounded_whether_they_say_their_length_or_not(site: Site) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(BODY_BYTES_MAX // 65_536 + 2):
            yield b" " * 65_536
            await asyncio.sleep(0)

    async with site.browse("admin") as http:
        said = await http.post("/leases:explain", content=b" " * (BODY_BYTES_MAX + 1))
        unsaid = await http.post("/leases:explain", content=chunks(), headers={"Content-Type": "application/json"})
    assert (said.status_code, unsaid.status_code) == (413, 413)


async def test_answers_keep_browsers_careful(site: Site) -> None:
    async with site.browse("admin") as http:
        headers = (await http.get("/leases")).headers
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Cache-Control"] == "no-store"
    assert "Access-Control-Allow-Origin" not in headers


async def test_a_word_that_is_no_token(site: Site) -> None:
    async with site.browse() as http:
        for word in ("Bearer ψ".encode(), b"Bearer a b", b"Basic abc", b"Bearer " + b"x" * 5000):
            refused = await http.get("/leases", headers=httpx.Headers([(b"authorization", word)]))
            assert refused.status_code == 401, word


async def test_more_callers_than_connections_are_kept(site: Site) -> None:
    names = ["viewer", "user", "manager", "viewer of all", "operator", "admin"]
    for name in [*names, *names]:
        async with site.browse(name) as http:
            assert (await http.get("/whoami")).json()["principal"] == name.replace(" ", "-")


async def test_over_a_real_socket(site: Site) -> None:
    async with served(site.app) as address, httpx.AsyncClient() as http:
        assert (await http.get(f"{address}/healthz")).status_code == 200


def test_nothing_is_served_in_the_clear_to_other_machines() -> None:
    with pytest.raises(ConfigError, match="without TLS"):
        Settings(host="0.0.0.0").check()
    with pytest.raises(ConfigError, match="certificate and its key"):
        parse_settings(["--tls-cert", "x.pem"], "1", env={})
    assert TlsSettings() == parse_settings([], "1", env={}).tls


def test_names_are_settings() -> None:
    settings = parse_settings(["--names", "gpus.example.org, gpus"], "1", env={})
    assert {"gpus.example.org", "gpus", "localhost"} <= settings.allowed_names
