"""nodes, status, top, watch, cordon and drain."""

from __future__ import annotations

import io
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from aliquot.cli._exits import Exit
from aliquot.cli._out import Out
from aliquot.cli._views import leases_table, nodes_table
from aliquot.cli._words import bar, natural
from aliquot.cli.localpool import LocalPool
from aliquot.cli.top import screen, snapshot
from aliquot.client import Pool
from tests.cli.conftest import PROGRAM, Cli


def test_nodes_and_devices(cli: Cli) -> None:
    nodes = cli("nodes", "--json").document["nodes"]
    assert [node["name"] for node in nodes] == ["node-1", "node-2"]
    assert {device["model"] for node in nodes for device in node["devices"]} == {"A100-40"}
    shown = cli("nodes", "node-1", "--json").document
    assert shown["node_id"] == nodes[0]["node_id"]
    assert "2 × A100-40" in cli("nodes").out
    assert cli("nodes", "--devices").out.count("A100-40") == 4


def test_status(cli: Cli) -> None:
    cli("alloc", "0.5,10Gi", "--tenant", "vision")
    status = cli("status", "--json").document
    assert status["granting"] is True
    assert status["pools"][0]["leased_share_milli"] == 500
    assert [tenant["tenant"] for tenant in status["tenants"] if tenant["leases"]] == ["vision"]
    assert "10Gi / " in cli("status").out


def test_top_once(cli: Cli) -> None:
    cli("alloc", "0.5,10Gi", "--tenant", "vision")
    shown = cli("top", "--once").out
    assert all(word in shown for word in ("granting", "2 ready", "node-2", "vision", "0B / 10Gi"))
    look = cli("top", "--once", "--json").document
    assert len(look["nodes"]) == 2
    assert list(look["observed_bytes"].values()) in ([0], [None])


