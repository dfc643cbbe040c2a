"""Signals go to whom they are meant for, or to nobody."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aliquot.agent.core.model import Holder, ProcessKey
from aliquot.agent.processes import proc as processes
from aliquot.agent.processes import signals
from aliquot.agent.processes.signals import Outcome, Signaller, Target
from tests.agent.harness import until

LEASE = Holder("l-1", 1, 0)
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts processes that end with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def do(*command: str) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(command or ["sleep", "60"]))
        return started[-1]

    yield do
    for process in started:
        process.kill()
        process.wait()


def signaller(*, belongs: bool = True, held: bool = True) -> Signaller:
    return Signaller(lambda pid, holder: belongs, lambda holder: held)


def key(process: subprocess.Popen[bytes]) -> ProcessKey:
    found = processes.key_of(process.pid)
    assert found is not None
    return found


def test_a_process_of_the_lease_gets_it_and_the_audit_log_says_so(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    process = start()
    with caplog.at_level(logging.INFO, "aliquot.agent.audit"):
        assert signaller().send(Target(key(process), LEASE, "over its limit"), signal.SIGTERM) is Outcome.SENT
    assert process.wait(timeout=10) == -signal.SIGTERM
    (record,) = caplog.records
    assert record.name == "aliquot.agent.audit"
    said = vars(record)
    assert (said["pid"], said["lease_id"], said["signal"], said["why"]) == (
        process.pid,
        "l-1",
        "SIGTERM",
        "over its limit",
    )


def test_the_same_signal_is_not_sent_again_and_again(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    process = start("sh", "-c", "trap '' TERM; exec sleep 60")
    until(lambda: _name_of(process.pid) == "sleep", "it ignores the signal")
    mine = signaller()
    target = Target(key(process), LEASE, "over")
    with caplog.at_level(logging.INFO, "aliquot.agent.audit"):
        outcomes = [mine.send(target, signal.SIGTERM) for _ in range(50)]
    assert outcomes == [Outcome.SENT, *[Outcome.REPEATED] * 49]
    assert len(caplog.records) == 1
    assert mine.send(target, signal.SIGKILL) is Outcome.SENT


def test_a_reused_pid_is_spared(start: Start) -> None:
    process = start()
    other = ProcessKey(process.pid, key(process).start_ticks - 1)
    assert signaller().send(Target(other, LEASE, "over"), signal.SIGKILL) is Outcome.NOT_THE_SAME
    assert process.poll() is None


def test_who_left_the_lease_or_whose_lease_has_ended_is_spared(start: Start) -> None:
    process = start()
    target = Target(key(process), LEASE, "over")
    assert signaller(belongs=False).send(target, signal.SIGKILL) is Outcome.NOT_ITS_LEASE
    assert signaller(held=False).send(target, signal.SIGKILL) is Outcome.NOT_HELD
    assert process.poll() is None


def test_the_ended_are_not_signalled(start: Start) -> None:
    process = start("true")
    target = Target(key(process), LEASE, "over")
    until(lambda: not processes.alive(target.process), "it ended")
    assert signaller().send(target, signal.SIGTERM) is Outcome.GONE, "a zombie"
    process.wait()
    assert signaller().send(target, signal.SIGTERM) is Outcome.GONE, "reaped"


def test_the_agent_what_is_above_it_and_init_are_never_signalled() -> None:
    for pid in (1, os.getpid(), os.getppid()):
        found = processes.key_of(pid)
        assert found is not None
        assert signaller().send(Target(found, LEASE, "mistaken"), signal.SIGTERM) is Outcome.PROTECTED


@pytest.mark.root("to become somebody without rights")
def test_without_the_right_to_it_is_an_outcome_and_not_a_crash(start: Start) -> None:
    process = start()
    program = (
        "import os, signal, sys\n"
        "from aliquot.agent.core.model import Holder, ProcessKey\n"
        "from aliquot.agent.processes.signals import Signaller, Target\n"
        "from aliquot.agent.processes import proc as processes\n"
        "processes.key_of(1)  # imports what could not be read any more as somebody else\n"
        "os.setgroups([]); os.setresgid(54321, 54321, 54321); os.setresuid(54321, 54321, 54321)\n"
        "s = Signaller(lambda p, h: True, lambda h: True)\n"
        "k = ProcessKey(int(sys.argv[1]), int(sys.argv[2]))\n"
        "print(s.send(Target(k, Holder('l-1', 1, 0), 'over'), signal.SIGTERM).name)"
    )
    mine = key(process)
    ran = subprocess.run(
        [sys.executable, "-c", program, str(mine.pid), str(mine.start_ticks)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.strip() == "FORBIDDEN"
    assert process.poll() is None


def test_signals_can_be_sent_safely_here() -> None:
    assert signals.PidFds().available() == ""


def test_a_command_with_blanks_and_brackets_in_its_name_is_read(tmp_path: Path, start: Start) -> None:
    name = tmp_path / "a) R 1 (b"
    shutil.copy("/bin/sleep", name)
    process = start(str(name), "60")
    until(lambda: _name_of(process.pid) == "a) R 1 (b", "the program runs")
    facts = processes.facts_of(process.pid)
    assert facts is not None
    assert facts.parent_pid == os.getpid()
    assert processes.alive(facts.key)


def test_a_process_whose_first_thread_has_ended_is_alive(start: Start) -> None:
    program = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "ctypes.CDLL(None).syscall(60, 0)"  # exit of this thread alone
    )
    process = start(sys.executable, "-c", program)

    def first_thread_ended() -> bool:
        text = Path(f"/proc/{process.pid}/stat").read_text()
        return text.rpartition(")")[2].split()[0] == "Z"

    until(first_thread_ended, "the first thread has ended")
    assert processes.alive(key(process))


def _name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()
