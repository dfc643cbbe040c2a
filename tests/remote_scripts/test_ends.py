"""Ends of a program on a lease elsewhere: what it sees, what it says last, its exit code. The table of docs/remote.md.

Each is one program by `aliquot run --remote` that cares for nothing. They run in lanes beside one another: most of what
they take is starting, and waiting.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from aliquot.cli._exits import Exit
from aliquot.cli.localpool import LocalPool
from aliquot.client import Pool
from aliquot.client.access import Role, RoleGrant
from aliquot.client.admin import Budget, Declarations, TenantSpec
from aliquot.remote.core.endpoint import parse
from tests.client.real_pool import real_pool
from tests.polling import eventually
from tests.remote_scripts.conftest import Run

OWN = 7
PROGRAM = """
import itertools, json, os, pathlib, sys, time
sys.excepthook = lambda kind, raised, trace: print(kind.__name__, file=sys.stderr)  # what it sees, in one line
import torch
from aliquot.remote.core.endpoint import parse
from bench.lib.delaying import DelayingProxy
folder, how = pathlib.Path(sys.argv[1]), json.loads(sys.argv[2])
ticket = json.loads(pathlib.Path(os.environ["ALIQUOT_REMOTE_TICKET"]).read_text())
part = ticket["parts"][0]
if "hangs_for_good" in how:
    port = parse(part["endpoint"]).port
    proxy = DelayingProxy(port, 0.0)
    part["endpoint"] = part["endpoint"].replace(f":{port}?", f":{proxy.port}?")
if how:
    part |= how.get("part", {})
    mine = folder / "ticket"
    mine.touch(0o600)
    mine.write_text(json.dumps(ticket | how.get("ticket", {})))
    os.environ["ALIQUOT_REMOTE_TICKET"] = str(mine)
x = torch.ones(4, device="cuda")
if how.get("asks_bytes"):
    torch.empty(how["asks_bytes"], device="cuda", dtype=torch.uint8)
for step in itertools.count():
    time.sleep(0.02)  # or it and its server use up the processors for as long as its end takes to come
    assert x.mul_(1).sum().item() == 4
    if step == 3:
        (folder / "running.part").write_text(json.dumps([ticket["lease_id"], os.getpid()]))
        (folder / "running.part").rename(folder / "running")
        if "hangs_for_good" in how:
            proxy.hang(for_good=how["hangs_for_good"])
    if (folder / "go").exists():
        sys.exit(7)
