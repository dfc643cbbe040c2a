"""A server that we were told to ask may not send us, and what we show it, on to another."""

from __future__ import annotations

import asyncio
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from aliquot.cli.commands.supporting import _metrics
from aliquot.cli.notify.control import post
from aliquot.cli.notify.notices import Rule
from aliquot.common.https import exchange, open_directly
from aliquot.common.urls import HttpError
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import Cluster
from aliquot.kube.api.errors import KubeError

TOKEN = "alq_" + "0" * 12 + "_" + "1" * 64


@dataclass
class Site:
    """One that redirects to another, and what the other has heard."""

    address: str
    heard: list[dict[str, str]] = field(default_factory=list)


@pytest.fixture(params=[301, 302, 303, 307, 308])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    found = Site("")

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.heard.append({name.lower(): value for name, value in self.headers.items()})
            self.send_response(200)
            self.end_headers()

        do_POST = do_GET  # noqa: N815 - http.server's word

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:

        class First(Other):
            def do_GET(self) -> None:
                self.send_response(request.param)
                self.send_header("Location", f"http://127.0.0.2:{other.server_port}/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_POST = do_GET  # noqa: N815 - http.server's word

        with ThreadingHTTPServer(("127.0.0.1", 0), First) as first:
            for server in (other, first):
                threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
            found.address = f"http://127.0.0.1:{first.server_port}"
            yield found
            for server in (other, first):
                server.shutdown()
    assert found.heard == []


def test_the_token_of_a_control_call_goes_to_its_address_alone(site: Site) -> None:
    with pytest.raises(urllib.error.HTTPError):
        post(f"{site.address}/control", {"gpu_id": "GPU-1"}, "secret")


def test_a_metrics_token_goes_to_its_address_alone(site: Site, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    with pytest.raises(urllib.error.HTTPError):
        _metrics(f"{site.address}/metrics", tmp_path / "token")


def test_json_is_exchanged_with_whom_was_named(site: Site) -> None:
    assert exchange(site.address, document={"id_token": "x"}, token=TOKEN).status >= 300


async def test_a_cluster_s_token_goes_to_its_server_alone(site: Site) -> None:
    client = KubeClient(Cluster(site.address, token=lambda: "secret"))
    try:
        with pytest.raises(KubeError):
            await client.get("/api/v1/nodes/n")
    finally:
        await client.close()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Apprise's own imports
async def test_so_does_what_is_told_of_idle_leases(site: Site) -> None:
    pytest.importorskip("apprise")
    from aliquot.cli.notify import command

    rule = Rule(name="r", to=(f"json://{site.address.removeprefix('http://')}/?+X-Token=secret",))
    deliver = command._deliverer(None, rule)  # type: ignore[arg-type]

    class Notice:
        title, body = "t", "b"

    Notice.rule = rule  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="not taken"):
        await asyncio.to_thread(deliver, Notice)  # type: ignore[arg-type]


def test_nothing_but_http_is_asked() -> None:
    with pytest.raises(OSError, match="http and https"):
        open_directly(urllib.request.Request("file:///etc/passwd"), timeout_s=1)
    with pytest.raises(HttpError):
        exchange("ftp://localhost/x")
