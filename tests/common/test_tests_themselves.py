"""What holds of every test: what it starts ends with it, and a busy machine makes it slow, not false."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import keeper
from tests.polling import eventually
from tests.unhurried import Allowance

ROOT = Path(__file__).resolve().parents[2]
STARTER = """
import subprocess, sys, time
from tests import keeper
held = keeper.watch()
# A session of its own, and a parent that ends at once: as far away as what tests start ever gets.
subprocess.run(["sh", "-c", "setsid sleep 600 & setsid sleep 600 &"])
print(keeper.mark(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_what_a_killed_process_of_tests_has_started_is_ended(how: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True, cwd=ROOT) as tests:
        assert tests.stdout is not None
        mark = tests.stdout.readline().strip()
        assert eventually(lambda: len(keeper.marked(mark)) == 2)
        tests.send_signal(how)
    eventually(lambda: not keeper.marked(mark))


def test_whatever_this_process_starts_is_marked() -> None:
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as started:
        assert eventually(lambda: started.pid in keeper.marked(os.environ[keeper.VARIABLE]))
        started.kill()


def test_seconds_of_a_busy_machine_count_for_less() -> None:
    now_s, slow = [0.0], [1.0]
    allowance = Allowance(100.0, lambda: now_s[0], lambda: slow[0])
    now_s[0] = 90.0
    assert not allowance.over()
    slow[0] = 8.0
    now_s[0] = 160.0
    assert not allowance.over()
    now_s[0] = 171.0
    assert allowance.over()


HANGING = """
import time
def test_hangs():
    time.sleep(600)
def test_goes_on():
    pass
"""


def test_a_test_that_hangs_fails_and_the_others_go_on(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text(HANGING)
    command = ["-m", "pytest", "-q", "--timeout=1", "-p", "tests.unhurried", "-p", "no:cacheprovider", "test_two.py"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "most recent call first" in done.stdout  # where each thread was
