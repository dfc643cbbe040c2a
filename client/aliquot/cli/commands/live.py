"""`top`: the pool as a live screen."""

from __future__ import annotations

import argparse
import time

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from aliquot.cli import _options as options
from aliquot.cli._command import Work
from aliquot.cli._out import Out
from aliquot.cli._parser import seconds
from aliquot.cli.top import screen, snapshot
from aliquot.client import DeadlineExceeded, Pool, Unavailable

EVERY_MIN_S = 0.1


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "With --json: one line per refresh, or one document with --once. Into a pipe it draws once."
    parser.add_argument("--once", action="store_true", help="draw once, then end")
    parser.add_argument("--every", type=seconds, default=1.0, metavar="TIME", help="refresh interval (1s)")


def _top(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    every_s = max(EVERY_MIN_S, args.every)
    if out.as_json and not args.once:
        while True:
            out.line(snapshot.take(pool))
            time.sleep(every_s)
    if out.as_json or args.once or not out.console.is_terminal:
        look = snapshot.take(pool)
        out.document(look)
        out.show(screen.draw(look))
    else:
        _live(out, pool, every_s)


def _live(out: Out, pool: Pool, every_s: float) -> None:
    look = snapshot.take(pool)
    with Live(console=out.console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                live.update(_fitted(out, look), refresh=True)
                time.sleep(every_s)
                try:
                    look = snapshot.take(pool)
                except (Unavailable, DeadlineExceeded) as error:
                    # A restart takes a moment; the last snapshot stays on the screen, marked as old.
                    live.update(Group(Text(error.message, "bold red"), _fitted(out, look)), refresh=True)
                    time.sleep(every_s)
        except KeyboardInterrupt:
            return


def _fitted(out: Out, look: snapshot.Snapshot) -> RenderableType:
    return screen.draw(look, rows=out.console.size.height)


TOP = Work(_configure, options.on_pool(_top))
