"""`aliquot watch-use`: once as a table, or for ever as a service."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from aliquot.cli._out import Out
from aliquot.cli._parser import seconds
from aliquot.cli._table import table_of
from aliquot.common import logging as common_logging
from aliquot.common.entry import Entry
from aliquot.common.errors import ConfigError
from aliquot.common.urls import check_url
from aliquot.common.utilisation import USUAL_BOUNDS, USUAL_WEIGHTS, Bounds, Weights
from aliquot.console.monitor.app import make_app
from aliquot.console.monitor.rating import COLUMNS, NUMBERS, Row, shown, stats
from aliquot.console.monitor.readings import Window
from aliquot.console.monitor.watching import Settings, Watching, look
from aliquot.console.serving import serve_app

_DAY_S = 86_400


def configure(parser: argparse.ArgumentParser) -> None:
    """Each option's default is the environment's, by the name in capitals."""
    parser.epilog = (
        "With --once a table, else a service: /results, /results/low, /results/stats, /analyze, /health,\n"
        "/metrics, and a page at /. Whoever reaches it may read it. The score is a weighted mean of how busy a\n"
        "card is, its memory's copies, its memory used and its power. What is not told is left out."
    )
    parser.add_argument("--once", action="store_true", help="look once, and show a table")
    of = _Environment(parser)
    of.add("--prom-url", "PROM_URL", "http://prometheus:9090", metavar="URL", help="the Prometheus to ask")
    of.add("--prom-token-file", "PROM_TOKEN_FILE", "", metavar="FILE", help="a bearer token for it")
    of.add("--query-condition", "QUERY_CONDITION", '{pod!=""}', help="a selector of series; empty: all cards")
    of.add("--tenant-label", "TENANT_LABEL", "", metavar="LABEL", help="whose it is (default: the namespace)")
    of.add("--threshold", "THRESHOLD", str(USUAL_BOUNDS.low), type=float, help="below it a card is low")
    of.add("--interval", "INTERVAL", "300", type=_seconds, help="between two looks")
    of.add("--time-window-min", "TIME_WINDOW_MIN", "10", type=int, metavar="MINUTES", help="that means are taken of")
    of.add("--step", "STEP", "30s", type=_seconds, help="how often within the window")
    for name, usual in USUAL_WEIGHTS._asdict().items():
        of.add(f"--{name.replace('_', '-')}-weight", f"{name.upper()}_WEIGHT", str(usual), type=float)
    of.add("--control-api", "CONTROL_API", "", metavar="URL", help="is told of each card below the threshold")
    of.add("--host", "HOST", "127.0.0.1", help="where the service listens")
    of.add("--port", "PORT", "8080", type=int, help="0: a free one")


def run(args: argparse.Namespace) -> int:
    """As a table once, or as a service until it is told to end."""
    settings = _settings(args)
    if args.once:
        _show(Out.of(args), look(settings))
    else:
        common_logging.configure("info", json=args.json)
        serve_app(make_app(Watching(settings)), (args.host, args.port))
    return 0


class _Environment:
    """Adds options whose defaults come from the environment."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parser = parser

    def add(self, option: str, name: str, default: str, **more: object) -> None:
        """`name`: of the variable, and of the help's last words."""
        about = f"{more.pop('help', 'how much this part of the score counts')} ({name}; {default or 'none'})"
        self._parser.add_argument(option, default=os.environ.get(name, default), help=about, **more)  # type: ignore[arg-type]


def _seconds(text: str) -> int:
    """As `seconds`, whole ones."""
    found = seconds(text)
    if not 1 <= found <= _DAY_S:
        raise argparse.ArgumentTypeError(f"{text} is not between a second and a day")
    return int(found)


def _settings(args: argparse.Namespace) -> Settings:
    """Raises ConfigError."""
    weights = Weights(*(getattr(args, f"{name}_weight") for name in Weights._fields))
    if min(weights) < 0 or not weights.gpu_util:
        raise ConfigError(f"weights are {tuple(weights)}", hint="none is below 0, and GPU_UTIL_WEIGHT is above")
    most = USUAL_BOUNDS.normal
    if not 0 < args.threshold <= most:
        raise ConfigError(f"the threshold is {args.threshold:g}", hint=f"it is above 0, and {most:g} at most")
    window = Window(args.query_condition, args.time_window_min * 60, args.step)
    try:
        window.check()
        token = Path(args.prom_token_file).read_text(encoding="ascii").strip() if args.prom_token_file else ""
    except ValueError as error:
        raise ConfigError(str(error), hint="see `aliquot watch-use --help`") from error
    except OSError as error:
        raise ConfigError(
            f"{args.prom_token_file} can't be read: {error.strerror}", hint="--prom-token-file"
        ) from error
    check_url(args.prom_url, public=not token)
    if args.control_api:
        check_url(args.control_api, public=True)
    told = os.environ.get("CONTROL_API_ENABLED", "true").lower() not in {"0", "false", "no", "off"}
    return Settings(
        prom_url=args.prom_url,
        prom_token=token,
        window=window,
        interval_s=args.interval,
        weights=weights,
        # Half of the threshold, as 10 is of 20.
        bounds=Bounds(args.threshold / 2, args.threshold, most),
        tenant_label=args.tenant_label,
        control_api=args.control_api if told else "",
    )


def _show(out: Out, rows: list[Row]) -> None:
    sums = stats(rows)
    out.document({"results": [row.document() for row in rows], "stats": sums})
    if not rows:
        out.note("no card is told of: does this Prometheus scrape dcgm-exporter? --query-condition '' shows all cards")
        return
    out.show(table_of(rows, COLUMNS, right=NUMBERS, spare=("CARD", "MODEL", "POWER")))
    mean = shown(sums["avg_score"])
    out.show(f"{sums['total_gpus']} cards, mean score {mean}, {sums['low_utilization_count']} low or idle")


WATCH_USE = Entry(configure, run)
