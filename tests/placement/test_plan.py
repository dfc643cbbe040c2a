"""`aliquot plan`: reads pools and requests, replays them, answers with a table and JSON."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from aliquot.common.errors import ConfigError
from aliquot.coordinator.core.placement.move_budget import MOVES_PERMILLE, SAVED_MIN
from aliquot.coordinator.core.values.types import Demand
from aliquot.plan.arrivals import tuned_arrivals
from aliquot.plan.command import PLAN
from aliquot.plan.nodes import more_of, read_nodes
from aliquot.plan.traces import TraceRequest, read_requests
from bench.lib.churn import Churn, ChurnRules
from tests.core.invariants import check
from tests.placement.pools import GIB, assert_sound, node

OPENB_NODES = """sn,cpu_milli,memory_mib,gpu,model
n0,64000,262144,2,T4
n1,96000,393216,8,V100M32
n2,96000,393216,8,V100M32
"""
OPENB_PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,x
p0,12000,16384,1,1000,,LS,Running,0,100,0
p1,6000,12288,1,460,V100M16|V100M32,LS,Running,10,50,10
p2,4000,1024,0,0,,LS,Running,20,90,20
p3,80000,12288,8,1000,,LS,Running,30,60,30
"""
OURS = """name,gpu,cpu,memory,gang,arrival_s,duration_s
a,0.5(T4),2,4Gi,,0,100
b,"2x0.5(A100|V100>T4),8Gi",,,,10,100
c,8,500m,,2,20,30
d,4000Gi,,,,30,30
"""
DOCUMENT = {"nodes": [{"name": "gpu-1", "devices": [{"model": "a100-80", "count": 4}], "cpu": "32", "memory": "256Gi"}]}


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def plan(*arguments: str) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    PLAN.configure(parser)
    return PLAN.run(parser.parse_args(arguments))


def test_nodes_are_read_from_every_kind_of_list(tmp_path: Path) -> None:
    openb = read_nodes(write(tmp_path / "nodes.csv", OPENB_NODES))
    assert [(n.name, len(n.devices), n.cpu_milli) for n in openb] == [
        ("n0", 2, 64_000),
        ("n1", 8, 96_000),
        ("n2", 8, 96_000),
    ]
    declared = read_nodes(write(tmp_path / "nodes.json", json.dumps(DOCUMENT)))
    assert declared[0].devices[0].model == "A100-80"
    assert declared[0].devices[3].memory_total_bytes == 80 * GIB
    assert (declared[0].cpu_milli, declared[0].host_memory_bytes) == (32_000, 256 * GIB)
    yaml = "nodes:\n- name: y\n  devices: [{model: T4, count: 2}]\n"
    assert len(read_nodes(write(tmp_path / "nodes.yaml", yaml))[0].devices) == 2
    listed = {
        "nodes": [
            {
                "node_id": "id",
                "name": "n",
                "cpu_milli": None,
                "devices": [
                    {
                        "uuid": "GPU-1",
                        "model": "H100-80",
                        "memory_total_bytes": 80 * GIB,
                        "nvlink_island": 3,
                        "numa_node": None,
                    }
                ],
            }
        ]
    }
    live = read_nodes(write(tmp_path / "live.json", json.dumps(listed)))[0]
    assert (live.node_id, live.cpu_milli, live.devices[0].nvlink_island, live.devices[0].numa_node) == ("id", -1, 3, -1)


@pytest.mark.parametrize("text", ["{}", '{"nodes": []}', "[1]", "nonsense"])
def test_lists_that_can_not_be_read_are_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"nodes\.json"):
        read_nodes(write(tmp_path / "nodes.json", text))
    with pytest.raises(ConfigError, match=r"missing\.csv"):
        read_nodes(tmp_path / "missing.csv")


