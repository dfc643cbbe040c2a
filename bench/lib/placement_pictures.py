"""Draws the pictures of docs/measured.md from real runs on the openb list (seed 42).

    ALIQUOT_TRACES=DIR python bench/lib/placement_pictures.py docs/img

One picture per policy shows what the idle capacity consists of while requests arrive; one shows all policies'
allocation.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement import Engine, make_policy
from aliquot.coordinator.core.placement.machine_code import warm_up
from aliquot.coordinator.core.values.types import Demand
from aliquot.plan.arrivals import tuned_arrivals
from aliquot.plan.nodes import read_nodes
from aliquot.plan.replay import Curve, capacity_milli, fill, pool_of
from aliquot.plan.traces import read_openb_pods

sys.path.append(str(Path(__file__).resolve().parents[2]))
from bench.lib.protocol import watcher

POLICIES = ("price", "fgd", "binpack", "spread")
COLOURS = ("#3b6fb6", "#d9822b", "#3d9a50", "#8f9a2f")
KINDS = (("whole devices", "#9db8d9"), ("parts of at least 0.5", "#e8b878"), ("smaller parts", "#c98a8f"))
SEED = 42
EVERY = 60
FROM_PERCENT = 60


def composition(inventory: Inventory) -> tuple[float, float, float]:
    """Idle share by kind, in % of the capacity."""
    table = inventory.table
    left = table.share_left[: table.rows]
    kinds = left[left == 1000].sum(), left[(left >= 500) & (left < 1000)].sum(), left[left < 500].sum()
    whole, large, small = (100 * int(kind) / capacity_milli(inventory) for kind in kinds)
    return whole, large, small


def run(trace: Path, name: str) -> tuple[Curve, list[tuple[float, tuple[float, float, float]]]]:
    """The curve, and the composition of what is idle as requests arrive."""
    nodes = read_nodes(trace / "openb_node_list_gpu_node.csv")
    pods = read_openb_pods(trace / "openb_pod_list_default.csv")
    random.Random(SEED).shuffle(nodes)
    inventory = pool_of(nodes)
    policy = make_policy(name)
    learn = watcher(policy, pods, inventory)
    samples: list[tuple[float, tuple[float, float, float]]] = []
    arrived = 0

    def before(number: int, demand: Demand) -> None:
        nonlocal arrived
        if learn is not None:
            learn(number, demand)
        if number % EVERY == 0:
            samples.append((100 * arrived / capacity_milli(inventory), composition(inventory)))
        arrived += demand.share_in_all

    demands = [pod.demand for pod in tuned_arrivals(pods, capacity_milli(inventory), 1300, SEED)]
    return fill(Engine(inventory, policy), demands, before=before), samples


def style(figure: Figure, path: Path) -> None:
    """Plain axes; the same run gives the same file."""
    for axis in figure.axes:
        axis.grid(visible=True, color="#e4e7eb", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Draw everything; print one JSON line."""
    traces = os.environ.get("ALIQUOT_TRACES")
    if traces is None or len(sys.argv) < 2:
        raise SystemExit(__doc__)
    warm_up()
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    mpl.rcParams.update({"svg.hashsalt": "aliquot", "font.size": 9, "axes.edgecolor": "#9aa5b1"})
    together = Figure(figsize=(7, 4), layout="constrained")
    axis_together = together.subplots()
    result = {}
    for name, colour in zip(POLICIES, COLOURS, strict=True):
        curve, samples = run(Path(traces) / "openb", name)
        result[name] = round(curve.at(130), 2)
        arrived = 100 * np.array(curve.arrived_milli) / curve.capacity_milli
        allocated = 100 * np.array(curve.allocated_milli) / curve.capacity_milli
        axis_together.plot(arrived, allocated, color=colour, linewidth=1.3, label=f"{name} {result[name]:.1f}")
        kept = [(at, parts) for at, parts in samples if at >= FROM_PERCENT]
        figure = Figure(figsize=(5.2, 2.6), layout="constrained")
        axis = figure.subplots()
        axis.stackplot(
            [at for at, _ in kept],
            np.array([parts for _, parts in kept]).T,
            labels=[label for label, _ in KINDS],
            colors=[kind_colour for _, kind_colour in KINDS],
        )
        axis.set_xlim(FROM_PERCENT, 130)
        axis.set_ylim(0, 40)
        axis.set_xlabel("arrived, % of capacity")
        axis.set_ylabel("idle, % of capacity")
        axis.set_title(f"{name}: {100 - result[name]:.1f} % idle in the end", loc="left", fontsize=9)
        axis.legend(frameon=False, fontsize=8, loc="upper right")
        style(figure, folder / f"placement-{name}.svg")
    axis_together.set_xlim(80, 130)
    axis_together.set_ylim(75, 98)
    axis_together.set_xlabel("arrived, % of capacity")
    axis_together.set_ylabel("allocated, % of capacity")
    axis_together.legend(frameon=False, fontsize=8, loc="lower right", ncols=2)
    style(together, folder / "placement-all.svg")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
