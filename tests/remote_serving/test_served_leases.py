"""Leases that are used from elsewhere, from end to end: a coordinator, an agent, the process that serves, programs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

from aliquot import remote
from aliquot.cli.localpool import LocalPool
from aliquot.client import HeldLease, LeaseState, Pool, Serve
from aliquot.common.errors import SecurityError
from aliquot.remote.core.endpoint import parse
from aliquot.remote.ticket import Ticket
from aliquot.remote.wire.client import Notice, Opening, RemoteChannel, open_channel
from tests.polling import eventually

SMALL = "0.25(A100),4Gi"


def serve(pool: Pool, gpu: str = SMALL, **options: object) -> HeldLease:
    return pool.lease(gpu, serve=Serve.REMOTE, **options).__enter__()  # type: ignore[arg-type]


def ask(channel: RemoteChannel, frame: bytes) -> bytes:
    channel.send(frame)
    return channel.receive()


def test_a_program_elsewhere_uses_a_part(local: LocalPool, pool: Pool) -> None:
    with remote.acquire("2x0.25(A100),4Gi", connection=pool) as session:
        assert len(session.parts) == 2
        first, second = (session.open(index, engine="memory") for index in range(2))
        pid, ordinal, uuid = ask(first, b"who").split()
        assert ordinal == b"0"
        assert ask(second, b"who").split()[:2] == [pid, b"1"], "one process serves both"
        assert uuid != ask(second, b"who").split()[2]
        first.send(b"put a hello")
        assert ask(first, b"get a") == b"hello"
        assert ask(second, b"get a") == b"nothing", "sessions share nothing"
        lease_id = session.lease_id
        series = f'aliquot_served_ops_total{{lease_id="{lease_id}",member="0",node="{local.nodes[0].name}"}} 14.0'

        def scraped() -> str:
            with urllib.request.urlopen(local.nodes[0].metrics, timeout=5) as page:
                return str(page.read().decode())

        assert local.nodes[0].metrics
        eventually(lambda: series in scraped())
        eventually(lambda: f'sessions{{lease_id="{lease_id}"' in scraped())
    eventually(lambda: pool.get(lease_id).state is LeaseState.ENDED)
    with pytest.raises(remote.SessionClosed):
        first.send(b"who")


def test_a_lease_of_another_is_not_reached(pool: Pool) -> None:
    mine, others = serve(pool), serve(pool)
    endpoint = parse(mine.slices[0].endpoint)
    foreign = Ticket.of(others.info)
    right = Ticket.of(mine.info)
    for lease_id, epoch, tenant, credential in (
        (mine.lease_id, right.lease_epoch, right.tenant, foreign.credential),
        (foreign.lease_id, foreign.lease_epoch, foreign.tenant, foreign.credential),
        (mine.lease_id, right.lease_epoch, right.tenant, mine.info.secret),
        (mine.lease_id, right.lease_epoch + 1, right.tenant, right.credential),
        (mine.lease_id, right.lease_epoch, "somebody", right.credential),
    ):
        wrong = Opening(lease_id, epoch, tenant, mine.slices[0].slice_id, credential, "memory")
        with pytest.raises(remote.SessionRefused):
            open_channel(endpoint, wrong)
    for lease in (mine, others):
        lease.release()


def test_a_process_that_dies_is_an_error_and_is_started_again(pool: Pool) -> None:
    lease = serve(pool)
    with remote.connect(lease) as session:
        channel = session.open(engine="memory")
        ask(channel, b"who")
        channel.send(b"put a b")
        eventually(lambda: channel.acknowledged == 2)
        before = lease.slices[0].endpoint
        channel.send(b"die")
        with pytest.raises(remote.SessionLost, match="its session is lost") as caught:
            channel.receive()
        assert caught.value.acknowledged == 2

        def served_again() -> bool:
            endpoint = lease.refresh().slices[0].endpoint
            return bool(endpoint) and endpoint != before

        eventually(served_again)
        assert ask(session.open(engine="memory"), b"get a") == b"nothing"
    lease.release()


def test_preemption_reaches_the_program_as_a_notice_then_as_an_error(pool: Pool) -> None:
    lease = serve(pool, "2x1(A100)", preemptible=True, grace_s=3)
    heard: list[Notice] = []
    with remote.connect(lease, on_notice=heard.append) as session:
        channel = session.open(engine="memory")
        assert ask(channel, b"echo before") == b"before"
        claim = threading.Thread(target=lambda: pool.lease("1(A100)", priority=100).__enter__().release())
        claim.start()
        eventually(lambda: bool(heard))
        assert 0 < heard[0].grace_s <= 3
        assert ask(channel, b"echo still") == b"still", "until the grace is over it is served"
        with pytest.raises(remote.SessionLeaseEnded) as caught:
            channel.receive()
        assert caught.value.end_reason == "PREEMPTED"
        assert len(heard) == 1
        claim.join(60)
    lease.release()


def test_release_by_somebody_else_is_told_as_such(pool: Pool) -> None:
    lease = serve(pool, grace_s=2)
    with remote.connect(lease) as session:
        channel = session.open(engine="memory")
        pool.release(lease.lease_id, reason="an administrator")
        with pytest.raises(remote.SessionLeaseEnded) as caught:
            channel.receive()
        assert caught.value.end_reason in {"RELEASED", "CANCELLED"}
        with pytest.raises(remote.SessionLeaseEnded):
            session.open(engine="memory")


def test_an_agent_that_starts_again_is_not_noticed(local: LocalPool, pool: Pool) -> None:
    lease = serve(pool)
    with remote.connect(lease) as session:
        channel = session.open(engine="memory")
        channel.send(b"put a kept")
        agent = local.nodes[0].agent
        agent.process.kill()  # type: ignore[union-attr]
        agent.process.wait()  # type: ignore[union-attr]
        assert ask(channel, b"get a") == b"kept"
        local.tend()
        assert ask(channel, b"get a") == b"kept"
        assert parse(lease.refresh().slices[0].endpoint).port > 0
    lease.release()


SCRIPT = """
import os, sys
from aliquot import remote
with remote.connect() as session:
    channel = session.open(engine="memory")
    channel.send(b"echo " + " ".join(sys.argv[1:]).encode())
    print(channel.receive().decode(), len(session.parts))
    secret = [text for text in [*sys.argv, *os.environ.values()] if session._ticket.credential in text]
    sys.exit(7 if not secret else 1)
