"""`aliquot run --remote --on-move`: a program here goes on by another server when its lease moves to another node."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from aliquot.cli.localpool import LocalPool
from aliquot.client import Pool
from aliquot.client.admin import MaintenanceWindow
from tests.client.real_pool import real_pool
from tests.polling import eventually
from tests.remote_serving.nodes import install

FOLLOWS = """
import os, pathlib, sys, time
from aliquot import remote
told, times = pathlib.Path(sys.argv[1]), int(sys.argv[2])
with remote.connect() as session:
    channel = session.open(engine="memory")
    channel.send(b"who")
    _, _, device = channel.receive().decode().split()
    with told.open("a") as file:
        print(device, os.environ.get("ALIQUOT_STOP_SIGNAL", ""), file=file)
    if len(told.read_text().splitlines()) == times:
        sys.exit(5)
    try:
        while True:
            channel.send(b"echo on")
            channel.receive()
            time.sleep(0.05)
    except remote.SessionLeaseEnded as ended:
        print(ended.end_reason, session.notice is not None, flush=True)
        sys.exit(3)
"""
"""A program that says where it computes, and ends by the error that a program gets whose lease is gone."""


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPool]:
    """Of which either can serve a whole card."""
    settings = {
        "PYTHONPATH": str(install(tmp_path_factory.mktemp("engine"))),
        "ALIQUOT_AGENT_HOSTING_SERVICES": "all",
    }
    with real_pool(nodes=2, gpus=1, settings=settings) as pool:
        yield pool


@contextmanager
def away(pool: Pool, node_id: str, way: str) -> Iterator[None]:
    """A node that its leases have to leave."""
    if way == "drain":
        pool.drain(node_id)
        yield
        pool.uncordon(node_id)
        return
    now = datetime.now(UTC).replace(tzinfo=None)
    start, end = (each.isoformat(timespec="seconds") for each in (now, now + timedelta(hours=1)))
    pool.admin.declare_maintenance(MaintenanceWindow("away", start=start, end=end, node_ids=(node_id,)))
    yield
    pool.admin.end_maintenance("away")


@pytest.mark.parametrize(("way", "reason"), [("maintenance", "PREEMPTED"), ("drain", "DRAINED")])
def test_a_program_goes_on_by_the_server_that_its_lease_has_moved_to(
    two_nodes: LocalPool, tmp_path: Path, way: str, reason: str
) -> None:
    told, hooks = tmp_path / "told", tmp_path / "hooks"
    environment = os.environ | {
        "ALIQUOT_COORDINATOR": two_nodes.address,
        "ALIQUOT_TOKEN_FILE": str(two_nodes.token_file),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "PYTHONPATH": "",
    }
    command = [sys.executable, "-m", "aliquot.cli", "run", "--remote", "--gpu", "1", "--grace", "3s"]
    command += ["--on-move", "restart", "--stop-signal", "usr1"]
    command += ["--before-move", f"echo before >> {hooks}", "--after-move", f"echo after >> {hooks}"]
    command += ["--", sys.executable, "-c", FOLLOWS, str(told), "2"]
    with (
        two_nodes.connect() as pool,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as running,
    ):
        try:
            eventually(lambda: told.exists() and told.read_text().endswith("\n"))
            (lease,) = pool.leases()
            node_id = lease.slices[0].node_id
            with away(pool, node_id, way):
                out, said = running.communicate(timeout=120)
        finally:
            running.terminate()
        eventually(lambda: not list(pool.leases()))
    lines = [line.split() for line in told.read_text().splitlines()]
    assert (running.returncode, len(lines), len({device for device, _ in lines})) == (5, 2, 2), said
    assert [signal for _, signal in lines] == ["USR1", "USR1"]
    assert out == f"{reason} True\n", "it had notice, and the documented error when that was over"
    assert hooks.read_text().split() == ["before", "after"]
    assert "moved: the program is started again" in said
