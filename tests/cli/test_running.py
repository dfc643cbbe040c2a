"""run and exec: programs inside leases, with their exit codes, signals and terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from aliquot.cli._exits import Exit
from tests.cli.conftest import PROGRAM, Cli
from tests.polling import eventually

BURN = [sys.executable, "-m", "aliquot.simgpu.burn"]


@pytest.mark.parametrize("code", [0, 7])
def test_the_exit_code_is_the_programs(program: Cli, cli: Cli, code: int) -> None:
    ran = program("run", "--gpu", "0.25,4Gi", "--", "sh", "-c", f"echo $CUDA_VISIBLE_DEVICES; exit {code}")
    assert ran.code == code
    assert ran.out.startswith("GPU-")
    assert "0.25 of A100-40 with 4Gi (watchdog)" in ran.err
    eventually(lambda: cli("ls", "--json").document == {"leases": []})  # it is released, and ends a little later
    last = cli("ls", "--state", "ended", "--json").document["leases"][-1]
    assert (last["end_reason"], last["exit_code"]) == ("RELEASED", code)
    assert f"exit code {code}" in cli("get", last["lease_id"]).out


def test_a_program_that_a_signal_ends_leaves_the_code_that_shells_give(program: Cli, cli: Cli) -> None:
    ran = program("run", "--gpu", "0.25,1Gi", "--name", "by itself", "--", "sh", "-c", "kill -USR1 $$")
    assert ran.code == 128 + signal.SIGUSR1

    def ended() -> list[int]:
        found = cli("ls", "--state", "ended", "--json").document["leases"]
        return [lease["exit_code"] for lease in found if lease["name"] == "by itself"]

    assert eventually(ended) == [ran.code]


def test_a_job_does_not_get_the_tokens_of_its_user(
    program: Cli, cli: Cli, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = Path(env["ALIQUOT_TOKEN_FILE"]).read_text().strip()
    monkeypatch.delenv("ALIQUOT_TOKEN_FILE")
    monkeypatch.setenv("ALIQUOT_TOKEN", token)
    monkeypatch.setenv("OF_MINE", "kept")
    shows = ("--", "cat", "/proc/self/environ")
    ran = program("run", "--gpu", "0.25,1Gi", *shows)
    assert (ran.code, "OF_MINE=kept" in ran.out, "alq_" in ran.out) == (0, True, False)
    lease = cli("alloc", "0.25,1Gi", "--json").document
    secret = next(iter(Path(env["XDG_STATE_HOME"]).rglob(lease["lease_id"]))).read_text().strip()
    monkeypatch.setenv("ALIQUOT_LEASE_SECRET", secret)
    ran = program("exec", "--lease", lease["lease_id"], *shows)
    assert (ran.code, "OF_MINE=kept" in ran.out, "alq_" in ran.out, secret in ran.out) == (0, True, False, False)
    cli("release", lease["lease_id"])


def test_a_program_that_is_not_there(program: Cli) -> None:
    ran = program("run", "--gpu", "0.25", "--", "/nonexistent")
    assert ran.code == 127
    assert "No such file" in ran.err
    assert program("run", "--gpu", "0.25").code == Exit.USAGE


def test_it_is_said_when_the_watchdog_stopped_it(program: Cli) -> None:
    ran = program("run", "--gpu", "0.25,1Gi", "--", *BURN, "--bytes", "512Mi", "--grow", "1Gi", "--step-seconds", "0.3")
    assert ran.code == 128 + signal.SIGTERM
    assert "stopped by the watchdog" in ran.err
    assert "over its limit" in ran.err


def test_what_a_program_really_holds_is_seen_from_anywhere(cli: Cli, env: dict[str, str]) -> None:
    command = [*PROGRAM, "run", "--gpu", "0.25,4Gi", "--", *BURN, "--bytes", "1Gi", "--seconds", "120"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
        try:
            deadline = time.monotonic() + 60
            while True:
                found = [part for lease in cli("ls", "--json").document["leases"] for part in lease["slices"]]
                if found and (found[0]["observed_bytes"] or 0) >= 1 << 30:
                    break
                assert time.monotonic() < deadline, found
                time.sleep(0.2)
            assert found[0]["observed_bytes"] < found[0]["memory_bytes"]
            assert found[0]["observed_ms"] >= found[0]["since_ms"]
            lease_id = found[0]["slice_id"].partition(".")[0]
            assert "USED" in cli("ls").out
            assert "USED" in cli("get", lease_id).out
        finally:
            running.terminate()


def test_it_is_said_when_the_lease_was_taken_away(cli: Cli, env: dict[str, str]) -> None:
    command = [*PROGRAM, "run", "--gpu", "0.25", "--time-limit", "1s", "--grace", "1s", "--", "sleep", "60"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 128 + signal.SIGTERM
    assert "TIME_LIMIT" in ran.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_signals_reach_the_program(env: dict[str, str], number: signal.Signals) -> None:
    catches = f"trap 'echo caught; exit 9' {number.name.removeprefix('SIG')}; echo ready; while :; do sleep 0.1; done"
    command = [*PROGRAM, "run", "--gpu", "0.25", "--", "sh", "-c", catches]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        running.send_signal(number)
        assert running.stdout.read() == "caught\n"
        assert running.wait(30) == 9


def test_a_program_that_reads_integers_may_have_its_devices_by_number(program: Cli) -> None:
    told = ("--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES")
    usual, numbered = program("run", "--gpu", "1", *told), program("run", "--gpu", "1", "--cuda-ordinals", *told)
    assert len(set(usual.out.split())) == 1
    number, uuid = numbered.out.split()
    assert number.isdigit()
    assert uuid.startswith("GPU-")


def test_an_interrupted_wait_withdraws_the_request(cli: Cli, env: dict[str, str]) -> None:
    cli("alloc", "2x1", "--gang", "2")
    with subprocess.Popen(
        [*PROGRAM, "run", "--gpu", "0.5", "--", "true"], stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr is not None
        assert "waiting" in running.stderr.readline()
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == Exit.INTERRUPTED
    assert cli("ls", "--state", "queued", "--json").document == {"leases": []}


def test_no_agent_here_is_a_clear_refusal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALIQUOT_AGENT_SOCKET", "/nonexistent/agent.sock")
    refused = cli("run", "--gpu", "0.25", "--json", "--", "true")
    assert (refused.code, refused.error["reason"]) == (Exit.UNAVAILABLE, "AGENT_UNREACHABLE")
    assert "no agent" in refused.error["message"]


def test_only_a_signal_that_a_program_can_be_told_by_is_a_stop_signal(cli: Cli) -> None:
    for name in ("KILL", "SIGSTOP", "CHLD", "10"):
        refused = cli("run", "--gpu", "0.25", "--stop-signal", name, "--", "true")
        assert (refused.code, "KILL follows by itself" in refused.err) == (Exit.USAGE, True)


def test_another_node_is_a_clear_refusal(cli: Cli, env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALIQUOT_AGENT_SOCKET", env["ALIQUOT_AGENT_SOCKET"].split(os.pathsep)[0])
    refused = cli("run", "--gpu", "0.25", "--node", "node-2", "--json", "--", "true")
    assert (refused.code, refused.error["reason"]) == (Exit.REFUSED, "REMOTE_EXECUTION")
    lease = cli("alloc", "0.25", "--node", "node-2", "--json").document
    refused = cli("exec", "--lease", lease["lease_id"], "--json", "--", "true")
    assert (refused.code, refused.error["reason"]) == (Exit.REFUSED, "REMOTE_EXECUTION")


def test_exec_joins_a_standing_lease(cli: Cli, program: Cli) -> None:
    lease = cli("alloc", "0.25,4Gi", "--json").document
    ran = program("exec", "--lease", lease["lease_id"], "--", "sh", "-c", "echo $ALIQUOT_LEASE_ID; exit 5")
    assert (ran.code, ran.out) == (5, f"{lease['lease_id']}\n")
    assert cli("get", lease["lease_id"], "--json").document["state"] == "ACTIVE"


def test_a_container_of_a_lease_gets_its_flags(cli: Cli, program: Cli) -> None:
    lease = cli("alloc", "0.25,4Gi", "--json").document
    ran = program("exec", "--lease", lease["lease_id"], "--print-docker")
    assert ran.code == 0, ran
    flags = shlex.split(ran.out)
    assert flags[:2] == ["--gpus", f'"device={lease["slices"][0]["device_uuid"]}"']
    variables = [value for flag, value in pairwise(flags) if flag == "--env"]
    assert f"ALIQUOT_LEASE_ID={lease['lease_id']}" in variables
    own = program("exec", "--lease", lease["lease_id"], "--", "cat", "/proc/self/cgroup").out
    if lease["lease_id"] in own:
        assert f"0::{flags[flags.index('--cgroup-parent') + 1]}\n" in own


def test_exec_needs_the_secret(cli: Cli, program: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    lease = cli("alloc", "0.25,4Gi", "--json").document
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "somebody-else"))
    unknown = program("exec", "--json", "--lease", lease["lease_id"], "--", "true")
    assert (unknown.code, unknown.error["reason"]) == (Exit.NOT_FOUND, "SECRET_NOT_FOUND")
    monkeypatch.setenv("ALIQUOT_LEASE_SECRET", "guessed")
    wrong = program("exec", "--json", "--lease", lease["lease_id"], "--", "true")
    assert (wrong.code, wrong.error["reason"]) == (Exit.REFUSED, "WRONG_SECRET")


def test_a_held_lease_goes_with_the_command(cli: Cli, env: dict[str, str]) -> None:
    def listed() -> set[str]:
        return {lease["lease_id"] for lease in cli("ls", "--json").document["leases"]}

    # As a login has it: a shell's background jobs, and what they start, are deaf to this signal.
    alloc = ["env", "--default-signal=INT", *PROGRAM, "alloc", "0.25", "--hold", "--json"]
    with subprocess.Popen(alloc, stdout=subprocess.PIPE) as holding:
        try:
            assert holding.stdout is not None
            lease_id = json.loads(b"".join(iter(holding.stdout.readline, b"}\n")) + b"}")["lease_id"]
            assert lease_id in listed()
            holding.send_signal(signal.SIGINT)
            assert holding.wait(60) == 0
        finally:
            holding.kill()
    eventually(lambda: lease_id not in listed())


class Terminal:
    """A pseudo-terminal with `aliquot` in its foreground, as a person's shell would start it."""

    def __init__(self, *command: str) -> None:
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            # As a login has them, whatever the tests themselves were started by.
            for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
                signal.signal(number, signal.SIG_DFL)
            os.execvp(command[0], command)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def await_text(self, text: str, timeout_s: float = 30) -> None:
        deadline = time.monotonic() + timeout_s
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            ready, _, _ = select.select([self._master], [], [], 0.1)
            with contextlib.suppress(OSError):
                self.seen += os.read(self._master, 4096).decode(errors="replace") if ready else ""

    def code(self) -> int:
        with contextlib.suppress(OSError):
            while part := os.read(self._master, 4096):
                self.seen += part.decode(errors="replace")
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._master)


