"""The demonstration holds what it claims, and says so when it doesn't."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from aliquot.cli._out import Out
from aliquot.cli.demo.story import StepFailed, Story
from tests.cli.conftest import PROGRAM

pytestmark = pytest.mark.usefixtures("without_pytorch")


def test_the_whole_demonstration() -> None:
    done = subprocess.run([*PROGRAM, "demo", "--json"], capture_output=True, text=True, timeout=110, check=False)
    told = json.loads(done.stdout)
    assert [step["failure"] for step in told["steps"]] == [""] * 8
    assert (done.returncode, told["ok"]) == (0, True)
    tenants = {invoice["tenant"]: invoice["lines"] for invoice in told["invoices"]}
    assert set(tenants) == {"vision", "speech"}
    assert all(
        int(line["share_milli_ms"]) > 0 < int(line["memory_byte_ms"]) for lines in tenants.values() for line in lines
    )
    claims = [claim for step in told["steps"] for claim in step["claims"]]
    assert "greedy was stopped by the watchdog" in claims
    assert any(claim.startswith("hasty was denied more than its 6Gi") for claim in claims)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_one_that_is_stopped_leaves_nothing_running(number: signal.Signals, tmp_path: Path) -> None:
    root = tmp_path / "pool"
    # Below nohup signals are ignored, which programs inherit.
    command = ["env", "--default-signal", *PROGRAM, "demo", "--state-dir", str(root)]
    stopped = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert stopped.stdout is not None
    assert any("agent pid" in line for line in iter(stopped.stdout.readline, ""))
    assert _programs_of(root)
    stopped.send_signal(number)
    stopped.communicate(timeout=60)
    assert stopped.returncode == 130
    assert not _programs_of(root)


def _programs_of(root: Path) -> list[list[str]]:
    commands = (process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"]))
    return [command for command in commands if any(str(root) in word for word in command) and "demo" not in command]


def test_a_claim_that_does_not_hold_ends_the_story() -> None:
    story = Story(Out(as_json=True))
    with story.step("first"):
        story.claim("the sky is above", holds=True)
    with pytest.raises(StepFailed, match="the moon is cheese"), story.step("second"):
        story.await_claim("the moon is cheese", lambda: False, 0.0)
    assert not story.ok
    assert [(step.ok, step.claims) for step in story.steps] == [(True, ["the sky is above"]), (False, [])]
    assert "moon" in story.steps[1].failure
