"""The demonstration holds what it claims, and says so when it doesn't."""

from __future__ import annotations

import json
import subprocess

import pytest

from aliquot.cli._out import Out
from aliquot.cli.demo.story import StepFailed, Story
from tests.cli.conftest import PROGRAM


def test_the_whole_demonstration() -> None:
    done = subprocess.run([*PROGRAM, "demo", "--json"], capture_output=True, text=True, timeout=110, check=False)
    told = json.loads(done.stdout)
    assert [step["failure"] for step in told["steps"]] == [""] * 8
    assert (done.returncode, told["ok"]) == (0, True)
    usage = {item["name"]: item for item in told["usage"]}
    assert {item["tenant"] for item in usage.values()} == {"vision", "speech"}
    assert usage["greedy"]["outcome"] == "stopped by SIGTERM"
    assert usage["greedy"]["peak_bytes"] >= 3 << 30, "what it began with; the moment above its limit is over at once"
    assert usage["pretrain"]["share_milli_ms"] == 2000 * usage["pretrain"]["held_ms"]
    held = [item for item in usage.values() if item["name"] not in {"greedy", "hasty"}]
    assert all(0 < item["peak_bytes"] <= item["reserved_bytes"] for item in held)


def test_cards_of_four_vendors_in_one_pool() -> None:
    command = [*PROGRAM, "demo", "--vendors", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    told = json.loads(done.stdout)
    assert [step["failure"] for step in told["steps"]] == [""] * 6, done.stderr
    assert (done.returncode, told["ok"]) == (0, True)
    held = {item["vendor"]: item for item in told["held"]}
    assert set(held) == {"NVIDIA", "AMD", "Intel", "Ascend"}
    assert all(item["neighbour"].endswith("ran on") for item in held.values())
    assert (held["Ascend"]["tier"], held["Ascend"]["outcome"]) == ("mig", "denied: out of memory")


def test_a_claim_that_does_not_hold_ends_the_story() -> None:
    story = Story(Out(as_json=True))
    with story.step("first"):
        story.claim("the sky is above", holds=True)
    with pytest.raises(StepFailed, match="the moon is cheese"), story.step("second"):
        story.await_claim("the moon is cheese", lambda: False, 0.0)
    assert not story.ok
    assert [(step.ok, step.claims) for step in story.steps] == [(True, ["the sky is above"]), (False, [])]
    assert "moon" in story.steps[1].failure
