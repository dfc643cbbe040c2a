"""`aliquot watch-use` over a real Prometheus that holds recorded series of dcgm-exporter's, and nothing else."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.monitoring.programs import program, prometheus, promtool, promtool_reads
from tests.polling import eventually

COMMAND = [sys.executable, "-c", "import sys; from aliquot.cli.main import main; sys.exit(main())", "watch-use"]
SCRAPED_EVERY_S = 15
WHOLE_MIB = 81_920

Series = Mapping[str, float]
BUSY: Series = {"GPU_UTIL": 92, "MEM_COPY_UTIL": 60, "FB_USED": 73_728, "FB_FREE": 8_192, "POWER_USAGE": 350,
                "POWER_MGMT_LIMIT": 400, "SM_CLOCK": 1410}  # fmt: skip
SERVER: Series = {"GPU_UTIL": 0, "MEM_COPY_UTIL": 0, "FB_USED": 73_728, "FB_FREE": 8_192, "POWER_USAGE": 60,
                  "POWER_MGMT_LIMIT": 600, "SM_CLOCK": 1410}  # fmt: skip
EMPTY: Series = {"GPU_UTIL": 0, "MEM_COPY_UTIL": 0, "FB_USED": 0, "FB_FREE": WHOLE_MIB, "POWER_USAGE": 50}
MUTE: Series = {"MEM_COPY_UTIL": 0, "FB_USED": 0, "FB_FREE": WHOLE_MIB}
"""Of a card that doesn't tell how busy it is."""


@dataclass(frozen=True, slots=True)
class Card:
    """What the exporter says of one card, and since when."""

    uuid: str
    values: Series
    pod: str
    namespace: str = "research"
    instance: str = ""
    for_s: int = 1_500
    renamed: bool = False
    """Where Prometheus keeps its own `pod`: the exporter's is `exported_pod`."""

    def labels(self) -> str:
        told = {"gpu": "0", "UUID": self.uuid, "modelName": "NVIDIA A100-SXM4-80GB", "Hostname": "gpu-07"}
        before = "exported_" if self.renamed else ""
        if self.renamed:
            told |= {"pod": "dcgm-exporter-x7", "namespace": "monitoring"}
        told |= {f"{before}pod": self.pod, f"{before}namespace": self.namespace}
        if self.instance:
            told["GPU_I_ID"] = self.instance
        return ",".join(f'{name}="{value}"' for name, value in told.items() if value)


CARDS = (
    Card("GPU-busy", BUSY, "train-0"),
    Card("GPU-server", SERVER, "serve-0", "web"),
    Card("GPU-empty", EMPTY, "notebook-<b>"),
    Card("GPU-mute", MUTE, "quiet-0"),
    Card("GPU-new", EMPTY, "just-started", for_s=120),
    Card("GPU-cut", {"FB_USED": 512, "FB_FREE": 512}, "half", instance="7"),
)


def recorded(folder: Path, cards: tuple[Card, ...]) -> None:
    """Write blocks of Prometheus's storage that end now."""
    lines: list[str] = []
    now = int(time.time())
    for name in sorted({name for card in cards for name in card.values}):
        lines.append(f"# TYPE DCGM_FI_DEV_{name} gauge")
        for card in cards:
            if name in card.values:
                times = range(now - card.for_s, now + 1, SCRAPED_EVERY_S)
                lines += [f"DCGM_FI_DEV_{name}{{{card.labels()}}} {card.values[name]} {at}" for at in times]
    if any(card.instance for card in cards):
        lines.append("# TYPE DCGM_FI_PROF_GR_ENGINE_ACTIVE gauge")
        times = range(now - 1_500, now + 1, SCRAPED_EVERY_S)
        for card in (card for card in cards if card.instance):
            lines += [f"DCGM_FI_PROF_GR_ENGINE_ACTIVE{{{card.labels()}}} 0.8 {at}" for at in times]
    (folder / "recorded.txt").write_text("\n".join((*lines, "# EOF", "")))
    promtool("tsdb", "create-blocks-from", "openmetrics", str(folder / "recorded.txt"), str(folder / "data"))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    recorded(folder, CARDS)
    with prometheus(folder, {}) as server:
        yield server.url