"""


@dataclass(frozen=True)
class Place:
    """A program that runs, and where."""

    local: LocalPool
    pool: Pool
    lease_id: str
    pid: int
    folder: Path

    def go(self) -> None:
        """Let it end by itself."""
        (self.folder / "go").touch()

    def kill_server(self) -> None:
        """Kill what serves its lease."""
        port = parse(self.pool.get(self.lease_id).slices[0].endpoint).port
        for found in psutil.net_connections("tcp"):
            if found.status == psutil.CONN_LISTEN and found.pid and found.laddr and found.laddr.port == port:
                os.kill(found.pid, signal.SIGKILL)


@dataclass(frozen=True)
class End:
    """One way in which a program ends."""

    code: int
    sees: str = ""
    """The class of the error that nobody catches."""
    said: str = ""
    """A pattern of the one sentence on stderr; empty: there is none."""
    happens: Callable[[Place], object] = Place.go
    how: dict[str, object] = field(default_factory=dict)
    """What is other than it should be in the program, or its ticket."""
    options: tuple[str, ...] = ()
    gpu: str = "0.25(A100),4Gi"


def claimed(place: Place) -> None:
    with place.pool.lease("2x1(A100)", priority=100, node_ids=[node_id(place.pool, "node-2")]):
        pass


def drained(place: Place) -> None:
    place.pool.drain(node_id(place.pool, "node-2"))


def node_id(pool: Pool, name: str) -> str:
    return next(node.node_id for node in pool.nodes() if node.name == name)


def node_lost(place: Place) -> None:
    agent = place.local.node("node-2").agent.process
    assert agent is not None
    agent.kill()
    place.kill_server()


def budget_used_up(place: Place) -> None:
    tenants = (TenantSpec("default"), TenantSpec("poor", budget=Budget("hour", share_milli_ms=1)))
    place.pool.admin.apply(Declarations(tenants=tenants))
    place.go()


def coordinator_lost(place: Place) -> None:
    assert place.local.coordinator.process is not None
    place.local.coordinator.process.kill()
    place.local.coordinator.process.wait()
    place.go()


def coordinator_restarted(place: Place) -> None:
    assert place.local.coordinator.process is not None
    place.local.coordinator.process.kill()
    place.local.coordinator.process.wait()
    place.local.start_coordinator()
    place.go()


def ended(reason: str) -> str:
    return rf"aliquot: the program has ended because lease \S+ has ended \({reason}\).*"


LOST = (
    "aliquot: the program has ended because its session is lost, with all that it had on the device: {}; begin again.*"
)
ON_1, ON_2 = ("--node", "node-1", "--no-queue"), ("--node", "node-2", "--no-queue", "--grace", "1s")
COORDINATOR = {
    "coordinator away for a while": End(OWN, happens=coordinator_restarted, options=ON_1),
    "coordinator away at the end": End(
        OWN, said=r"lease \S+ was not released: no coordinator answers.*", happens=coordinator_lost, options=ON_1
    ),
}
ON_NODE_1 = {
    "network gone": End(
        Exit.UNAVAILABLE,
        "SessionLost",
        LOST.format("nobody answers at .*, for 30 s"),
        lambda place: None,
        how={"hangs_for_good": True},
        options=ON_1,
    ),
    "its own": End(OWN, options=ON_1),
    "killed": End(137, "", "the program was ended by SIGKILL", lambda place: os.kill(place.pid, 9), options=ON_1),
    "memory used up": End(Exit.FAILED, "RemoteOutOfMemoryError", how={"asks_bytes": 5 << 30}, options=ON_1),
    "budget used up": End(OWN, happens=budget_used_up, options=("--tenant", "poor", *ON_1)),
    "released": End(
        Exit.LEASE_LOST,
        "SessionLeaseEnded",
        ended("RELEASED"),
        lambda place: place.pool.release(place.lease_id, reason="by an administrator"),
        options=("--grace", "1s", *ON_1),
    ),
    "time limit": End(
        Exit.LEASE_LOST,
        "SessionLeaseEnded",
        ended("TIME_LIMIT"),
        lambda place: None,
        options=("--time-limit", "30s", "--grace", "1s", *ON_1),
    ),
    "token revoked": End(
        Exit.LEASE_LOST,
        "SessionLeaseEnded",
        "aliquot: the program has ended because the lease is not served any more: .*\nlease .* was not released: .*",
        lambda place: place.pool.access.revoke_tokens(principal="ann"),
        options=("--ttl", "5s", "--grace", "1s", *ON_1),
    ),
    "nobody at its endpoint": End(
        Exit.UNAVAILABLE,
        "SessionUnreachable",
        r"aliquot: the program has ended because nobody answers at 127\.0\.0\.1:9 \(.*\); the node must be reachable.*",
        how={"part": {"endpoint": "remote://127.0.0.1:9?sha256=" + "A" * 43}},
        options=ON_1,
    ),
    "credential refused": End(
        Exit.NOT_PERMITTED,
        "SessionRefused",
        "aliquot: the program has ended because the server refuses the session: .*",
        how={"ticket": {"credential": "0" * 64}},
        options=ON_1,
    ),
    "server killed": End(
        Exit.UNAVAILABLE,
        "SessionLost",
        LOST.format("the process that served the lease has ended"),
        Place.kill_server,
        options=ON_1,
    ),
    "connection stuck": End(OWN, how={"hangs_for_good": False}, options=ON_1),
}
ON_NODE_2 = {
    "preempted": End(
        Exit.LEASE_LOST, "SessionLeaseEnded", ended("PREEMPTED"), claimed, options=("--preemptible", *ON_2)
    ),
    "drained": End(Exit.LEASE_LOST, "SessionLeaseEnded", ended("DRAINED"), drained, options=ON_2),
    "node lost": End(
        Exit.UNAVAILABLE, "SessionLost", LOST.format("nobody answers at .*, for 30 s"), node_lost, options=ON_2
    ),
}
ENDS = COORDINATOR | ON_NODE_1 | ON_NODE_2


@pytest.fixture(scope="module")
def local() -> Iterator[LocalPool]:
    """Two nodes, of which one is lost."""
    settings = {"ALIQUOT_AGENT_HOSTING_SERVICES": "remote", "ALIQUOT_AGENT_POLL_HEALTH": "300ms"}
    with real_pool(nodes=2, gpus=2, settings=settings) as pool:
        yield pool


@pytest.fixture(scope="module")
def all_ended(
    local: LocalPool, run_remote: Run, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, subprocess.CompletedProcess[str]]:
    """What became of each program."""
    with local.connect() as pool, ThreadPoolExecutor(5) as lanes, ThreadPoolExecutor() as programs:
        pool.admin.apply(Declarations(tenants=(TenantSpec("default"), TenantSpec("poor"))))
        token = tmp_path_factory.mktemp("ann") / "token"
        token.touch(0o600)
        token.write_text(pool.access.issue_token("ann", grants=[RoleGrant(Role.USER)]).token)

        def end(name: str) -> subprocess.CompletedProcess[str]:
            end, folder = ENDS[name], tmp_path_factory.mktemp("program")
            more = {"ALIQUOT_TOKEN_FILE": str(token)} if name == "token revoked" else {}
            arguments = ["-c", PROGRAM, str(folder), json.dumps(end.how)]
            program = programs.submit(run_remote, *arguments, gpu=end.gpu, options=end.options, **more)
            running = folder / "running"
            eventually(lambda: program.done() or running.exists())
            if running.exists():
                lease_id, pid = json.loads(running.read_text())
                end.happens(Place(local, pool, lease_id, pid, folder))
            return program.result()

        done = {name: end(name) for name in COORDINATOR}
        local.start_coordinator()
        local.wait_ready()

        def one_after_the_other() -> dict[str, subprocess.CompletedProcess[str]]:
            found = {}
            for name in ON_NODE_2:  # each takes the whole node
                found[name] = end(name)
                pool.uncordon(node_id(pool, "node-2"))
            return found

        on_node_2 = lanes.submit(one_after_the_other)
        return done | dict(zip(ON_NODE_1, lanes.map(end, ON_NODE_1), strict=True)) | on_node_2.result()


@pytest.mark.timeout(900)
def test_an_end_is_one_sentence_and_a_code(
    all_ended: dict[str, subprocess.CompletedProcess[str]], subtests: pytest.Subtests
) -> None:
    """One test: as one for each end they would play all ends in each process of tests that gets one of them."""
    for name, end in ENDS.items():
        with subtests.test(name):
            done = all_ended[name]
            granted, *lines = done.stderr.splitlines()
            assert " of A100-40 with " in granted
            said = [
                line
                for line in lines
                if not re.match(r"aliquot: connecting to|aliquot: the lease ends in|leases can't be kept alive", line)
            ]
            assert said[: bool(end.sees)] == [end.sees] * bool(end.sees), done.stderr
            sentences = said[bool(end.sees) :]
            assert re.fullmatch(end.said, "\n".join(sentences)), done.stderr
            assert done.returncode == end.code, done.stderr
