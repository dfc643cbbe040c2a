"""A local pool as a person has it: up in the background, parts that die, down again, and up with what was there."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import httpx
import pytest

from aliquot import simgpu
from aliquot.cli._exits import Exit
from aliquot.cli._out import Out
from aliquot.cli.commands import pools
from aliquot.cli.localpool import Layout, PoolRecord
from aliquot.cli.localpool.record import ProcessId
from aliquot.client import NodeState, Pool, PoolError
from aliquot.client.credentials import CredentialsFile
from aliquot.common.errors import ConfigError
from tests.cli.conftest import PROGRAM
from tests.fleet_columns import read_snapshot
from tests.polling import eventually

WITH_PAGE = ["--nodes", "1", "--gpus", "1", "--listen", "127.0.0.1:0", "--metrics-port", "0", "--tiers", "watchdog"]
LIBRARY_MISMATCH = 18
UP = [*WITH_PAGE, "--no-console"]
pytestmark = pytest.mark.usefixtures("without_pytorch")


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A state folder with a short name; whatever still runs in it is stopped. The user has no settings yet."""
    folder = Path(tempfile.mkdtemp(prefix="aq-"))
    for name in ("ALIQUOT_COORDINATOR", "ALIQUOT_AGENT_SOCKET", "ALIQUOT_TOKEN", "ALIQUOT_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield folder
    record = PoolRecord.read(Layout(folder))
    if record is not None:
        record.stop(10)
    shutil.rmtree(folder, ignore_errors=True)


def aliquot(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, timeout=120, check=False)


def up(root: Path, *more: str) -> Any:
    done = aliquot("up", "--detach", "--json", "--state-dir", str(root), *UP, *more)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_machine_without_a_gpu_is_told_so_before_anything_starts(root: Path) -> None:
    for more in ((), ("--detach",)):
        refused = aliquot("up", "--real", "--json", "--state-dir", str(root), *UP, *more)
        error = json.loads(refused.stderr)["error"]
        assert (refused.returncode, error["reason"]) == (Exit.FAILED, "NO_GPUS")
        assert "no GPU that could be leased: NVML" in error["message"]
        assert "aliquot doctor" in error["hint"]
    told = aliquot("up", "--real", "--state-dir", str(root), *UP)
    assert "doctor: driver: NVML" in told.stderr
    assert "Traceback" not in told.stderr
    assert not list(root.glob("**/*.log"))


def test_a_machine_with_gpus_is_told_how_many_can_be_leased(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the driver is simulated: whose scenario a pool of real GPUs would not be given."""
    simgpu.create(tmp_path / "machine", ["A100-40", "A100-40"])
    env = os.environ | simgpu.environment(tmp_path / "machine")
    monkeypatch.setattr(pools, "clean_environment", lambda extra: env | extra)
    pools._ask_doctor(Out())
    assert "doctor: 2 GPUs can be leased" in capsys.readouterr().err


def test_up_down_and_up_again_with_the_leases_of_before(root: Path) -> None:
    first = up(root)
    assert [node["name"] for node in first["nodes"]] == ["node-1"]
    made = aliquot("alloc", "0.5", "--json", "-c", first["coordinator"])
    lease_id = json.loads(made.stdout)["lease_id"]

    again = aliquot("up", "--json", "--state-dir", str(root), *UP)
    assert again.returncode == Exit.CONFLICT
    assert "is running" in json.loads(again.stderr)["error"]["message"]

    with Pool(first["coordinator"]) as pool:
        eventually(lambda: pool.get(lease_id).running)
    down = aliquot("down", "--json", "--state-dir", str(root))
    assert json.loads(down.stdout)["leases_held"] == [lease_id]  # whose programs run on
    assert {part["name"] for part in json.loads(down.stdout)["stopped"]} == {
        "supervisor",
        "coordinator",
        "agent of node-1",
    }
    assert aliquot("down", "--state-dir", str(root)).returncode == Exit.NOT_FOUND

    second = up(root)
    with Pool(second["coordinator"]) as pool:
        eventually(lambda: pool.get(lease_id).running)


def test_a_pool_that_others_reach_speaks_tls_and_its_owner_needs_no_step_more(root: Path) -> None:
    """Begun within the machine, and opened to others later."""
    up(root)
    assert aliquot("down", "--state-dir", str(root)).returncode == 0
    there = up(root, "--listen", "0.0.0.0:0")["coordinator"]
    assert there.startswith("127.0.0.1:")
    made = aliquot("alloc", "0.5", "--json", "-c", there)
    assert made.returncode == 0, made.stderr
    with pytest.raises(PoolError), Pool(there, token="", tls=None, timeout_s=2) as stranger:
        stranger.status()


def test_its_page_lets_its_owner_in_without_a_token(root: Path) -> None:
    done = aliquot("up", "--detach", "--state-dir", str(root), *WITH_PAGE)
    assert done.returncode == 0, done.stderr
    record = PoolRecord.read(Layout(root))
    assert record is not None
    assert record.console.startswith("http://127.0.0.1:")
    link = next(word for word in done.stdout.replace("\n", " ").split() if "#code=" in word)
    made = aliquot("console", record.console, "--json", "-c", record.coordinator)
    for url in (link, json.loads(made.stdout)["url"]):
        page, _, words = url.partition("#")
        opening = dict(parse_qsl(words))
        assert page == f"{record.console}/login"
        http = httpx.Client(base_url=f"{record.console}/api/v1", headers={"X-Aliquot-Console": "1"})
        with http:
            assert http.post("/session", json=opening).json()["principal"] == "admin"
            assert list(read_snapshot(http.get("/fleet").content).states) == [1]
            assert http.post("/session", json=opening).status_code == 401
    down = aliquot("down", "--json", "--state-dir", str(root))
    assert "console" in {part["name"] for part in json.loads(down.stdout)["stopped"]}
    assert not any(part.alive for part in record.parts)


def test_its_owner_is_its_administrator_while_it_is_up(root: Path) -> None:
    record = up(root)
    there = record["coordinator"]
    credentials = CredentialsFile.of(os.environ)
    assert json.loads(aliquot("whoami", "--json", "-c", there).stdout)["principal"] == "admin"
    revoked = json.loads(aliquot("access", "token", "revoke", "--principal", "admin", "--json", "-c", there).stdout)
    assert aliquot("whoami", "-c", there).returncode == Exit.NOT_LOGGED_IN
    assert aliquot("down", "--state-dir", str(root)).returncode == 0
    assert credentials.find([there]) is None

    # Nobody can lock its owner out: the coordinator's own socket gives another token.
    again = up(root)
    os.kill(again["supervisor"], signal.SIGKILL)
    who = json.loads(aliquot("whoami", "--json", "-c", again["coordinator"]).stdout)
    assert who["token_id"] not in {token["token_id"] for token in revoked["tokens"]}
    # A supervisor that was killed could not forget it; `down` does.
    assert credentials.find([again["coordinator"]]) is not None
    assert aliquot("down", "--state-dir", str(root)).returncode == 0
    assert credentials.find([again["coordinator"]]) is None


def test_parts_that_die_are_started_again(root: Path) -> None:
    record = up(root)
    with Pool(record["coordinator"], timeout_s=30) as pool:
        lease_id = pool.allocate("0.5", detached=True).lease_id
        for name in ("agent of node-1", "coordinator"):
            before = _part(root, name)
            os.kill(before.pid, signal.SIGKILL)
            _await_another(root, before)
            eventually(lambda: _ready(pool))
        assert pool.get(lease_id).running


def test_a_part_that_ends_again_and_again_or_can_not_start_takes_nothing_else_down(root: Path) -> None:
    record = up(root)
    scenario = next(root.glob("nodes/*.gpus"))
    with Pool(record["coordinator"], timeout_s=30) as pool:
        for name in ("agent of node-1", "coordinator", "agent of node-1", "coordinator"):
            before = _part(root, name)
            os.kill(before.pid, signal.SIGKILL)
            _await_another(root, before)
        with simgpu.Scenario(scenario) as gpus:
            gpus.fail("init", LIBRARY_MISMATCH)  # the driver was replaced underneath: the next agent can't open it
            before = _part(root, "agent of node-1")
            os.kill(before.pid, signal.SIGKILL)
            _await_another(root, before)
            assert list(pool.nodes()), "the coordinator answers"
            gpus.clear_faults()
        eventually(lambda: _ready(pool))
    assert _record(root).supervisor.pid == record["supervisor"]


def test_ctrl_c_stops_everything(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH")  # with all services that are installed here
    with subprocess.Popen(
        [*PROGRAM, "up", "--state-dir", str(root), *UP], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as running:
        assert running.stdout is not None
        assert "The pool is up." in running.stdout.readline()
        record = PoolRecord.read(Layout(root))
        assert record is not None
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0
    assert record.processes == ()
    assert PoolRecord.read(Layout(root)) is None


def test_what_a_killed_supervisor_left_is_stopped_by_down(root: Path) -> None:
    record = up(root)
    os.kill(record["supervisor"], signal.SIGKILL)
    eventually(lambda: len(_record(root).processes) == 2)
    down = aliquot("down", "--json", "--state-dir", str(root))
    assert len(json.loads(down.stdout)["stopped"]) == 2


def test_a_pool_that_cannot_start_says_why(root: Path) -> None:
    failed = aliquot("up", "--detach", "--json", "--state-dir", str(root), *UP, "--model", "ABACUS")
    assert failed.returncode == Exit.FAILED
    assert "ABACUS" in json.loads(failed.stderr)["error"]["message"]


def test_beside_another_a_pool_gets_ports_of_its_own(root: Path) -> None:
    host, _, port = pools.LISTEN.rpartition(":")
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # somebody listens there already, which is as good
            stack.enter_context(socket.create_server((host, int(port))))
        wanted = ("--nodes", "1", "--gpus", "1", "--no-console", "--tiers", "watchdog", "--metrics-port", "0")
        done = aliquot("up", "--detach", "--state-dir", str(root), *wanted)
    assert done.returncode == Exit.OK, done.stderr
    record = PoolRecord.read(Layout(root))
    assert record is not None
    assert record.coordinator != pools.LISTEN
    with Pool(record.coordinator) as pool:
        assert pool.status().granting


def test_what_the_pool_in_the_background_says_is_read_not_quoted(root: Path) -> None:
    done = aliquot("up", "--detach", "--state-dir", str(root), *UP, "--model", "nonsense")
    assert done.returncode == Exit.FAILED
    assert "nonsense" in done.stderr
    assert '{"error"' not in done.stderr


def test_a_path_too_long_for_a_socket() -> None:
    with pytest.raises(ConfigError, match="too long"):
        Layout(Path("/" + "x" * 120)).socket("node-1")


def test_a_process_is_more_than_its_number() -> None:
    own = ProcessId.of("me", os.getpid())
    assert own.alive
    assert not ProcessId("other", os.getpid(), own.started_ticks + 1).alive
    ProcessId("other", os.getpid(), own.started_ticks + 1).signal(signal.SIGKILL)


def _record(root: Path) -> PoolRecord:
    record = PoolRecord.read(Layout(root))
    assert record is not None
    return record


def _part(root: Path, name: str) -> ProcessId:
    return next((part for part in _record(root).parts if part.name == name), ProcessId(name, 0, 0))


def _await_another(root: Path, before: ProcessId) -> None:
    eventually(lambda: _part(root, before.name).pid not in {0, before.pid})


def _ready(pool: Pool) -> bool:
    try:
        return [node.state for node in pool.nodes()] == [NodeState.READY]
    except PoolError:
        return False
