"""The table of comparisons: a line a landing in bench/history, from which its page and its picture are made."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "history"
LINES = FOLDER / "landings.jsonl"


def keep(landing: dict[str, Any]) -> None:
    """Append a line, and make page and picture anew."""
    FOLDER.mkdir(exist_ok=True)
    with LINES.open("a") as file:
        file.write(json.dumps(landing) + "\n")
    landings = [json.loads(line) for line in LINES.read_text().splitlines()]
    _write_page(landings)
    _draw(landings)


def _of_benches(landing: dict[str, Any]) -> dict[str, float]:
    """The geometric mean of the ratios of each bench."""
    found: dict[str, list[float]] = {}
    for name, ratio in landing["ratios"].items():
        found.setdefault(name.split(".")[0], []).append(max(ratio["median"], 1e-3))
    return {bench: statistics.geometric_mean(ratios) for bench, ratios in found.items()}


def _names(landings: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(bench for landing in landings for bench in _of_benches(landing)))


def _write_page(landings: list[dict[str, Any]]) -> None:
    benches = _names(landings)
    lines = [
        "# How much each landing costs",
        "",
        "Written by `make bench-against`: of each bench the geometric mean of its ratios to the base (above 1: worse),",
        "then the figure that lost most. Every ratio, with its lowest and highest round, is in `landings.jsonl`.",
        "",
        "![ratios](landings.svg)",
        "",
        "| landing | base | rounds | " + " | ".join(benches) + " | worst |",
        "|---|---|---|" + "---|" * (len(benches) + 1),
    ]
    for landing in landings:
        means = _of_benches(landing)
        cells = [f"{means[bench]:.2f}" if bench in means else "" for bench in benches]
        worst = max(landing["ratios"], key=lambda name: float(landing["ratios"][name]["median"]), default="")
        said = f"`{worst}` {landing['ratios'][worst]['median']:.2f}" if worst else ""
        cells = [f"{landing['head']} {landing['date'][:10]}", landing["base"], str(landing["rounds"]), *cells, said]
        lines.append("| " + " | ".join(cells) + " |")
    (FOLDER / "README.md").write_text("\n".join(lines) + "\n")


def _draw(landings: list[dict[str, Any]]) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - not for those who only compare

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "aliquot"  # the same picture from the same lines
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, axes = plt.subplots(figsize=(8, 3.5))
    for bench in _names(landings):
        points = [(place, _of_benches(landing).get(bench)) for place, landing in enumerate(landings)]
        shown = [(place, value) for place, value in points if value is not None]
        axes.plot(*zip(*shown, strict=True), marker="o", markersize=3, linewidth=1, label=bench)
    axes.axhline(1, color="black", linewidth=0.5)
    axes.set_yscale("log")
    axes.set_ylabel("times its base (above 1: worse)")
    axes.set_xticks(range(len(landings)), [f"{item['head']}\n/ {item['base']}" for item in landings], fontsize=6)
    axes.legend(fontsize=6, ncols=4)
    figure.tight_layout()
    figure.savefig(FOLDER / "landings.svg", metadata={"Date": None})
    plt.close(figure)