def test_top_as_lines_of_json_goes_on(env: Mapping[str, str]) -> None:
    with subprocess.Popen([*PROGRAM, "top", "--json", "--every", "0s"], stdout=subprocess.PIPE, text=True) as top:
        assert top.stdout is not None
        looks = [json.loads(top.stdout.readline()) for _ in range(3)]
        top.terminate()
    assert [len(look["nodes"]) for look in looks] == [2, 2, 2]


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 240])
def test_lines_are_not_broken_in_a_narrow_terminal(
    cli: Cli, local: LocalPool, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")  # of a dumb one rich believes no width
    lease_id = cli("alloc", "0.5(A100),20Gi", "--tenant", "vision", "--json").document["lease_id"]

    def shown(*things: RenderableType) -> str:
        console = Console(width=columns, force_terminal=True, no_color=True, file=io.StringIO(), record=True)
        console.print(*things)
        return console.export_text()

    with Pool(local.address, token_file=local.token_file) as pool:
        leases, nodes = shown(leases_table(pool.leases())), shown(nodes_table(pool.nodes()))
        screenful = shown(screen.draw(snapshot.take(pool)))
    (line,) = [line for line in leases.splitlines() if lease_id in line]
    assert "active" in line
    assert sum(line.startswith("node-") for line in nodes.splitlines()) == 2
    assert lease_id in screenful
    assert ("no room for" in leases) == (columns < 100)


def test_what_goes_into_a_pipe_is_whole(cli: Cli) -> None:
    cli("alloc", "0.5(A100),20Gi", "--name", "n" * 63, "--tenant", "t" * 63)
    shown = cli("ls").out
    assert all(word in shown for word in ("AGE", "NAME", "n" * 63, "t" * 63))
    assert "no room" not in shown
    assert "\x1b" not in shown


def test_top_keeps_to_a_small_terminal(cli: Cli, local: LocalPool) -> None:
    for _ in range(12):
        cli("alloc", "0.1,1Gi")
    with Pool(local.address, token_file=local.token_file) as pool:
        look = snapshot.take(pool)
    console = Console(width=100, height=20, record=True, file=io.StringIO())
    console.print(screen.draw(look, rows=20))
    lines = console.export_text().splitlines()
    assert len(lines) <= 20
    assert any("more" in line for line in lines)
    assert sum("l-" in line for line in lines) >= 4


def test_watching_as_json_lines(cli: Cli, env: dict[str, str]) -> None:
    seq = cli("status", "--json").document["seq"]
    with subprocess.Popen(
        [*PROGRAM, "watch", "--json", "--after", str(seq)], stdout=subprocess.PIPE, text=True
    ) as watch:
        lease_id = cli("alloc", "0.1", "--json").document["lease_id"]
        assert watch.stdout is not None
        seen = []
        for line in watch.stdout:
            seen.append(json.loads(line))
            if seen[-1]["lease"]["state"] == "ACTIVE":
                break
        watch.terminate()
    assert {event["event"] for event in seen} == {"lease"}
    assert seen[-1]["lease"]["lease_id"] == lease_id
    assert seen[-1]["seq"] > seq


def test_cordon_drain_uncordon(cli: Cli) -> None:
    lease = cli("alloc", "0.5", "--grace", "1s", "--json").document
    node = lease["slices"][0]["node_name"]
    assert cli("cordon", node, "--reason", "broken fan", "--json").document["cordoned"] is True
    assert "cordoned" in cli("nodes").out
    assert cli("get", lease["lease_id"], "--json").document["state"] == "ACTIVE"
    assert "drained" in cli("drain", node, "--wait", "30s").out
    assert cli("get", lease["lease_id"], "--json").document["end_reason"] == "DRAINED"
    assert cli("uncordon", node, "--json").document["cordoned"] is False


NODES = {
    "nodes.yaml": "nodes:\n  - name: rack-1\n    devices: [{model: A100-80, count: 4}]\n    cpu: 64\n"
    "    memory: 512Gi\n    labels: {zone: a}\n",
    "nodes.json": '{"nodes": [{"name": "rack-1", "cpu": "64", "memory": "512Gi", "labels": {"zone": "a"},'
    ' "devices": [{"model": "A100-80", "count": 4}]}]}',
    "nodes.toml": '[[nodes]]\nname = "rack-1"\ncpu = 64\nmemory = "512Gi"\nlabels = {zone = "a"}\n'
    'devices = [{model = "A100-80", count = 4}]\n',
    "nodes.csv": "name,model,gpus,cpu,host_memory\nrack-1,A100-80,4,64,512Gi\ncpu-only,,0,8,64Gi\n",
    "trace.csv": "sn,cpu_milli,memory_mib,gpu,model\nrack-1,64000,524288,4,A100-80\n",
}


@pytest.mark.parametrize("name", NODES)
def test_declaring_nodes_from_a_file(cli: Cli, tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text(NODES[name])
    (node,) = cli("declare", "-f", str(file), "--agentless", "--pool", "declared", "--json").document["nodes"]
    assert (node["name"], node["state"], node["agentless"], node["pool"]) == ("rack-1", node["state"], True, "declared")
    assert [device["model"] for device in node["devices"]] == ["A100-80"] * 4
    assert (node["cpu_milli"], node["host_memory_bytes"]) == (64_000, 512 << 30)
    made = cli("alloc", "2(A100-80)", "--pool", "declared", "--until", "granted", "--json")
    assert (made.code, made.document["state"]) == (Exit.OK, "GRANTED")
    in_use = cli("forget", "rack-1", "--json")
    assert (in_use.code, in_use.error["reason"]) == (Exit.CONFLICT, "NODE_IN_USE")
    cli("release", made.document["lease_id"], "--wait")
    assert "forgotten" in cli("forget", "rack-1").out


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("x.yaml", "nodes: [", "can't be read"),
        ("x.yaml", "nodes: []", "no list of nodes"),
        ("x.yaml", "nodes: [{name: a, gpus: 3}]", "nodes[0].gpus: unknown"),
        ("x.yaml", "nodes: [{devices: []}]", "nodes[0].name: not set"),
        ("x.json", '{"nodes": [{"name": "a", "devices": [{"model": "T4", "count": 0}]}]}', "not a number from 1"),
        ("x.json", '{"nodes": [{"name": "a", "devices": [{"model": "T4", "memory": "8GB"}]}]}', "not a quantity"),
        ("x.json", '{"nodes": ["a"]}', "a table was expected"),
        ("x.csv", "host,cards\n", "its columns are"),
        ("x.csv", "name,model,gpus\na,T4,many\n", "line 2: gpus is 'many'"),
    ],
)
def test_files_that_cannot_be_read(cli: Cli, tmp_path: Path, name: str, text: str, says: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    result = cli("declare", "-f", str(file), "--dry-run", "--json")
    assert result.code == Exit.USAGE
    assert says in result.error["message"]
    assert str(file) in result.error["message"]


def test_colours_only_for_terminals_and_never_with_no_color(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.text import Text

    Out().show(Text("green", "green"))
    assert capsys.readouterr().out == "green\n"
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    Out().show(Text("green", "green"))
    assert "32m" not in capsys.readouterr().out


def test_bars_and_names() -> None:
    assert bar([(0.5, "green"), (0.25, "blue")], 8).plain == "██████··"
    assert bar([(2.0, "green")], 4).plain == "████"
    assert sorted(["node-10", "node-9", "a"], key=natural) == ["a", "node-9", "node-10"]