def once(url: str, *arguments: str, **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        [*COMMAND, "--once", "--json", *arguments],
        env=os.environ | {"PROM_URL": url} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_each_card_has_its_score_and_what_is_not_known_is_never_idle(url: str) -> None:
    found = once(url)
    rows = {row["pod"]: row for row in found["results"]}
    scores = {pod: (row["score"], row["status"]) for pod, row in rows.items()}
    assert scores == {
        # 0.5 x 92 + 0.2 x 60 + 0.2 x 90 + 0.1 x 87.5
        "train-0": (84.8, "high"),
        "serve-0": (19.0, "low"),
        # Its power's limit is not told: the other three parts count for it.
        "notebook-<b>": (0.0, "idle"),
        "quiet-0": (None, "unknown"),
        "just-started": (None, "unknown"),
        # An instance: its engine's part of the time, and memory.
        "half": (71.4, "high"),
    }
    assert rows["half"]["gpu_id"] == "GPU-cut/7"
    assert "of the window" in rows["just-started"]["why_unknown"]
    assert (rows["train-0"]["hostname"], rows["train-0"]["mem_used_mb"]) == ("gpu-07", 73_728)
    assert [row["pod"] for row in found["results"]][:2] == ["notebook-<b>", "serve-0"]
    assert found["stats"]["total_gpus"] == 6
    assert found["stats"]["idle_count"] == 1
    assert found["stats"]["by_namespace"]["web"] == {"gpus": 1, "avg_score": 19.0, "low_utilization_count": 1}


def test_the_documents_variables_are_read(url: str) -> None:
    found = once(
        url,
        QUERY_CONDITION='{namespace="web"}',
        THRESHOLD="50",
        GPU_UTIL_WEIGHT="0.1",
        MEM_COPY_WEIGHT="0",
        MEM_USED_WEIGHT="0.9",
        POWER_WEIGHT="0",
    )
    assert [(row["pod"], row["score"], row["status"]) for row in found["results"]] == [("serve-0", 81.0, "high")]


def test_the_exporters_own_pod_is_nobodys(tmp_path: Path) -> None:
    program("prometheus")
    recorded(tmp_path, (Card("GPU-a", BUSY, "train-0", renamed=True), Card("GPU-b", EMPTY, "", "", renamed=True)))
    with prometheus(tmp_path, {}) as server:
        rows = once(server.url)["results"]
    assert [(row["gpu_id"], row["namespace"], row["pod"]) for row in rows] == [
        ("GPU-b", "", ""),
        ("GPU-a", "research", "train-0"),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--prom-url", "http://127.0.0.1:1"], "does not answer"),
        (["--prom-url", "prometheus:9090"], "no address to ask at"),
        (["--prom-url", "http://[::1"], "no address to ask at"),
        (["--control-api", "reclaimer"], "no address to ask at"),
        (["--query-condition", '{pod!="'], "selector"),
        (["--gpu-util-weight", "-1"], "weights"),
        (["--threshold", "0"], "threshold"),
        (["--step", "20m"], "at most the window"),
    ],
)
def test_what_can_not_be_is_said(url: str, arguments: list[str], said: str) -> None:
    command = [*COMMAND, "--once", *arguments]
    done = subprocess.run(
        command, env=os.environ | {"PROM_URL": url}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode in {1, 2}
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@contextlib.contextmanager
def told() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A program that takes findings: its address, and what it has heard."""
    heard: list[dict[str, Any]] = []

    class Listener(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Listener) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", heard
        finally:
            server.shutdown()


@contextlib.contextmanager
def serving(url: str, *arguments: str) -> Iterator[str]:
    """The service's address."""
    with subprocess.Popen(
        [*COMMAND, "--prom-url", url, "--port", "0", *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        word, _, rest = process.stdout.readline().partition(" ")
        assert word == "ready"
        try:
            yield json.loads(rest)["address"]
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) in {0, -signal.SIGTERM}


def get(address: str, path: str, **headers: str) -> str:
    request = urllib.request.Request(address + path, headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(answer.read().decode())


def test_the_service_answers_by_its_documented_routes(url: str) -> None:
    with told() as (control, heard), serving(url, "--control-api", control) as address:
        eventually(lambda: json.loads(get(address, "/health"))["status"] == "healthy")
        assert len(json.loads(get(address, "/results"))) == 6
        assert [row["pod"] for row in json.loads(get(address, "/results?namespace=web"))] == ["serve-0"]
        low = json.loads(get(address, "/results/low"))
        assert (low["count"], low["threshold"]) == (2, 20.0)
        assert {row["pod"] for row in low["gpus"]} == {"serve-0", "notebook-<b>"}
        assert json.loads(get(address, "/results/stats"))["by_status"]["unknown"] == 2
        assert json.loads(get(address, "/"))["service"] == "aliquot watch-use"
        eventually(lambda: len(heard) == 2)
        assert heard[0].keys() == {"gpu_id", "pod", "namespace", "hostname", "score", "status", "timestamp"}
        # Somebody may ask for a look before the interval is over: the two are told again.
        assert json.loads(get(address, "/analyze")) == {"status": "started"}
        eventually(lambda: len(heard) == 4)
        page = get(address, "/", Accept="text/html")
        assert "notebook-&lt;b&gt;" in page
        assert "<b>" not in page
        metrics = get(address, "/metrics")
        promtool_reads(metrics.encode())
        assert 'aliquot_watch_use_cards{status="unknown"} 2.0' in metrics
        assert 'pod="serve-0"' in metrics
        assert 'pod="quiet-0"' not in metrics  # no sample, rather than a zero


def test_who_is_to_be_told_and_speaks_no_http_stops_nothing(url: str) -> None:
    asked: list[int] = []

    class Garbage(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            asked.append(len(self.request.recv(65_536)))
            self.request.sendall(b"220 mail.example ESMTP\r\n")

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Garbage) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        control = f"http://127.0.0.1:{server.server_address[1]}/"
        with serving(url, "--control-api", control, "--interval", "1") as address:
            eventually(lambda: len(asked) > 1)
            assert json.loads(get(address, "/health"))["status"] == "healthy"
        server.shutdown()


def test_while_prometheus_is_away_the_last_picture_stays_and_is_called_stale(tmp_path: Path) -> None:
    program("prometheus")
    recorded(tmp_path, CARDS[:2])
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(prometheus(tmp_path, {}))
        with serving(server.url, "--interval", "1") as address:
            eventually(lambda: json.loads(get(address, "/health"))["status"] == "healthy")
            stack.close()
            eventually(lambda: json.loads(get(address, "/health"))["status"] == "stale")
            assert "does not answer" in json.loads(get(address, "/health"))["error"]
            assert len(json.loads(get(address, "/results"))) == 2
            assert 'role="alert"' in get(address, "/", Accept="text/html")
