"""Paints dashboards as pictures from a real Prometheus' answers, so that people see what they get without a Grafana.

    python -m tools.monitoring.draw --prometheus http://localhost:9090 --out docs/img --minutes 5

What a panel's query finds is drawn as Grafana would draw it: lines, areas that add up, numbers, tables.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import re
import sys
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import GridSpec
from matplotlib.ticker import FuncFormatter
from PIL import Image

from tools.monitoring.dashboards import BOARDS
from tools.monitoring.panels import Board, Kind, Panel, Unit, filled

_ROW_INCHES = 0.32
_WIDTH_INCHES = 13.0
_LEGEND_MAX = 8
_TABLE_ROWS_MAX = 8
_COLOURS = ("#2a9d63", "#e08e0b", "#c8352b")
_HIDDEN = ("__name__", "instance", "job")


@dataclass(frozen=True, slots=True)
class Source:
    """A Prometheus, and the time that is looked at (seconds since 1970)."""

    url: str
    start: float
    end: float
    step: float

    def over_time(self, expr: str) -> list[dict[str, Any]]:
        """Series with their values in the whole time."""
        return self._ask("query_range", query=expr, start=str(self.start), end=str(self.end), step=str(self.step))

    def at_the_end(self, expr: str) -> list[dict[str, Any]]:
        """Series with their value at the end."""
        return self._ask("query", query=expr, time=str(self.end))

    def _ask(self, path: str, **parameters: str) -> list[dict[str, Any]]:
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - the caller's own
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return result


def paint(board: Board, source: Source, rate_interval: str) -> Figure:
    """A figure of all panels, each at its place."""
    places, rows = _places(board)
    figure = Figure(figsize=(_WIDTH_INCHES, rows * _ROW_INCHES + 1.1), facecolor="#f4f5f5")
    figure.suptitle(board.title, x=0.02, ha="left", fontsize=15, fontweight="bold")
    grid = GridSpec(
        rows, 24, figure=figure, left=0.05, right=0.985, top=1 - 0.95 / figure.get_figheight(),
        bottom=0.35 / figure.get_figheight(), hspace=2.2, wspace=2.5,
    )  # fmt: skip
    for panel, (x, y) in zip(board.panels, places, strict=True):
        axes = figure.add_subplot(grid[y : y + panel.height - 1, x + (x > 0) : x + panel.width])
        axes.set_title(panel.title, loc="left", fontsize=10)
        _PAINTERS[panel.kind](axes, panel, source, rate_interval)
    return figure


def _places(board: Board) -> tuple[list[tuple[int, int]], int]:
    """Where panels are, in columns and rows of the grid, and how many rows there are."""
    places, x, y, tallest = [], 0, 0, 0
    for panel in board.panels:
        if x + panel.width > 24:
            x, y, tallest = 0, y + tallest, 0
        places.append((x, y))
        x, tallest = x + panel.width, max(tallest, panel.height)
    return places, y + tallest


def _lines(axes: Axes, panel: Panel, source: Source, rate_interval: str) -> None:
    curves = [
        (_legend(query.legend, series["metric"]), series["values"])
        for query in panel.queries
        for series in source.over_time(filled(query.expr, rate_interval))
    ]
    if panel.kind is Kind.STACK:
        _stack(axes, curves, source.end)
    else:
        for label, values in curves:
            minutes, heights = _points(values, source.end)
            axes.plot(minutes, heights, label=label, linewidth=1.3)
    axes.set_ylim(bottom=0, top=max(axes.get_ylim()[1], 0) * 1.3 or 1)  # room for the legend
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: in_unit(value, panel.unit)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} min" if value else "now"))
    axes.set_xlim((source.start - source.end) / 60, 0)
    axes.tick_params(labelsize=8)
    axes.grid(visible=True, color="#e0e0e0", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if 0 < len(curves) <= _LEGEND_MAX:
        axes.legend(fontsize=7, loc="upper left", framealpha=0.7, ncols=2)


def _stack(axes: Axes, curves: list[tuple[str, Any]], end: float) -> None:
    moments = sorted({float(at) for _, values in curves for at, _ in values})
    if moments:
        known = [{float(at): float(value) for at, value in values} for _, values in curves]
        heights = [[of_curve.get(at, 0.0) for at in moments] for of_curve in known]
        axes.stackplot([(at - end) / 60 for at in moments], heights, labels=[label for label, _ in curves], alpha=0.75)


def _number(axes: Axes, panel: Panel, source: Source, rate_interval: str) -> None:
    axes.axis("off")
    found = source.at_the_end(filled(panel.queries[0].expr, rate_interval))
    value = float(found[0]["value"][1]) if found else math.nan
    colour = _COLOURS[sum(value >= at for at in panel.thresholds)]
    axes.text(0.02, 0.35, in_unit(value, panel.unit), fontsize=21, color=colour, va="center", fontweight="bold")


def _table(axes: Axes, panel: Panel, source: Source, rate_interval: str) -> None:
    axes.axis("off")
    found = source.at_the_end(filled(panel.queries[0].expr, rate_interval))
    names = sorted({name for series in found for name in series["metric"]} - set(_HIDDEN))
    rows = [
        [*(series["metric"].get(name, "")[-16:] for name in names), in_unit(float(series["value"][1]), panel.unit)]
        for series in sorted(found, key=lambda series: -float(series["value"][1]))[:_TABLE_ROWS_MAX]
    ]
    if rows:
        made = axes.table(cellText=rows, colLabels=[*names, "value"], loc="upper left", cellLoc="left")
        made.auto_set_font_size(value=False)
        made.set_fontsize(7)


_PAINTERS = {Kind.LINES: _lines, Kind.STACK: _lines, Kind.NUMBER: _number, Kind.TABLE: _table}


def _points(values: list[list[Any]], end: float) -> tuple[list[float], list[float]]:
    return [(float(at) - end) / 60 for at, _ in values], [float(value) for _, value in values]


def _legend(template: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), template).strip() or "value"


def in_unit(value: float, unit: Unit) -> str:
    """A number as people read it."""
    if math.isnan(value):
        return "no data"
    if unit is Unit.PART:
        return f"{value * 100:.3g} %"
    if unit is Unit.BYTES:
        return _scaled(value, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))
    if unit is Unit.SECONDS:
        return f"{value * 1000:.3g} ms" if 0 < value < 1 else f"{value:.3g} s"
    if unit is Unit.HERTZ:
        return _scaled(value, 1000, ("Hz", "kHz", "MHz", "GHz"))
    return f"{value:.3g}" + {Unit.PER_S: "/s", Unit.CELSIUS: " °C", Unit.WATTS: " W"}.get(unit, "")


def _scaled(value: float, base: int, names: tuple[str, ...]) -> str:
    step = 0
    while abs(value) >= base and step < len(names) - 1:
        value, step = value / base, step + 1
    return f"{value:.3g} {names[step]}"


def main(arguments: list[str] | None = None) -> int:
    """Writes a picture for each dashboard."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prometheus", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--rate-interval", default="1m")
    options = parser.parse_args(arguments)
    end = time.time()
    seconds = options.minutes * 60
    source = Source(options.prometheus, end - seconds, end, max(1.0, seconds / 300))
    options.out.mkdir(parents=True, exist_ok=True)
    for board in BOARDS:
        figure = paint(board, source, options.rate_interval)
        drawn = io.BytesIO()
        figure.savefig(drawn, dpi=80, format="png", metadata={"Software": None})
        # A palette: a third of the bytes, and nobody sees it.
        Image.open(drawn).convert("RGB").quantize(96).save(options.out / f"dashboard-{board.uid}.png", optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