@pytest.fixture
def terminal(env: dict[str, str]) -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for each in opened:
        each.close()


def test_the_program_owns_the_terminal(terminal: list[Terminal]) -> None:
    asks = "import sys; print('name?', flush=True); print('hello', input()); sys.exit(4)"
    session = Terminal(*PROGRAM, "run", "--gpu", "0.25", "--", sys.executable, "-c", asks)
    terminal.append(session)
    session.await_text("name?")
    session.type("Ada\n")
    session.await_text("hello Ada")
    assert session.code() == 4


def test_ctrl_c_goes_to_the_program(terminal: list[Terminal]) -> None:
    waits = "trap 'echo caught; exit 3' INT; echo ready; while :; do sleep 0.1; done"
    session = Terminal(*PROGRAM, "run", "--gpu", "0.25", "--", "sh", "-c", waits)
    terminal.append(session)
    session.await_text("ready")
    session.type("\x03")
    session.await_text("caught")
    assert session.code() == 3


def test_ctrl_z_stops_both_and_fg_goes_on(terminal: list[Terminal]) -> None:
    session = Terminal("bash", "--norc", "-i")
    terminal.append(session)
    # The quotes inside words keep what is typed from looking like what is answered.
    loops = "trap 'echo aga''in' CONT; echo rea''dy; while :; do sleep 0.1; done"
    # Not sh, which may vfork: if the stop comes just then, its child stops, and it waits for that child for ever.
    session.type(" ".join([*PROGRAM, "run", "--gpu", "0.25", "--", "bash", "-c", f'"{loops}"']) + "\n")
    session.await_text("ready")
    session.type("\x1a")
    session.await_text("unless they go on")
    session.await_text("Stopped")
    session.type("fg; echo co''de $?\n")
    session.await_text("again")
    session.type("\x03")
    session.await_text("code 130")


