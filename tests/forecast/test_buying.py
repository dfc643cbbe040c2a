"""`aliquot plan --forecast`: how many devices to buy."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import pytest

from aliquot.common.errors import ConfigError
from aliquot.plan.buying import WEEK_S, growth_of, requests_to_come, weeks_of
from aliquot.plan.command import PLAN
from aliquot.plan.traces import read_requests

HOUR = 3600


def listed(path: Path, weeks: int = 5, *, growing: float = 1.0) -> Path:
    """Every weekday at nine, four jobs of eight hours that take a device each; as many more as it grows each week."""
    lines = ["name,gpu,arrival_s,duration_s"]
    for week in range(weeks):
        for day in range(5):
            for job in range(round(4 * growing**week)):
                arrival = week * WEEK_S + day * 86_400 + 9 * HOUR
                lines.append(f"j{week}.{day}.{job},1,{arrival},{8 * HOUR}")
    lines.append(f"last,0.1,{weeks * WEEK_S},60")
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def pool(path: Path, devices: int) -> Path:
    nodes = [{"name": f"n{number}", "devices": [{"model": "a100-80"}]} for number in range(devices)]
    path.write_text(json.dumps({"nodes": nodes}), encoding="utf-8")
    return path


def plan(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    PLAN.configure(parser)
    return PLAN.run(parser.parse_args([*arguments, "--policy", "binpack"]))


def test_as_many_are_advised_as_the_peak_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    requests, nodes = listed(tmp_path / "list.csv"), pool(tmp_path / "nodes.json", 2)
    picture = tmp_path / "cost.svg"
    more = ("--more", "6", "--price", "1.5", "--plot", str(picture), "--json")
    assert plan("--nodes", str(nodes), "--trace", str(requests), "--forecast", "28d", *more) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["advised_more_nodes"] == 2
    assert found["growth_percent_per_30_days"] == pytest.approx(0, abs=0.01)
    options = found["options"]
    assert [option["more_nodes"] for option in options] == [0, 1, 2]
    assert [option["cost"] for option in options] == [0, 28 * 24 * 1.5, 2 * 28 * 24 * 1.5]
    waits = [option["wait_p95_s"] for option in options]
    assert waits == sorted(waits, reverse=True)
    assert waits[0] == 8 * HOUR
    assert waits[-1] == 0
    assert "+2" in picture.read_text(encoding="utf-8")


def test_people_read_what_to_buy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    requests, nodes = listed(tmp_path / "list.csv"), pool(tmp_path / "nodes.json", 3)
    assert plan("--nodes", str(nodes), "--trace", str(requests), "--forecast", "28d", "--more", "6") == 0
    assert "1 devices more keep 19 of 20 waits within 1h" in " ".join(capsys.readouterr().out.split())
    assert plan("--nodes", str(nodes), "--trace", str(requests), "--forecast", "28d", "--wait", "9h") == 0
    assert "nothing needs to be bought" in " ".join(capsys.readouterr().out.split())
    few = ("--growth", "400", "--more", "1")
    assert plan("--nodes", str(nodes), "--trace", str(requests), "--forecast", "28d", *few) == 0
    assert "no pool that was tried" in " ".join(capsys.readouterr().out.split())


def test_demand_that_grows_goes_on_growing(tmp_path: Path) -> None:
    weeks = weeks_of(read_requests(listed(tmp_path / "list.csv", 8, growing=1.1)))
    growth = growth_of(weeks)
    assert 0.07 < growth <= 0.1
    coming = requests_to_come(weeks, 70, growth, seed=1)
    by_week = [sum(int(request.arrival_s // WEEK_S) == week for request in coming) for week in range(10)]
    assert by_week[9] > 1.4 * by_week[0]
    assert by_week[0] == pytest.approx(20 * 1.1**8, rel=0.25)
    assert len({request.name for request in coming}) == len(coming)
    assert requests_to_come(weeks, 70, growth, seed=1) == coming


def test_one_wild_week_is_no_growth(tmp_path: Path) -> None:
    requests = read_requests(listed(tmp_path / "list.csv", 8))
    wild = [request for request in requests if request.arrival_s // WEEK_S == 7] * 20
    assert growth_of(weeks_of([*requests, *wild])) == pytest.approx(0, abs=0.01)
    assert growth_of(weeks_of(requests)[:3]) == 0.0


@pytest.mark.parametrize(
    ("lines", "more", "why"),
    [
        (["a,1,0,0", "b,1,5,0"], (), "arrivals and durations"),
        (["a,1,0,60", "b,1,5,60"], (), "a week at least"),
        (["a,1,0,60", f"b,1,{WEEK_S},60"], ("--forecast", "12h"), "whole days"),
        (["a,1,0,60", f"b,1,{WEEK_S},60"], ("--fill", "100"), "exclude each other"),
    ],
)
def test_what_says_too_little_is_refused(tmp_path: Path, lines: list[str], more: tuple[str, ...], why: str) -> None:
    requests = tmp_path / "list.csv"
    requests.write_text("\n".join(["name,gpu,arrival_s,duration_s", *lines]), encoding="utf-8")
    nodes = pool(tmp_path / "nodes.json", 1)
    with pytest.raises(ConfigError, match=why):
        plan("--nodes", str(nodes), "--trace", str(requests), "--forecast", "90d", *more)


def test_what_never_fits_waits_for_ever(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    requests = tmp_path / "list.csv"
    rows = [f"j{number},8,{number * HOUR},60" for number in range(200)]
    requests.write_text("\n".join(["name,gpu,arrival_s,duration_s", *rows]), encoding="utf-8")
    nodes = pool(tmp_path / "nodes.json", 1)
    assert plan("--nodes", str(nodes), "--trace", str(requests), "--forecast", "7d", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["advised_more_nodes"] is None
    assert found["options"][0]["wait_p95_s"] is None
    assert math.isfinite(found["options"][0]["cost"])
