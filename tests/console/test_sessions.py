"""Browsers: how they log in and out, and what a page of somebody else's can't do in their name."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from fastapi import Response

from aliquot.client import Overloaded
from aliquot.common.errors import ConfigError
from aliquot.console.codes import CODE_S, CODES_EACH, CODES_MAX, Codes
from aliquot.console.origin import Origin
from aliquot.console.settings import Settings, parse_settings
from tests.console.conftest import Site, following, served

OURS = {"X-Aliquot-Console": "1"}


async def log_in(http: httpx.AsyncClient, token: str) -> httpx.Response:
    answer = await http.post("/session", json={"token": token}, headers=OURS)
    assert answer.status_code == 201, answer.text
    return answer


async def test_a_browser_logs_in_works_and_logs_out(site: Site) -> None:
    async with site.browse() as http:
        answer = await log_in(http, site.people["user"].token)
        assert answer.json()["principal"] == "user"
        cookie = answer.headers["Set-Cookie"]
        assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
        assert (await http.get("/whoami")).json()["principal"] == "user"
        asked = {"request": {"gpu": "0.25", "tenant": "vision", "detached": True}}
        assert (await http.post("/leases", json=asked, headers=OURS)).status_code == 201
        ended = await http.delete("/session", headers=OURS)
        assert (ended.status_code, dict(http.cookies)) == (204, {})
        refused = await http.get("/whoami")
    assert (refused.status_code, refused.json()["login"]) == (401, "/login")


async def test_what_is_pasted_is_not_what_is_kept(site: Site) -> None:
    async with site.browse() as http:
        await log_in(http, site.people["user"].token)
        (kept,) = http.cookies.values()
        assert kept != site.people["user"].token
        await http.delete("/session", headers=OURS)
    async with site.browse("user") as program:
        assert (await program.get("/whoami")).status_code == 200


async def test_a_cookie_that_was_stolen_opens_nothing_after_the_logout(site: Site) -> None:
    async with site.browse() as http, site.browse() as thief:
        await log_in(http, site.people["user"].token)
        thief.cookies.update(http.cookies)
        assert (await thief.get("/leases")).status_code == 200
        async with served(site.app) as address:
            cookie = dict(http.cookies)
            port = address.rpartition(":")[2]
            async with following(address, headers={"Cookie": f"aliquot-{port}={cookie['aliquot-80']}"}) as stream:
                await http.delete("/session", headers=OURS)
                kind, _, data = await stream.next()
        assert (kind, data["reason"]) == ("closed", "TOKEN_REVOKED")
        refused = await thief.get("/leases")
        assert (refused.status_code, refused.json()["reason"]) == (401, "TOKEN_UNKNOWN")
        assert not dict(thief.cookies), "a browser whose session is over is told to forget it"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {**OURS, "Origin": "https://evil.example"},
        {**OURS, "Origin": "http://localhost:3000"},
        {**OURS, "Origin": "null"},
        {**OURS, "Sec-Fetch-Site": "cross-site"},
        {**OURS, "Sec-Fetch-Site": "same-site"},
    ],
)
async def test_a_page_of_somebody_elses_does_nothing_in_a_browsers_name(site: Site, headers: dict[str, str]) -> None:
    async with site.browse() as http:
        await log_in(http, site.people["operator"].token)
        refused = await http.post("/nodes/n1:cordon", headers=headers)
        assert (refused.status_code, refused.json()["reason"]) == (403, "CROSS_SITE")
        logged_in = await http.post("/session", json={"token": site.people["admin"].token}, headers=headers)
        assert logged_in.status_code == 403 or headers.get("Sec-Fetch-Site")
        allowed = {**OURS, "Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
        assert (await http.post("/nodes/n1:cordon", headers=allowed)).status_code == 200


async def test_what_a_page_of_somebody_elses_reads_is_refused_too(site: Site) -> None:
    async with site.browse() as http:
        await log_in(http, site.people["user"].token)
        assert (await http.get("/leases", headers={"Sec-Fetch-Site": "cross-site"})).status_code == 403


async def test_a_one_time_code_lets_one_browser_in_once(site: Site) -> None:
    async with site.browse("user") as program, site.browse() as http, site.browse() as second:
        made = (await program.post("/session/codes")).json()
        assert made["url"] == f"http://localhost/login#code={made['code']}&principal=user"
        opening = {"code": made["code"], "principal": "user"}
        answer = await http.post("/session", json=opening, headers=OURS)
        assert answer.json()["principal"] == "user"
        again = await second.post("/session", json=opening, headers=OURS)
        assert (again.status_code, again.json()["hint"]) == (401, "`aliquot console` makes another")


async def test_a_code_lets_nobody_in_as_somebody_they_have_not_agreed_to_be(site: Site) -> None:
    for principal in ("", "admin"):
        async with site.browse("user") as program, site.browse() as http:
            code = (await program.post("/session/codes")).json()["code"]
            refused = await http.post("/session", json={"code": code, "principal": principal}, headers=OURS)
            assert (refused.status_code, dict(http.cookies)) == (401, {})


async def test_strangers_make_no_codes(site: Site) -> None:
    async with site.browse() as http:
        headers = {"Authorization": "Bearer alq_" + "0" * 12 + "_" + "0" * 64}
        assert (await http.post("/session/codes", headers=headers)).status_code == 401


def test_codes_are_few_of_each_and_short_lived() -> None:
    now = [0.0]
    codes = Codes(lambda: now[0])
    others = codes.make("other", "other")
    made = [codes.make(str(number), "mallory") for number in range(CODES_EACH + 257)]
    assert codes.take(others, "other") == "other", "nobody's codes push out those of others"
    assert (codes.take(made[256], "mallory"), codes.take(made[257], "mallory")) == ("", "257")
    now[0] = CODE_S
    assert not codes.take(made[258], "mallory")


def test_codes_of_all_are_bounded_and_make_room_as_they_end() -> None:
    now = [0.0]
    codes = Codes(lambda: now[0])
    first = codes.make("t", "0")
    for number in range(1, CODES_MAX):
        codes.make("t", str(number))
    with pytest.raises(Overloaded):
        codes.make("t", "one more")
    assert codes.take(first, "0") == "t"
    now[0] = CODE_S
    codes.make("t", "one more")


async def test_ten_browsers_of_one_person_are_logged_in(site: Site) -> None:
    tokens = []
    for _ in range(11):
        async with site.browse() as http:
            await log_in(http, site.people["user"].token)
            tokens.append(next(iter(http.cookies.values())))
    async with site.browse() as http:
        answers = [await http.get("/whoami", headers={"Authorization": f"Bearer {token}"}) for token in tokens]
    assert [answer.status_code for answer in answers] == [401] + [200] * 10


async def test_only_a_browsers_session_is_logged_out(site: Site) -> None:
    async with site.browse("user") as program:
        assert (await program.delete("/session")).json()["reason"] == "NO_SESSION"
        assert (await program.get("/whoami")).status_code == 200


async def test_logging_out_twice_is_fine(site: Site) -> None:
    async with site.browse() as http, site.browse() as other:
        await log_in(http, site.people["user"].token)
        other.cookies.update(http.cookies)
        both = await asyncio.gather(http.delete("/session", headers=OURS), other.delete("/session", headers=OURS))
    assert {answer.status_code for answer in both} <= {204, 401}


@pytest.mark.parametrize("body", [{}, {"token": "x y"}, {"code": "no"}, {"token": "alq_" + "0" * 12 + "_" + "0" * 64}])
async def test_what_lets_nobody_in(site: Site, body: dict[str, str]) -> None:
    async with site.browse() as http:
        refused = await http.post("/session", json=body, headers=OURS)
    assert (refused.status_code, "set-cookie" in refused.headers) == (401, False)


def test_over_https_a_cookie_is_bound_to_its_host() -> None:
    origin = Origin({"gpus.example.org"}, "https://gpus.example.org")
    response = Response()
    origin.set_cookie(response, "aliquot", "x", "gpus.example.org", max_age_s=9)
    words = response.headers["Set-Cookie"].split("; ")
    assert words[0] == "__Host-aliquot=x"
    assert "Secure" in words
    assert origin.base("localhost:7074") == "http://localhost:7074"
    assert Origin({"localhost"}, tls=True).cookie("aliquot", "localhost:7074") == "__Host-aliquot"
    assert Origin({"[::1]"}).cookie("aliquot", "[::1]") == "aliquot-80"


def test_behind_a_proxy_its_name_counts() -> None:
    settings = parse_settings(["--url", "https://gpus.example.org"], "1", env={})
    assert "gpus.example.org" in settings.allowed_names
    assert settings.origin.is_own("https://gpus.example.org", "localhost:7074")
    assert not settings.origin.is_own("http://gpus.example.org", "gpus.example.org")
    for wrong in ("gpus.example.org", "https://gpus.example.org/x", "ftp://a"):
        with pytest.raises(ConfigError, match="url is"):
            Settings(url=wrong).check()