ENDS = {"restart": "trap 'echo saved >> \"$1\"; exit 3' USR1", "signal": ":", "none": "trap 'exit 3' TERM"}
"""What a program does when it is told to end, by what `run` does on a move."""


@pytest.mark.parametrize("word", ENDS)
def test_a_program_follows_a_move_of_its_lease_where_it_is_told_to(
    cli: Cli, env: dict[str, str], tmp_path: Path, word: str
) -> None:
    starts, hooks = tmp_path / "starts", tmp_path / "hooks"
    script = (
        f'{ENDS[word]}; echo "$CUDA_VISIBLE_DEVICES" >> {starts}; [ "$(wc -l < {starts})" -lt 2 ] || exit 5; '
        "while :; do sleep 0.1; done"
    )
    options = ["--before-move", f"echo before >> {hooks}", "--after-move", f"echo after >> {hooks}", "--movable"]
    if word == "restart":
        options += ["--stop-signal", "SIGUSR1"]
    command = [*PROGRAM, "run", "--gpu", "1", "--on-move", word, *options, "--", "sh", "-c", script, "sh", str(hooks)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        try:
            eventually(lambda: starts.exists() and len(starts.read_text().split()) == 1)
            (lease,) = cli("ls", "--json").document["leases"]
            node = lease["slices"][0]["node_name"]
            now = datetime.now(UTC).replace(tzinfo=None)
            window = [
                *("maintenance", "add", "away", "--node", node, "--lead", "0s"),
                *("--start", now.isoformat(timespec="seconds")),
                *("--end", (now + timedelta(hours=1)).isoformat(timespec="seconds")),
            ]
            added = cli(*window)
            assert added.code == 0, added.err
            _, said = running.communicate(timeout=120)
        finally:
            running.terminate()
            cli("maintenance", "rm", "away")
    devices = starts.read_text().split()
    if word == "none":
        assert (running.returncode, len(devices), hooks.exists()) == (3, 1, False)
    else:
        assert (running.returncode, len(devices), len(set(devices))) == (5, 2, 2), said
        assert hooks.read_text().split() == [*(["saved"] if word == "restart" else []), "before", "after"]
        assert "moved: the program is started again" in said
    eventually(lambda: cli("ls", "--json").document == {"leases": []})
