"""The page's files, and what is shown where there are none."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from aliquot.console.page import Page
from tests.console.conftest import Site


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html>page")
    (tmp_path / "assets" / "main-1a2b.js").write_text("let a = 1;" * 100)
    return tmp_path


def browser(site: Site, folder: Path) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(Page(site.app, folder))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers={"Accept": "text/html"})


async def test_the_page_is_served_at_each_of_its_addresses(site: Site, folder: Path) -> None:
    async with browser(site, folder) as http:
        for path in ("/", "/login", "/leases/l-1", "/nodes/n1"):
            answer = await http.get(path)
            assert (answer.status_code, answer.text) == (200, "<!doctype html>page"), path
            assert answer.headers["Cache-Control"] == "no-cache"
            assert "script-src 'self'" in answer.headers["Content-Security-Policy"]
            again = await http.get(path, headers={"If-None-Match": answer.headers["ETag"]})
            assert (again.status_code, again.content) == (304, b"")


async def test_files_that_are_named_by_their_content_are_kept_for_ever(site: Site, folder: Path) -> None:
    async with browser(site, folder) as http:
        answer = await http.get("/assets/main-1a2b.js")
        assert answer.text == "let a = 1;" * 100
        assert answer.headers["Content-Encoding"] == "gzip"
        assert answer.headers["Content-Type"] == "text/javascript; charset=utf-8"
        assert "immutable" in answer.headers["Cache-Control"]
        plain = await http.get("/assets/main-1a2b.js", headers={"Accept-Encoding": "identity"})
        assert int(plain.headers["Content-Length"]) == 1000
        head = await http.head("/assets/main-1a2b.js")
        assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize("path", ["/assets/gone.js", "/../settings.py", "/%2e%2e/settings.py", "/api/v1/no", "/api/v2"])
async def test_what_is_not_there_is_a_problem_and_no_page(site: Site, folder: Path, path: str) -> None:
    async with browser(site, folder) as http:
        answer = await http.get(path)
    assert (answer.status_code, answer.headers["Content-Type"]) == (404, "application/problem+json")


async def test_programs_are_not_given_the_page_for_an_address_that_is_wrong(site: Site, folder: Path) -> None:
    async with browser(site, folder) as http:
        answer = await http.get("/leasses", headers={"Accept": "application/json"})
        assert answer.status_code == 404
        assert (await http.get("/healthz")).json() == {"status": "ok"}


async def test_a_console_without_its_page_says_so(site: Site, tmp_path: Path) -> None:
    async with browser(site, tmp_path) as http:
        answer = await http.get("/")
    assert answer.status_code == 404
    assert "/api/v1/openapi.json" in answer.text
