"""Programs that go on without the terminal they were started in: a real server, its log, and another in its lease."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest

from aliquot.cli._exits import Exit
from aliquot.cli.commands import detaching
from tests.cli.conftest import PROGRAM, Cli
from tests.polling import eventually

SERVER = (sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1")
ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/")
SAY_DEVICES = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"


def address_in(cli: Cli, lease_id: str) -> str:
    return eventually(lambda: "".join(ADDRESS.findall(cli("logs", lease_id).out)[:1]))


def test_a_server_goes_on_and_another_program_uses_its_lease(program: Cli) -> None:
    begun = program("run", "--detach", "--gpu", "0.25,4Gi", "--name", "notebook", "--json", "--", *SERVER)
    assert begun.code == 0, begun.err
    lease_id = begun.document["lease_id"]
    assert os.getsid(begun.document["pid"]) == begun.document["pid"], "no terminal's end reaches it"
    address = address_in(program, lease_id)
    assert urllib.request.urlopen(address, timeout=10).status == 200
    inside = program("exec", "--lease", lease_id, "--", sys.executable, "-c", SAY_DEVICES)
    held = program("get", lease_id, "--json").document["slices"]
    assert inside.out.strip() == held[0]["device_uuid"]

    following = subprocess.Popen([*PROGRAM, "logs", "-f", lease_id], stdout=subprocess.PIPE, text=True)
    urllib.request.urlopen(f"{address}?the-last-request", timeout=10).close()
    assert program("release", "--wait", lease_id).code == 0
    told, _ = following.communicate(timeout=60)  # it ends with the program
    assert "the-last-request" in told
    with pytest.raises(OSError):
        urllib.request.urlopen(address, timeout=10)


def test_a_program_that_ends_gives_its_lease_back_and_leaves_its_log(program: Cli) -> None:
    begun = program(
        "run", "-d", "--gpu", "0.1", "--json", "--", sys.executable, "-c", "print('done'); raise SystemExit(3)"
    )
    lease_id = begun.document["lease_id"]
    assert "done\n" in program("logs", "--follow", lease_id).out
    lease = eventually(lambda: _ended(program, lease_id))
    assert lease["exit_code"] == 3


def _ended(program: Cli, lease_id: str) -> dict[str, object]:
    """The lease, once it has; else nothing."""
    lease: dict[str, object] = program("get", lease_id, "--json").document
    return lease if lease["state"] == "ENDED" else {}


def test_what_is_refused_is_told_where_it_was_typed(program: Cli) -> None:
    refused = program("run", "--detach", "--gpu", "1(H200)", "--", "true")
    assert refused.code == Exit.REFUSED
    assert "can never fit" in refused.err


def test_where_there_is_no_place_for_a_log_nothing_is_started_nor_held(program: Cli, env: Mapping[str, str]) -> None:
    state = Path(env["XDG_STATE_HOME"]) / "aliquot"
    state.mkdir(parents=True)
    (state / "logs").write_text("in the way")
    refused = program("run", "--detach", "--gpu", "0.1", "--name", "nowhere", "--", "true")
    assert refused.code == Exit.FAILED
    assert "File exists" in refused.err
    leases = program("ls", "--all", "--json").document["leases"]
    assert [lease["state"] for lease in leases if lease["name"] == "nowhere"] == ["ENDED"]


def test_only_what_was_detached_has_a_log(cli: Cli) -> None:
    unknown = cli("logs", "l-0000000000000", "--json")
    assert (unknown.code, unknown.error["reason"]) == (Exit.NOT_FOUND, "NO_LOG")


def test_a_log_is_bounded_and_followed_over_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detaching, "LOG_BYTES_MAX", 1000)
    path = tmp_path / "logs" / "l-1.log"
    source, sink = os.pipe()
    log = detaching._Log(path)
    copying = threading.Thread(target=log.copy, args=[source])
    copying.start()
    parts = detaching._parts(path, follow=True)
    seen = b""
    for number in range(400):
        line = b"line %03d\n" % number
        os.write(sink, line)
        while line not in seen:
            seen += next(parts)
    os.close(sink)
    copying.join()
    assert seen == b"".join(b"line %03d\n" % number for number in range(400))
    assert sum(file.stat().st_size for file in path.parent.iterdir()) <= 2000
    assert b"".join(parts) == b"", "nobody writes it any more"


def test_the_oldest_logs_go_but_for_those_that_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detaching, "LOGS_KEPT", 3)
    written = detaching._Log(tmp_path / "l-0.log")
    for number in range(1, 6):
        os.close(detaching._Log(tmp_path / f"l-{number}.log")._file)
        os.utime(tmp_path / f"l-{number}.log", (number, number))
    os.utime(tmp_path / "l-0.log", (0, 0))
    last = detaching._Log(tmp_path / "l-9.log")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["l-0.log", "l-4.log", "l-5.log", "l-9.log"]
    os.close(written._file)
    os.close(last._file)


def test_two_that_begin_at_once_may_take_the_same_log_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def taken_away(log: Path) -> bool:
        log.unlink()
        return False

    monkeypatch.setattr(detaching, "LOGS_KEPT", 2)
    monkeypatch.setattr(detaching, "_is_written", taken_away)
    for number in range(2):
        (tmp_path / f"l-{number}.log").touch()
    os.close(detaching._Log(tmp_path / "l-9.log")._file)
    assert len(list(tmp_path.iterdir())) == 2


def test_nobody_else_reads_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detaching, "LOG_BYTES_MAX", 1)
    source, sink = os.pipe()
    os.write(sink, b"the token of a notebook")
    os.close(sink)
    before = os.umask(0)
    try:
        detaching._Log(tmp_path / "logs" / "l-1.log").copy(source)
    finally:
        os.umask(before)
        os.close(source)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "logs").iterdir()}
    assert modes == {"l-1.log": 0o600, "l-1.log.1": 0o600}
    assert (tmp_path / "logs").stat().st_mode & 0o777 == 0o700
