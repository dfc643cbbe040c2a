"""`aliquot plan --forecast 90d`: a table and a picture of cost against waiting."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from aliquot.common.duration import parse_duration_ms
from aliquot.common.errors import ConfigError
from aliquot.coordinator.core.placement.policies.price import Price
from aliquot.plan.buying import Purchase, buy
from aliquot.plan.drawing import draw_purchase
from aliquot.plan.nodes import read_nodes
from aliquot.plan.traces import read_requests

DAY_MS = 86_400_000
DAYS_MAX = 730


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of a forecast."""
    group = parser.add_argument_group("how many devices to buy")
    group.add_argument("--forecast", metavar="TIME", help="the requests to come for so long, such as 90d")
    group.add_argument("--price", type=float, default=2.0, help="of a device for an hour (2.0)")
    group.add_argument("--wait", metavar="TIME", default="1h", help="19 of 20 requests should wait no longer (1h)")
    group.add_argument(
        "--growth", type=float, metavar="PERCENT", help="of demand in 30 days (as it has grown from week to week)"
    )


def run(args: argparse.Namespace) -> int:
    """Replay, and show what was found."""
    days = parse_duration_ms(args.forecast) // DAY_MS
    if not 1 <= days <= DAYS_MAX:
        raise ConfigError(f"--forecast {args.forecast} is not 1 to {DAYS_MAX} whole days", hint="such as 90d")
    if args.fill:
        raise ConfigError("--fill and --forecast exclude each other", hint="--fill ignores times")
    growth = None if args.growth is None else math.log1p(max(args.growth, -99.0) / 100) * 7 / 30
    as_json = getattr(args, "json", False)
    with Progress(console=Console(stderr=True, markup=False), transient=True) as progress:

        def begin(label: str, total: int) -> Callable[[int], None]:
            bar = progress.add_task(label, total=total)
            return lambda done: progress.update(bar, completed=done)

        found = buy(
            read_nodes(args.nodes),
            read_requests(args.trace),
            (args.policy or [Price.name])[0],
            days=days,
            price=args.price,
            wait_s=parse_duration_ms(args.wait) / 1000,
            growth_per_week=growth,
            most_nodes=args.more,
            like=args.like,
            seed=args.seed,
            begin=begin,
        )
    if args.plot:
        draw_purchase(found, args.plot, title=f"{args.trace.name}, {days} days ahead")
    if as_json:
        sys.stdout.write(json.dumps(_plain(found)) + "\n")
    else:
        _show(found, days, args.wait)
    return 0


def _plain(found: Purchase) -> dict[str, object]:
    advised = found.advised
    return {
        "requests": found.requests,
        "growth_percent_per_30_days": 100 * math.expm1(found.growth_per_week * 30 / 7),
        "advised_more_nodes": None if advised is None else advised.more_nodes,
        "options": [
            {
                name: (None if isinstance(value, float) and math.isinf(value) else value)
                for name in option.__slots__
                for value in (getattr(option, name),)
            }
            for option in found.options
        ],
    }


def _show(found: Purchase, days: int, wait: str) -> None:
    table = Table()
    for column in ("nodes more", "devices", "cost", "wait p50", "wait p95", "allocated"):
        table.add_column(column, justify="right")
    for option in found.options:
        table.add_row(
            f"+{option.more_nodes}",
            f"{option.devices} (+{option.more_devices})",
            f"{option.cost:,.0f}",
            time_text(option.wait_p50_s),
            time_text(option.wait_p95_s),
            f"{option.allocated_percent:.1f} %",
            style="bold" if option.met else None,
        )
    console = Console(markup=False, emoji=False)
    console.print(table)
    growth = 100 * math.expm1(found.growth_per_week * 30 / 7)
    console.print(f"{found.requests:,} requests in {days} days, with a growth of {growth:+.1f} % in 30 days")
    advised = found.advised
    if advised is None:
        console.print(f"no pool that was tried keeps 19 of 20 waits within {wait}: allow more nodes by --more")
    elif advised.more_nodes:
        console.print(f"{advised.more_devices} devices more keep 19 of 20 waits within {wait}")
    else:
        console.print(f"nothing needs to be bought: 19 of 20 requests wait no longer than {wait}")


def time_text(seconds: float) -> str:
    """For people."""
    if math.isinf(seconds):
        return "for ever"
    if seconds >= 2 * 86_400:
        return f"{seconds / 86_400:.1f} d"
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.0f} s"
