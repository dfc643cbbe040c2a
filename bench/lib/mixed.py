"""A pool of very different cards, and requests that state share and memory apart.

The public lists have the nodes (openb of 2023, and the spot list of 2026 with cards of 24 to 96 GB), and of requests
how much *share* each asks for, but no device memory. So memory is drawn by rules, from what the lists do say:

- Cards have the catalogue's memory. Models that the lists only number are taken as the cards of their time and
  width: G2 as A10 (24 GiB), G3 as A100 of 80 GiB, GPU-series-1 as 48 GiB, GPU-series-2 as 96 GiB.
- A request has openb's devices, share, CPU and models (models only on openb's nodes, whose names they are).
- Its memory is a part of a card drawn from those it may use, by their number, in whole GiB. For half of the requests
  for a part of a device, drawn at random, the part is that of another such request (a large model that computes
  little, a small one that computes much); for all others it is their share.
- Arrivals grow until 132 % of the share of the pool has come; share and memory allocated are averaged over the
  arrivals at which the arrived share rounds to 100 and 130 %, as in openb's study.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from aliquot.common import catalog
from aliquot.common.limits import GIB
from aliquot.coordinator.core.placement import Engine
from aliquot.coordinator.core.rules.trial import hold
from aliquot.coordinator.core.values.types import UNKNOWN, WHOLE_SHARE_MILLI, Demand, DeviceSpec, NodeSpec
from aliquot.plan.nodes import read_nodes
from aliquot.plan.replay import capacity_milli
from aliquot.plan.traces import TraceRequest, read_openb_pods

OPENB_NODES = "openb/openb_node_list_gpu_node.csv"
OPENB_PODS = "openb/openb_pod_list_default.csv"
SPOT_NODES = "alibaba-spot-2026/node_info_df.csv"
POOLS = ("openb", "spot")
SEED = 1
MEMORY_GIB = {
    "P100": 16,
    "T4": 16,
    "V100M16": 16,
    "V100M32": 32,
    "G2": 24,
    "G3": 80,
    "A10": 24,
    "A100-SXM4-80GB": 80,
    "A800-SXM4-80GB": 80,
    "H800": 80,
    "GPU-series-1": 48,
    "GPU-series-2": 96,
}


class MixedPool(NamedTuple):
    """Nodes, and requests for them."""

    nodes: list[NodeSpec]
    requests: list[TraceRequest]


def mixed_pool(traces: Path, name: str) -> MixedPool:
    """The pool `openb` or `spot`: always the same."""
    pods = [pod for pod in read_openb_pods(traces / OPENB_PODS) if pod.demand.count]
    nodes = _openb(traces) if name == "openb" else _spot(traces)
    cards = [(device.model, device.memory_total_bytes) for node in nodes for device in node.devices]
    rng = random.Random(SEED)
    parts = [pod.demand.share_milli for pod in pods if pod.demand.share_milli < WHOLE_SHARE_MILLI]
    widths = sorted({len(node.devices) for node in nodes})
    requests = []
    for pod in pods:
        demand = pod.demand if name == "openb" else msgspec.structs.replace(pod.demand, models=())
        memory = _memory_of(demand, cards, parts, widths, rng)
        requests.append(pod._replace(demand=msgspec.structs.replace(demand, memory_bytes=memory)))
    return MixedPool(nodes, requests)


def _memory_of(
    demand: Demand, cards: Sequence[tuple[str, int]], parts: Sequence[int], widths: Sequence[int], rng: random.Random
) -> int:
    assert demand.count <= widths[-1]
    usable = [memory for model, memory in cards if not demand.models or model in demand.models[0]] or [16 * GIB]
    card = rng.choice(usable)
    part = demand.share_milli
    if rng.random() < 0.5 and part < WHOLE_SHARE_MILLI:
        part = rng.choice(parts)
    return min(max(1, -(-card * part // WHOLE_SHARE_MILLI // GIB)), card // GIB) * GIB


def _openb(traces: Path) -> list[NodeSpec]:
    with (traces / OPENB_NODES).open(encoding="utf-8-sig", newline="") as lines:
        models = {row["sn"]: row["model"] for row in csv.DictReader(lines)}
    return [
        msgspec.structs.replace(
            node,
            devices=tuple(
                msgspec.structs.replace(device, memory_total_bytes=MEMORY_GIB[models[node.name]] * GIB)
                for device in node.devices
            ),
        )
        for node in read_nodes(traces / OPENB_NODES)
    ]


def _spot(traces: Path) -> list[NodeSpec]:
    nodes = []
    with (traces / SPOT_NODES).open(encoding="utf-8-sig", newline="") as lines:
        for row in csv.DictReader(lines):
            name, model = row["node_name"], row["gpu_model"]
            devices = tuple(
                DeviceSpec(
                    f"{name}/{index}",
                    catalog.canonical_name(model),
                    MEMORY_GIB[model] * GIB,
                    index=index,
                    vendor="nvidia",
                )
                for index in range(int(float(row["gpu_capacity_num"])))
            )
            cpu = int(float(row["cpu_num"]) * 1000) if row["cpu_num"] else UNKNOWN
            nodes.append(NodeSpec(name, name, devices, cpu_milli=cpu))
    return nodes


class MixedCurve(NamedTuple):
    """What was allocated while requests came."""

    arrived_percent: list[int]
    share_percent: list[float]
    memory_percent: list[float]

    def at(self, percent: int) -> tuple[float, float]:
        """(share, memory) in %, as means over the arrivals at that percentage."""
        rows = [number for number, arrived in enumerate(self.arrived_percent) if arrived == percent]
        return (
            sum(self.share_percent[row] for row in rows) / len(rows),
            sum(self.memory_percent[row] for row in rows) / len(rows),
        )


def fill_mixed(engine: Engine, demands: Sequence[Demand], before: Callable[[int, Demand], None] | None) -> MixedCurve:
    """Place each in turn; what does not fit is refused for good."""
    inventory = engine.inventory
    share_capacity = capacity_milli(inventory)
    table = inventory.table
    memory_capacity = sum(
        inventory.classes[class_id].leasable_bytes * width
        for class_id, width in zip(
            table.class_id[: table.rows].tolist(), table.width[: table.rows].tolist(), strict=True
        )
        if class_id >= 0
    )
    curve = MixedCurve([], [], [])
    arrived = share = memory = 0
    for arrival, demand in enumerate(demands):
        if before is not None:
            before(arrival, demand)
        arrived += demand.share_in_all
        placement = engine.place(demand)
        if placement is not None:
            hold(inventory, demand, placement)
            share += demand.share_in_all
            memory += demand.memory_bytes * demand.count * demand.gang_size
        curve.arrived_percent.append(round(100 * arrived / share_capacity))
        curve.share_percent.append(100 * share / share_capacity)
        curve.memory_percent.append(100 * memory / memory_capacity)
    return curve
