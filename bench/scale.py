"""Capacity that follows demand: forecasts against doing without, and nodes that come and go, on the public lists.

    python bench/scale.py --traces "$ALIQUOT_TRACES" --json

Fields:

    mae_ratio_24h        mean absolute error of the forecast over the next 24 hours, over that of the seasonal naive one
                         (the same hour of the day before): geometric mean over nine series (`_demand.py`), from
                         origins every five hours, fitted to the 28 days before
    mae_ratio_6h         the same for the first six hours
    mae_ratio_worst      the largest of the nine, at 24 hours
    mase                 over the better of the last value and the same hour of the day before; geometric mean
    coverage_90          part of the outcomes within 90 % intervals, mean over the nine; `coverage_worst`: the least
    pinball_90           mean pinball loss at the 95th percentile, over the mean of each series
    start_error_ratio    median error of expected starts over that of "as long as the last one waited" (`_starts.py`)
    start_coverage_90    part of the starts within their 90 % intervals

and those of `_scale_nodes.py`: node_hours_saved, p95_wait_ratio, guarantees_missed, reversals_per_node_day, reaction_s.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from aliquot.forecast.backtest import Score, score, try_out
from aliquot.forecast.models import Floats
from bench import _starts
from bench._demand import kinds, series


def forecast(options: argparse.Namespace) -> dict[str, float]:
    """Back-test the nine series."""
    scores = {name: _scored(name, hours, options) for name, hours in series(options.traces).items()}
    for name, hours in kinds(options.traces).items() if not options.json else ():
        _scored(name, hours, options)
    found_all = list(scores.values())
    return {
        "mae_ratio_24h": _geometric([found.ratio for found in found_all]),
        "mae_ratio_6h": _geometric([found.ratio_6h for found in found_all]),
        "mae_ratio_worst": round(max(found.ratio for found in found_all), 4),
        "mase": _geometric([found.mase for found in found_all]),
        "coverage_90": round(statistics.mean(found.coverage for found in found_all), 4),
        "coverage_worst": round(min(found.coverage for found in found_all), 4),
        "pinball_90": round(statistics.mean(found.pinball for found in found_all), 4),
    }


def _scored(name: str, hours: Floats, options: argparse.Namespace) -> Score:
    """A line of the table in docs/forecast.md."""
    found = score(hours, try_out(hours))
    if not options.json:
        figures = (found.ratio, found.ratio_6h, found.mase, found.pinball, found.coverage)
        print(f"| {name} | {found.origins} | {' | '.join(f'{figure:.2f}' for figure in figures)} |", flush=True)
    return found


def starts(options: argparse.Namespace) -> dict[str, float]:
    """Expected starts."""
    return _starts.run(options.traces, options.jobs)


def nodes(options: argparse.Namespace) -> dict[str, float]:
    """Nodes that come and go; nothing where that is not there."""
    if importlib.util.find_spec("bench._scale_nodes") is None:
        return {}
    found: dict[str, float] = importlib.import_module("bench._scale_nodes").run(options)
    return found


PARTS = {"forecast": forecast, "starts": starts, "nodes": nodes}


def main() -> None:
    """Measure, part by part."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    default = Path(os.environ.get("ALIQUOT_TRACES", "."))
    parser.add_argument("--traces", type=Path, default=default, help="folder of the public lists")
    parser.add_argument("--jobs", type=int, default=3000, help="of the queue whose starts are expected")
    parser.add_argument("--only", choices=sorted(PARTS), action="append", help="may be repeated (all)")
    parser.add_argument("--json", action="store_true", help="only the JSON line on stdout")
    options = parser.parse_args()
    result: dict[str, float] = {}
    for name, measure in PARTS.items():
        if not options.only or name in options.only:
            result |= measure(options)
            if not options.json:
                print(name, json.dumps(result), flush=True)
    print(json.dumps(result))


def _geometric(values: list[float]) -> float:
    return round(math.exp(statistics.mean(math.log(value) for value in values)), 4)


if __name__ == "__main__":
    main()
