"""`aliquot-console` as a program, in front of a pool as `aliquot up` starts it."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from aliquot.common.errors import ConfigError
from aliquot.console.serving import _listen
from aliquot.console.settings import Settings
from tests.certificates import OPENSSL, Authority
from tests.client.real_pool import real_pool

PROGRAM = [sys.executable, "-c", "import sys; from aliquot.console.main import main; sys.exit(main())"]


def test_it_says_where_it_serves_and_ends_when_it_is_told_to() -> None:
    with real_pool(nodes=1) as pool:
        assert pool.token_file is not None
        token = pool.token_file.read_text().strip()
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ALIQUOT_")}
        command = [*PROGRAM, "--port", "0", "--metrics-port=-1", "--coordinator", pool.address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as console:
            assert console.stdout is not None
            try:
                word, _, document = console.stdout.readline().partition(" ")
                assert word == "ready"
                address = json.loads(document)["address"]
                headers = {"Authorization": f"Bearer {token}"}
                with httpx.Client(base_url=f"{address}/api/v1", headers=headers, timeout=60) as http:
                    body = {"request": {"gpu": "0.25,1Gi", "detached": True}, "until": "ACTIVE"}
                    lease = http.post("/leases", json=body).json()
                    assert (lease["state"], lease["slices"][0]["tier"]) == ("ACTIVE", "WATCHDOG")
                    http.post(f"/leases/{lease['lease_id']}:release")
                console.send_signal(signal.SIGTERM)
                assert console.wait(30) in (0, -signal.SIGTERM)
            finally:
                console.kill()


def test_what_it_can_not_do_is_said_in_one_line() -> None:
    ended = subprocess.run([*PROGRAM, "--host", "0.0.0.0"], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "without TLS" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.skipif(not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists(), reason="needs IPv6")
def test_an_address_with_brackets_keeps_them() -> None:
    command = [*PROGRAM, "--host", "::1", "--port", "0", "--metrics-port=-1", "--coordinator", "127.0.0.1:1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as console:
        assert console.stdout is not None
        try:
            address = json.loads(console.stdout.readline().partition(" ")[2])["address"]
            assert address.startswith("http://[::1]:")
            assert httpx.get(f"{address}/healthz").status_code == 200
        finally:
            console.kill()


def test_one_that_is_started_again_listens_where_the_one_before_has_just_hung_up() -> None:
    """Its own ends of connections stay with the kernel for a minute, and must not keep the next one out."""
    with _listen("127.0.0.1", 0) as before:
        address = before.getsockname()
        with socket.create_connection(address) as caller:
            accepted, _ = before.accept()
            accepted.close()
            assert caller.recv(1) == b""
    with _listen(*address) as after:
        assert after.getsockname() == address
        with pytest.raises(ConfigError, match="can't listen on") as error:
            _listen(*address)
        assert "--port" in error.value.hint


@pytest.mark.skipif(OPENSSL is None, reason="needs openssl")
def test_it_tells_a_scraper_that_its_certificate_is_due_and_that_a_renewed_one_is_broken(tmp_path: Path) -> None:
    authority, day = Authority.create(tmp_path / "authority"), dt.timedelta(days=1)
    ends = dt.datetime.now(dt.UTC).replace(microsecond=0) + 9 * day
    certificate, key = authority.certify_until("server", ends)
    pair = ["--tls-cert", str(certificate), "--tls-key", str(key)]
    command = [*PROGRAM, "--port", "0", "--metrics-port", "0", "--coordinator", "127.0.0.1:1", *pair]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as console:
        assert console.stdout is not None
        try:
            metrics = json.loads(console.stdout.readline().partition(" ")[2])["metrics"]

            def told() -> dict[str, float]:
                lines = httpx.get(f"http://{metrics}/metrics").text.splitlines()
                return {
                    name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")
                }

            duty, of = 'aliquot_duty{duty="certificate"}', '{of="server"}'
            first = told()
            assert first[f"aliquot_certificate_ends_seconds{of}"] == ends.timestamp()
            assert first[f"aliquot_certificate_due_seconds{of}"] == (ends - 14 * day).timestamp()
            assert (first[duty], "process_resident_memory_bytes" in first) == (0, True)
            authority.certify_until("server", ends + 60 * day)
            assert told()[duty] == 1
            good = certificate.read_bytes()
            certificate.write_text("no certificate")
            broken = told()
            assert broken[duty] == 0
            assert broken[f"aliquot_certificate_ends_seconds{of}"] == (ends + 60 * day).timestamp(), "the old one stays"
            certificate.write_bytes(good)
            assert told()[duty] == 1
        finally:
            console.kill()


def test_metrics_are_for_nobody_elsewhere_without_a_token() -> None:
    command = [*PROGRAM, "--port", "0", "--metrics-port", "0"]
    environment = os.environ | {"ALIQUOT_CONSOLE_METRICS_HOST": "0.0.0.0"}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "metrics_token_file" in ended.stderr


def test_any_of_its_addresses_is_a_name_of_its_own() -> None:
    origin = Settings(host="2001:db8::5", names=("[2001:db8::6]", "2001:db8::7")).origin
    for host in ("[2001:db8::5]:7074", "[2001:db8::6]", "[2001:db8::7]:1", "[::1]:7074"):
        assert origin.knows(host), host
    assert not origin.knows("[2001:db8::8]")


def test_strangers_who_send_nothing_keep_nothing() -> None:
    """As a program, as it is started: what 60 of them hold is gone when their time is up, bodies are not read."""
    command = [*PROGRAM, "--port", "0", "--metrics-port=-1", "--coordinator", "127.0.0.1:1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as console, contextlib.ExitStack() as stack:
        assert console.stdout is not None
        stack.callback(console.kill)
        host, port = urlsplit(json.loads(console.stdout.readline().partition(" ")[2])["address"]).netloc.split(":")
        head = f"POST /api/v1/leases HTTP/1.1\r\nHost: {host}\r\nContent-Length: 3900000\r\n\r\n".encode()
        strangers = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(60)]
        for stranger in strangers:
            with contextlib.suppress(OSError):  # refused while it is being sent
                stranger.sendall(head + b" " * 3_000_000)
        for stranger in strangers:
            stranger.settimeout(60)
            with contextlib.suppress(ConnectionError):
                assert b" 401 " in stranger.recv(1 << 16).split(b"\r\n")[0]
        status = Path(f"/proc/{console.pid}/status").read_text()
        assert int(status.partition("VmHWM:")[2].split()[0]) < 160 * 1024, "60 bodies of 3 MB are 180 MB"


def test_what_strangers_send_fills_no_log(tmp_path: Path) -> None:
    command = [*PROGRAM, "--port", "0", "--metrics-port=-1", "--coordinator", "127.0.0.1:1"]
    log = tmp_path / "log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as console,
    ):
        assert console.stdout is not None
        try:
            address = urlsplit(json.loads(console.stdout.readline().partition(" ")[2])["address"])
            before = log.stat().st_size
            upgrade = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
            for sent in (b"FOO / x\r\n\r\n", b"\x16\x03\x01\x00\xff\r\n\r\n", upgrade):
                with socket.create_connection((address.hostname or "", address.port or 0)) as stranger:
                    stranger.sendall(sent)
                    assert stranger.recv(100)
            assert log.stat().st_size == before
        finally:
            console.kill()
