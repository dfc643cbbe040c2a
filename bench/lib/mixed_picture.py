"""Table and picture of `bench/placement.py --mixed` for docs/measured.md.

    python bench/placement.py --mixed openb --policies ... --seeds 10 --json > openb.json
    python bench/lib/mixed_picture.py docs/img/placement-mixed.svg openb.json spot.json

Each file has the last line of one run, and is named after its pool. Prints the tables in Markdown, the best policy
first.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

WHAT = (("share", "", "#3b6fb6"), ("memory", "memory_", "#d9822b"))
"""(title, how its fields begin, colour)"""
AT = 130

Figures = dict[str, dict[str, float]]


def read(path: Path) -> Figures:
    """By policy, the best first."""
    found: Figures = json.loads(path.read_text().splitlines()[-1])
    return dict(sorted(found.items(), key=lambda each: -each[1][f"at_{AT}"]))


def table(figures: Figures) -> str:
    """Means in %, with standard deviations at the end."""
    lines = [
        "| policy | share at 100 | memory at 100 | share at 130 | sd | memory at 130 | sd |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for policy, of in figures.items():
        cells = [of["at_100"], of["memory_at_100"], of["at_130"], of["sd_130"]]
        cells += [of["memory_at_130"], of["memory_sd_130"]]
        lines.append(f"| `{policy}` | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")
    return "\n".join(lines)


def draw(pools: dict[str, Figures], path: Path) -> None:
    """A panel for each pool, a row for each policy: what was allocated when 130 % of the capacity had arrived."""
    mpl.rcParams.update({"svg.hashsalt": "aliquot", "font.size": 9, "axes.edgecolor": "#9aa5b1"})
    figure = Figure(figsize=(7.5, 3), layout="constrained")
    panels = figure.subplots(1, len(pools), sharex=True, squeeze=False)[0]
    for panel, (pool, figures) in zip(panels, pools.items(), strict=True):
        rows = range(len(figures))
        for title, begins, colour in WHAT:
            means = [of[f"{begins}at_{AT}"] for of in figures.values()]
            deviations = [of[f"{begins}sd_{AT}"] for of in figures.values()]
            panel.errorbar(means, rows, xerr=deviations, fmt="o", markersize=4, color=colour, label=title)
        panel.set_yticks(rows, list(figures))
        panel.invert_yaxis()
        panel.set_title(f"{pool}'s nodes", loc="left", fontsize=9)
        panel.set_xlabel(f"allocated at {AT} %, in % of the pool")
        panel.grid(visible=True, axis="x", color="#e4e7eb", linewidth=0.6)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, fontsize=8, loc="upper left")
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Draw, and print the tables."""
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    pools = {Path(name).stem: read(Path(name)) for name in sys.argv[2:]}
    draw(pools, Path(sys.argv[1]))
    for pool, figures in pools.items():
        print(f"{pool}\n\n{table(figures)}\n")


if __name__ == "__main__":
    main()
