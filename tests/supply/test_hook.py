"""The administrator's command: what it is told, and how its answer is read, whatever it does."""

from __future__ import annotations

import json
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from aliquot.cli.supply.file import read_supply_file
from aliquot.cli.supply.hook import Answer, message_of, parse_command, run
from aliquot.client.supply import NodeOrder, NodeShape, OrderState, OrderWay
from aliquot.common.errors import ConfigError

ORDER = NodeOrder(
    number=7,
    order_id="order-7",
    way=OrderWay.ADD,
    state=OrderState.TAKEN,
    shape="s",
    pool="default",
    node_name="s-1",
    node_id="",
    why="somebody waits",
    ordered_ms=1,
    due_ms=2,
    changed_ms=1,
    price_micro=0,
    taken_by="me",
    taken_until_ms=3,
    tries=1,
    again_ms=0,
    reference="",
    problem="",
    early=False,
)
MESSAGE = message_of(ORDER, NodeShape("s", "L4", 2, 1, labels={"zone": "a"}), None)
LONG_S = 30.0


def script(tmp_path: Path, text: str) -> str:
    """A program of the shell."""
    path = tmp_path / "hook.sh"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def carried_out(tmp_path: Path, text: str, timeout_s: float = LONG_S) -> Answer:
    return run(parse_command(f"{script(tmp_path, text)} {{way}} {{node}}"), MESSAGE, timeout_s)


def test_it_reads_the_order_and_says_what_it_calls_it(tmp_path: Path) -> None:
    said = carried_out(
        tmp_path, f'cat > {tmp_path}/in; echo "$1 $2" > {tmp_path}/words; echo \'{{"reference": "i-1", "due_s": 900}}\''
    )
    assert said == Answer(accepted=True, reference="i-1", due_s=900)
    read: dict[str, Any] = json.loads((tmp_path / "in").read_text())
    assert (read["order"], read["way"], read["node"], read["model"], read["devices"]) == (
        "order-7",
        "add",
        "s-1",
        "L4",
        2,
    )
    assert (tmp_path / "words").read_text() == "add s-1\n"


@pytest.mark.parametrize(
    ("text", "problem", "final"),
    [
        ("echo out of stock >&2; exit 3", "out of stock", False),
        ("exit 3", "ended with status 3", False),
        ('echo \'{"error": "quota", "final": true}\'', "quota", True),
        ('echo \'{"error": "quota"}\'; exit 1', "quota", False),
        ("echo hello", "no JSON object", False),
        ("echo '[1]'", "no JSON object", False),
        ("kill -9 $$", "status -9", False),
    ],
)
def test_a_failure_says_why(tmp_path: Path, text: str, problem: str, final: bool) -> None:
    said = carried_out(tmp_path, text)
    assert not said.accepted
    assert problem in said.problem
    assert said.final is final


def test_one_that_hangs_is_ended_with_what_it_has_started(tmp_path: Path) -> None:
    said = carried_out(tmp_path, f"sleep 600 & echo $! > {tmp_path}/child; wait", timeout_s=1.0)
    assert not said.accepted
    assert "has not answered in 1 s" in said.problem
    child = tmp_path / "child"
    deadline_s = time.monotonic() + LONG_S
    while child.exists() and child.read_text() and _runs(int(child.read_text())):  # it may not have come so far
        assert time.monotonic() < deadline_s, "its child runs on"
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    """Whether a process is there that has not ended, also where nobody has asked for its status yet."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def test_one_that_is_not_there_or_no_command(tmp_path: Path) -> None:
    assert "No such file" in run((str(tmp_path / "none"),), MESSAGE, LONG_S).problem
    for wrong in ("", "a {nothing}", "a 'b", "a {"):
        with pytest.raises(ConfigError):
            parse_command(wrong)


def test_a_file_puts_shapes_on_offer(tmp_path: Path) -> None:
    path = tmp_path / "shapes.yaml"
    path.write_text(
        """
shapes:
  - {name: h100, model: H100-80, devices: 8, max: 10, lead: 10m, price: 24.50, labels: {zone: a}, linked: true}
  - {name: metal, model: A100-80, devices: 4, max: 2, min: 1, machines: [rack-a, rack-b]}
policy: {act: true, target: 5m, means: [], headroom: 12.5, budget: {hour: 200}}
pools: [{name: default, max: 20, headroom: 15}]
"""
    )
    spec = read_supply_file(path)
    assert [shape.name for shape in spec.shapes] == ["h100", "metal"]
    assert (spec.shapes[0].lead_s, spec.shapes[0].price_micro) == (600, 24_500_000)
    assert spec.policy.no_means
    assert (spec.policy.headroom_permille, spec.policy.hour_micro, spec.policy.month_micro) == (125, 200_000_000, None)
    assert spec.pools[0].headroom_permille == 150


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "shapes: {}",
        "shapes: [1]",
        "shapes: [{name: a}]",
        "shapes: [{name: a, model: L4, many: 3}]",
        "shapes: [{name: a, model: L4, max: -1}]",
        "shapes: [{name: a, model: L4, lead: soon}]",
        "shapes: [{name: a, model: L4, price: free}]",
        "policy: {means: wait}",
        "policy: {headroom: nan}",
        ":",
        "{",
    ],
)
def test_a_file_that_nobody_could_mean_says_where(tmp_path: Path, text: str) -> None:
    path = tmp_path / "shapes.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"shapes\.yaml"):
        read_supply_file(path)
    with pytest.raises(ConfigError):
        read_supply_file(tmp_path / "none")
