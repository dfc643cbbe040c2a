"""A pool on an ordinary day, as the pictures show it: simulated cards, and real processes that use them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from aliquot.cli.demo.jobs import Job, JobSpec, start
from aliquot.client import Pool
from tests.client.real_pool import real_pool
from tests.page.conftest import Site, console_of

CARDS = (*["A100-40"] * 4, *["H100-80"] * 2)
"""Of each node."""
DECLARED = """\
queues:
  - {name: training, guaranteed: {gpus: 6}, weight: 2}
  - {name: interactive, guaranteed: {gpus: 2}}
tenants:
  - {name: vision, queue: training, guaranteed: {gpus: 4}, limit: {gpus: 12}, budget: {period: month, money: 8000}}
  - {name: speech, queue: training, guaranteed: {gpus: 2}, limit: {gpus: 8}}
  - {name: teaching, queue: interactive, limit: {gpus: 4}}
prices:
  currency: EUR
  gpu_hour: {H100-80: 2.90, A100-40: 1.40}
  gib_hour: {"*": 0.01}
"""
PROGRAMS = (
    JobSpec("finetune-7b", "vision", "0.5(A100-40),20Gi", ("16Gi",), busy_percent=48),
    JobSpec("detector", "vision", "0.25(A100-40),10Gi", ("6Gi",), busy_percent=20),
    JobSpec("evaluation", "vision", "0.25(A100-40),8Gi", ("2Gi",), busy_percent=12),
    JobSpec("transcribe", "speech", "2x1(A100-40)", ("30Gi", "28Gi"), busy_percent=85),
)
"""Each holds memory on its part of a card, and keeps it busy."""
LEASES = (
    (
        "--tenant",
        "speech",
        "--name",
        "pretrain-elastic",
        "--gang",
        "2",
        "--min-slices",
        "1",
        "--max-slices",
        "3",
        "1(H100-80)",
    ),
    ("--tenant", "teaching", "--name", "notebook", "--label", "port=8888", "--time-limit", "8h", "0.25(A100-40),8Gi"),
    ("--tenant", "teaching", "--name", "laptop", "--serve", "remote", "0.5(A100-40),16Gi"),
)
WAITS = ("--tenant", "vision", "--name", "sweep", "--until", "queued", "--gang", "5", "2x1(A100-40)")
LAPSE_S = 20.0
"""How long everything runs before anybody looks: a bill, a history and the measurements need some time."""


@dataclass
class Day:
    """What is shown: a pool, its console, and which leases have a screen of their own in the pictures."""

    site: Site
    token: str
    leases: dict[str, str] = field(default_factory=dict)
    """Identities, by name."""
    node_id: str = ""
    """Of the node that has the most to show."""


@contextmanager
def ordinary_day() -> Iterator[Day]:
    """Three tenants, programs that run, one request that waits, and a card that is out."""
    every = {"ALIQUOT_AGENT_HOSTING_SERVICES": "all"}
    with real_pool(3, 1, "", every, models=CARDS) as local, console_of(local.address) as address:
        assert local.token_file is not None
        site = Site(address, local.token_file.read_text().strip(), local)
        day = Day(site, site.let_in("ann", role="ADMIN"))
        file = local.layout.root / "ann.token"
        file.write_text(day.token)
        file.chmod(0o600)
        declared = local.layout.root / "pool.yaml"
        declared.write_text(DECLARED)
        jobs: list[Job] = []
        with Pool(local.address, token=day.token, agent_sockets=[each.socket for each in local.nodes]) as pool:
            _aliquot(day, file, "apply", "-f", str(declared))
            try:
                jobs += (start(pool, plan, local.layout.logs) for plan in PROGRAMS)
                for wanted in LEASES:
                    _aliquot(day, file, "alloc", *wanted)
                day.node_id = jobs[0].lease.slices[0].node_id
                sick = next(
                    each for each in pool.devices() if each.node_id != day.node_id and not each.leased_share_milli
                )
                _aliquot(day, file, "device", "quarantine", sick.uuid, "--reason", "its memory errors come back")
                _aliquot(day, file, "alloc", *WAITS)
                _announce_maintenance(site)
                time.sleep(LAPSE_S)
                with site.rest() as http:
                    day.leases = {each["name"]: each["lease_id"] for each in http.get("/leases").json()["items"]}
                yield day
            finally:
                for job in jobs:
                    job.end()


def _aliquot(day: Day, token_file: Path, *words: str) -> None:
    command = [sys.executable, "-m", "aliquot.cli", *words, "--coordinator", day.site.local.address]
    command += ["--token-file", str(token_file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - its own program
    if done.returncode:
        raise SystemExit(f"aliquot {' '.join(words)}: {done.stdout}{done.stderr}")


def _announce_maintenance(site: Site) -> None:
    begins = (datetime.now(UTC) + timedelta(days=2)).replace(hour=20, minute=0, second=0, microsecond=0)
    window = {
        "name": "driver-update",
        "start": begins.strftime("%Y-%m-%dT%H:%M"),
        "end": (begins + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M"),
        "zone": "UTC",
        "reason": "driver 615.71",
        "node_ids": [node["node_id"] for node in site.rest().get("/nodes").json()["items"][:1]],
    }
    with site.rest() as http:
        http.put("/maintenance", json=window).raise_for_status()