"""


def test_a_program_is_run_here_on_a_gpu_elsewhere(environment: dict[str, str], pool: Pool) -> None:
    command = [sys.executable, "-m", "aliquot.cli", "run", "--remote", "--gpu", SMALL]
    done = subprocess.run(
        [*command, "--", sys.executable, "-c", SCRIPT, "hello"],
        env=environment | {"PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, "hello 1\n"), done.stderr
    assert not [lease for lease in pool.leases() if lease.state is LeaseState.ACTIVE]


def test_a_signal_reaches_the_program_and_its_code_comes_back(environment: dict[str, str], tmp_path: Path) -> None:
    script = f"import pathlib, time; pathlib.Path({str(tmp_path / 'up')!r}).touch(); time.sleep(600)"
    command = [sys.executable, "-m", "aliquot.cli", "run", "--remote", "--gpu", SMALL]
    program = subprocess.Popen(
        [*command, "--", sys.executable, "-c", script], env=environment, stdout=subprocess.DEVNULL
    )
    eventually((tmp_path / "up").exists)
    program.send_signal(signal.SIGTERM)
    assert program.wait(60) == 128 + signal.SIGTERM


def test_a_ticket_that_others_can_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = tmp_path / "ticket.json"
    Ticket("l-1", 1, "t", "c", ()).write(ticket)
    assert Ticket.read(ticket).lease_id == "l-1"
    assert "'c'" not in repr(Ticket.read(ticket))
    ticket.chmod(0o644)
    monkeypatch.setenv("ALIQUOT_REMOTE_TICKET", str(ticket))
    with pytest.raises(SecurityError, match="others can read"):
        remote.connect()
    ticket.write_text("{}")  # nobody is told to change the mode of a file that is none of ours
    with pytest.raises(remote.SessionError, match="says of no lease"):
        remote.connect()
    monkeypatch.delenv("ALIQUOT_REMOTE_TICKET")
    with pytest.raises(remote.SessionError, match="has no lease"):
        remote.connect()


HOLDS = """
import os, pathlib, sys, time
from aliquot import remote
channel = remote.connect().open(engine="memory")
channel.send(b"who")
serving = channel.receive().split()[0].decode()
pathlib.Path(sys.argv[1]).write_text(f"{os.getpid()} {serving}")
time.sleep(600)
"""


def test_a_program_that_is_killed_leaves_nothing(environment: dict[str, str], pool: Pool, tmp_path: Path) -> None:
    told = tmp_path / "told"
    command = [sys.executable, "-m", "aliquot.cli", "run", "--remote", "--gpu", SMALL]
    command += ["--", sys.executable, "-c", HOLDS, str(told)]
    runner = subprocess.Popen(command, env=environment | {"PYTHONPATH": ""}, stdout=subprocess.DEVNULL)
    eventually(lambda: told.exists() and told.read_text())
    program, serving = (int(word) for word in told.read_text().split())
    os.kill(program, signal.SIGKILL)
    assert runner.wait(60) == 128 + signal.SIGKILL
    eventually(lambda: not Path(f"/proc/{serving}").exists())
    eventually(lambda: not [lease for lease in pool.leases() if lease.state is not LeaseState.QUEUED])
