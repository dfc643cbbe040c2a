"""Capacity that follows demand: forecasts against doing without, and nodes that come and go, on the public lists.

    python bench/scale.py --traces "$ALIQUOT_TRACES" --json

Fields:

    mae_ratio_24h        of each of nine series (`lib/demand.py`): mean absolute error of forecasts for 24 hours,
                         over that of the seasonal naive one (the same hour of the day before), both at all hours ahead
                         of all origins, one every five hours, fitted to the 28 days before; the nine's geometric mean
    mae_ratio_6h         the same of the first six hours ahead: both errors are of these alone
    mae_ratio_worst      the largest of the nine, at 24 hours
    mase                 over the better of the last value and the same hour of the day before; geometric mean
    coverage_90          part of the outcomes within 90 % intervals, mean over the nine; `coverage_worst`: the least
    pinball_90           mean pinball loss at the 95th percentile, over the mean of each series
    start_error_ratio    median error of expected starts over that of "as long as the last one waited" (`lib/starts.py`)
    start_coverage_90    part of the starts within their 90 % intervals

and those of `lib/scale_nodes.py`: node_hours_saved, p95_wait_ratio, guarantees_missed, reversals_per_node_day,
reaction_s.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from aliquot.forecast.backtest import score, try_out
from aliquot.forecast.models import Floats
from bench.lib import scale_nodes
from bench.lib import starts as expected_starts
from bench.lib.demand import kinds, series
from bench.lib.forecast_table import Row, figures, write

FIELDS = {
    "forecast": ("mae_ratio_24h", "mae_ratio_6h", "mae_ratio_worst", "coverage_90"),
    "starts": ("start_error_ratio",),
    "nodes": ("node_hours_saved", "p95_wait_ratio", "guarantees_missed", "reversals_per_node_day", "reaction_s"),
}
"""What each part measures at least: those that there are bars for."""


def forecast(options: argparse.Namespace) -> dict[str, float]:
    """Back-test the nine series."""
    rows = [_row(name, hours, options) for name, hours in series(options.traces).items()]
    if options.write or not options.json:
        beside = [_row(name, hours, options) for name, hours in kinds(options.traces).items()]
        if options.write:
            write([*rows, *beside])
    return figures(rows)


def _row(name: str, hours: Floats, options: argparse.Namespace) -> Row:
    row = row_of(name, hours)
    if not options.json:
        print(row.line, flush=True)
    return row


def row_of(name: str, hours: Floats) -> Row:
    """A line of the table in docs/forecast.md."""
    found = score(hours, try_out(hours))
    return Row(name, found.origins, found.ratio, found.ratio_6h, found.mase, found.pinball, found.coverage)


def starts(options: argparse.Namespace) -> dict[str, float]:
    """Expected starts."""
    return expected_starts.run(options.traces, options.jobs)


def nodes(options: argparse.Namespace) -> dict[str, Any]:
    """Nodes that come and go."""
    return scale_nodes.run(options)


PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "forecast": forecast,
    "starts": starts,
    "nodes": nodes,
}


def main() -> None:
    """Measure, part by part."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = Path(os.environ.get("ALIQUOT_TRACES", "."))
    parser.add_argument("--traces", type=Path, default=default, help="folder of the public lists")
    parser.add_argument("--jobs", type=int, default=3000, help="of the queue whose starts are expected")
    parser.add_argument("--only", choices=sorted(PARTS), action="append", help="may be repeated (all)")
    parser.add_argument("--json", action="store_true", help="only the JSON line on stdout")
    parser.add_argument("--write", action="store_true", help="put the table of forecasts into docs/forecast.md")
    options = parser.parse_args()
    result: dict[str, Any] = {}
    for name, measure in PARTS.items():
        if not options.only or name in options.only:
            found = measure(options)
            missing = [field for field in FIELDS[name] if field not in found]
            assert not missing, f"{name} has not measured {', '.join(missing)}"
            result |= found
            if not options.json:
                print(name, json.dumps(result), flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
