"""Prometheus and promtool, as Debian's package `prometheus` brings them. Nobody's service is used or started."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.polling import eventually


def program(name: str) -> str:
    """Its path; skips the test where there is none."""
    found = shutil.which(name)
    if found is None:
        pytest.skip("needs Prometheus: apt-get install prometheus")
    return found


def promtool(*arguments: str) -> str:
    """What it says. Fails with that where it is not content."""
    done = subprocess.run([program("promtool"), *arguments], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A server of ours."""

    url: str

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer."""
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}", timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from None

    def series(self, expr: str) -> list[tuple[dict[str, str], float]]:
        """What a query finds now: labels and value."""
        found = self.ask("query", query=expr)
        assert found["resultType"] in ("vector", "scalar"), expr
        result = found["result"] if found["resultType"] == "vector" else [{"metric": {}, "value": found["result"]}]
        return [(each["metric"], float(each["value"][1])) for each in result]


@contextlib.contextmanager
def prometheus(
    folder: Path, targets: Mapping[str, Sequence[str]], rules: Path | None = None, interval: str = "1s"
) -> Iterator[Prometheus]:
    """Scrapes these targets, by job, until the end."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    config: dict[str, Any] = {
        "global": {"scrape_interval": interval, "evaluation_interval": interval},
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": list(addresses)}]} for job, addresses in targets.items()
        ],
    }
    if rules is not None:
        config["rule_files"] = [str(rules)]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        program("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--enable-feature=exemplar-storage",
        "--log.level=error",
    ]
    with (folder / "prometheus.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            eventually(lambda: _ready(port) or server.poll() is not None)
            assert server.poll() is None, (folder / "prometheus.log").read_text()
            yield Prometheus(f"http://127.0.0.1:{port}")
        finally:
            server.terminate()


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def promtool_reads(text: bytes) -> None:
    """Fails unless these metrics are such as promtool is content with, but for names that others have chosen."""
    done = subprocess.run(
        [program("promtool"), "check", "metrics"], input=text, capture_output=True, check=False, timeout=60
    )
    said = [line for line in (done.stdout + done.stderr).decode().splitlines() if line.startswith("aliquot_")]
    assert not said, said
    assert done.returncode in (0, 3), (done.stdout + done.stderr).decode()
