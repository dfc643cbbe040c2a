"""`aliquot plan`: what would happen, or would have happened, with these requests on that pool?"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from aliquot.common.entry import Entry
from aliquot.common.errors import ConfigError
from aliquot.coordinator.core.placement.machine_code import warm_up
from aliquot.coordinator.core.placement.policies.price import Price
from aliquot.coordinator.settings.user_policies import discover, require
from aliquot.plan.arrivals import tuned_arrivals
from aliquot.plan.nodes import more_of, read_nodes
from aliquot.plan.traces import TraceRequest, read_requests
from aliquot.plan.whatif import Outcome, evaluate, has_times

COMPILE_FROM = 2_000
"""Requests from which on compiled scoring saves more than the second that loading it takes."""
_FILL_MAX_PERCENT = 1_000
"""Ten times what there is: each percent is drawn and tried."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "--nodes",
        type=Path,
        required=True,
        metavar="FILE",
        help="the pool: CSV, YAML, JSON, TOML; - reads standard input",
    )
    parser.add_argument("--trace", type=Path, required=True, metavar="FILE", help="the requests: a CSV list")
    parser.add_argument("--policy", "-P", action="append", default=[], metavar="NAME", help="may be repeated (price)")
    parser.add_argument("--more", type=int, default=0, metavar="N", help="also with so many nodes more")
    parser.add_argument("--like", default="", metavar="NODE", help="the nodes more are like this one")
    parser.add_argument(
        "--fill", type=int, default=0, metavar="PERCENT", help="ignore times: requests drawn from the list up to this"
    )
    parser.add_argument("--seed", type=int, default=42, help="of the draw of --fill")


def run(args: argparse.Namespace) -> int:
    """Replay and show a table; with `--json`, one object."""
    discover()
    names: list[str] = args.policy or [Price.name]
    for name in names:
        require(name)
    if args.more < 0 or not 0 <= args.fill <= _FILL_MAX_PERCENT:
        raise ConfigError(f"--more is a number from 0 on, and --fill one from 0 to {_FILL_MAX_PERCENT}")
    outcomes = _evaluate(args, names)
    if getattr(args, "json", False):
        sys.stdout.write(json.dumps({"outcomes": [_plain(outcome) for outcome in outcomes]}) + "\n")
    else:
        Console(markup=False, emoji=False).print(_table(outcomes))
    return 0


def _evaluate(args: argparse.Namespace, names: Sequence[str]) -> list[Outcome]:
    nodes = read_nodes(args.nodes)
    requests: list[TraceRequest] = read_requests(args.trace)
    if not nodes or not requests:
        raise ConfigError("nothing to plan", hint="both lists need at least one line")
    if Price.name in names and len(requests) >= COMPILE_FROM:
        warm_up()
    pools = [("", nodes)]
    if args.more:
        pools.append((f" +{args.more} nodes", nodes + more_of(nodes, args.more, args.like)))
    if args.fill:
        capacity = sum(device.compute_milli for node in nodes for device in node.devices)
        requests = tuned_arrivals(requests, capacity, args.fill * 10, args.seed)
    in_time = not args.fill and has_times(requests)
    outcomes: list[Outcome] = []
    with Progress(console=Console(stderr=True, markup=False), transient=True) as progress:
        for name in names:
            for suffix, pool in pools:
                bar = progress.add_task(f"{name}{suffix}", total=len(requests))

                def tick(done: int, bar: object = bar) -> None:
                    progress.update(bar, completed=done)  # type: ignore[arg-type]

                label = f"{name}{suffix}"
                outcomes.append(evaluate(label, pool, requests, name, in_time=in_time, progress=tick))
    return outcomes


def _table(outcomes: Sequence[Outcome]) -> Table:
    table = Table()
    for column in ("", "devices", "placed", "allocated", "idle of no use", "wait p50", "wait p95"):
        table.add_column(column, justify="left" if not column else "right")
    for outcome in outcomes:
        in_time = outcome.timeline is not None
        table.add_row(
            outcome.label,
            str(outcome.devices),
            f"{outcome.placed} of {outcome.requests}",
            f"{outcome.allocated_percent:.2f} %",
            f"{outcome.fragmented_percent:.1f} %",
            _time_text(outcome.wait_p50_s) if in_time else "",
            _time_text(outcome.wait_p95_s) if in_time else "",
        )
    return table


def _time_text(seconds: float) -> str:
    """For people."""
    if seconds >= 2 * 86_400:
        return f"{seconds / 86_400:.1f} d"
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.0f} s"


def _plain(outcome: Outcome) -> dict[str, object]:
    names = ("label", "policy", "devices", "requests", "placed", "allocated_percent", "fragmented_percent")
    document: dict[str, object] = {name: getattr(outcome, name) for name in names}
    if outcome.timeline is not None:
        document |= {
            "wait_p50_s": outcome.wait_p50_s,
            "wait_p95_s": outcome.wait_p95_s,
            "left_waiting": outcome.timeline.left_waiting,
            "impossible": outcome.timeline.impossible,
        }
    return document


PLAN = Entry(configure, run)