def test_columns_that_a_list_of_requests_can_do_without(tmp_path: Path) -> None:
    five = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,12000,16384,2,1000\n"
    (pod,) = read_requests(write(tmp_path / "multigpu.csv", five))
    assert (pod.demand.count, pod.demand.cpu_milli, pod.demand.models) == (2, 12000, ())
    (least,) = read_requests(write(tmp_path / "least.csv", "num_gpu,gpu_milli\n1,500\n"))
    assert (least.demand.share_milli, least.demand.cpu_milli, least.demand.host_memory_bytes) == (500, 0, 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name,gpu_milli\np0,500\n", "pods.csv:2: no num_gpu"),
        ("name,num_gpu\np0,1\np1,1\n", "pods.csv:2: no gpu_milli"),
        ("name,num_gpu,gpu_milli\np0,1,500\np1,1\n", "pods.csv:3: no gpu_milli"),
        ("a,b\n1,2\n", "pods.csv:2: no num_gpu and no gpu_milli"),
        ("num_gpu,gpu_milli\nmany,500\n", "'many'"),
    ],
)
def test_a_list_of_requests_without_what_is_needed_is_named_with_what_to_do(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=r"pods\.csv") as refused:
        read_requests(write(tmp_path / "pods.csv", text))
    assert said in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize(
    ("read", "text", "column"),
    [
        (read_requests, "gpu,durations_s\n1,5\n", "durations_s"),
        (read_requests, "num_gpu,gpu_milli,cpu_mili\n1,500,4000\n", "cpu_mili"),
        (read_nodes, "name,model,gpus,memory_per_gpus\nn,A100-80,4,40Gi\n", "memory_per_gpus"),
        (read_nodes, "name,model,gpus,rack\nn,A100-80,4,7\n", "rack"),
    ],
)
def test_a_column_that_nobody_reads_is_refused(tmp_path: Path, read: Any, text: str, column: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown column '{column}'") as refused:
        read(write(tmp_path / "list.csv", text))
    assert "the columns are" in refused.value.hint


def test_requests_are_read_from_both_kinds_of_list(tmp_path: Path) -> None:
    pods = read_requests(write(tmp_path / "pods.csv", OPENB_PODS))
    assert [p.demand.count for p in pods] == [1, 1, 0, 8]
    assert pods[1].demand.models == (("V100-16", "V100-32"),), "the catalogue's names, as the nodes have them"
    assert (pods[1].arrival_s, pods[1].duration_s) == (10, 40)
    ours = read_requests(write(tmp_path / "ours.csv", OURS))
    assert ours[0].demand.share_milli == 500
    assert ours[1].demand.count == 2
    assert "A100-80" in ours[1].demand.models[0]
    assert ours[2].demand.gang_size == 2
    assert ours[3].demand.memory_bytes == 4000 * GIB


def test_a_wrong_line_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ours\.csv:3: "):
        read_requests(write(tmp_path / "ours.csv", "gpu\n1\n8GB\n"))
    with pytest.raises(ConfigError, match=r"pods\.csv:2: "):
        read_requests(write(tmp_path / "pods.csv", "name,x\na,1\n"))


def test_more_nodes_are_like_the_most_frequent_or_the_named(tmp_path: Path) -> None:
    nodes = read_nodes(write(tmp_path / "nodes.csv", OPENB_NODES))
    assert [len(n.devices) for n in more_of(nodes, 2)] == [8, 8]
    assert [len(n.devices) for n in more_of(nodes, 1, "n0")] == [2]
    uuids = [d.uuid for n in nodes + more_of(nodes, 3) for d in n.devices]
    assert len(set(uuids)) == len(uuids)
    with pytest.raises(ConfigError, match="no node"):
        more_of(nodes, 1, "nowhere")


def test_the_command_answers_in_json_and_in_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes, pods = write(tmp_path / "n.csv", OPENB_NODES), write(tmp_path / "p.csv", OPENB_PODS)
    arguments = ["--nodes", str(nodes), "--trace", str(pods), "--policy", "price", "--policy", "binpack", "--more", "1"]
    assert plan(*arguments, "--json") == 0
    outcomes = json.loads(capsys.readouterr().out)["outcomes"]
    assert [o["label"] for o in outcomes] == ["price", "price +1 nodes", "binpack", "binpack +1 nodes"]
    assert all(o["placed"] == 4 for o in outcomes)
    assert [o["devices"] for o in outcomes] == [18, 26, 18, 26]
    assert plan(*arguments[:4], "--fill", "130") == 0
    assert "allocated" in capsys.readouterr().out


def test_requests_wait_in_line_and_are_served_as_others_leave(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = write(tmp_path / "n.csv", "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,1,T4\n")
    text = "gpu,arrival_s,duration_s\n1,0,100\n0.5,10,100\n0.5,20,100\n2,30,5\n1,40,100\n"
    assert plan("--nodes", str(nodes), "--trace", str(write(tmp_path / "r.csv", text)), "--json") == 0
    outcome = json.loads(capsys.readouterr().out)["outcomes"][0]
    assert (outcome["placed"], outcome["impossible"], outcome["left_waiting"]) == (4, 1, 0)
    assert outcome["wait_p50_s"] == 90
    assert outcome["wait_p95_s"] == 160


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    nodes, pods = write(tmp_path / "n.csv", OPENB_NODES), write(tmp_path / "p.csv", OPENB_PODS)
    with pytest.raises(ConfigError, match="no placement policy"):
        plan("--nodes", str(nodes), "--trace", str(pods), "--policy", "nonsense")
    for option, number in (("--more", "-3"), ("--fill", "-3"), ("--fill", "100000000")):
        with pytest.raises(ConfigError, match="a number from 0 on, and --fill one from 0 to"):
            plan("--nodes", str(nodes), "--trace", str(pods), option, number)
    with pytest.raises(ConfigError, match="nothing to plan"):
        plan("--nodes", str(nodes), "--trace", str(write(tmp_path / "e.csv", "gpu\n")))


def test_arrival_lists_reach_the_ratio_from_either_side() -> None:
    requests = [TraceRequest(f"r{i}", Demand(share_milli=100 * (1 + i % 10)), 0, 0) for i in range(50)]
    for ratio in (300, 1300, 9000):
        arrivals = tuned_arrivals(requests, 20_000, ratio, 7)
        total = sum(a.demand.share_in_all for a in arrivals)
        assert 20_000 * ratio // 1000 - 1000 <= total <= 20_000 * ratio // 1000
        assert arrivals == tuned_arrivals(requests, 20_000, ratio, 7)


@pytest.mark.no_cover  # would more than double its time
def test_the_core_serves_large_requests_under_churn() -> None:
    demands = [Demand(share_milli=1000)] * 30 + [Demand(share_milli=500)] * 30 + [Demand(count=4)] * 4
    demands += [Demand(count=0, cpu_milli=1_000)]
    rules = ChurnRules(load=1.05, lifetimes=8)
    results = {}
    for reserve in (False, True):
        churn = Churn([node(f"n{i}", 4) for i in range(40)], "price", demands, rules._replace(reserve=reserve), 3)
        results[reserve] = churn.run()
        assert_sound(churn.state.inventory)
        check(churn.state)
    assert results[True].admitted_percent("4") > results[False].admitted_percent("4") + 20
    assert results[True].wait("4", 1.0) <= rules.patience + 1e-9
    assert results[False].moved == 0
    assert 0 < results[True].moved <= SAVED_MIN + sum(results[True].asked.values()) * MOVES_PERMILLE // 1000


def test_numbers_as_spreadsheets_write_them_are_read_and_others_are_named_with_their_line(tmp_path: Path) -> None:
    (node,) = read_nodes(write(tmp_path / "n.csv", "name,model,gpus,cpu_milli\nn0,T4,4.0,64000.\n"))
    assert (len(node.devices), node.cpu_milli) == (4, 64_000)
    for wrong in ("4.5", "four", "-1"):
        with pytest.raises(ConfigError, match=f"line 3: gpus is '{wrong}'"):
            read_nodes(write(tmp_path / "n.csv", f"name,model,gpus\nn0,T4,1\nn1,T4,{wrong}\n"))
