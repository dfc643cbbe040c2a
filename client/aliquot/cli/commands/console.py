"""`console`: the pool in a browser, without typing a token."""

from __future__ import annotations

import argparse
import webbrowser

from aliquot.cli import _options as options
from aliquot.cli._browser import link_to
from aliquot.cli._command import Work
from aliquot.cli._oidc import has_screen
from aliquot.cli._out import Out
from aliquot.cli.localpool import Layout, PoolRecord
from aliquot.client import Pool
from aliquot.common.errors import ConfigError


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "The link lets one browser in, once and within ten minutes, as you: show it to nobody."
    parser.add_argument("url", nargs="?", metavar="URL", help="the console's address (default: that of `aliquot up`)")
    parser.add_argument("--no-browser", action="store_true", help="only print the link")


def _run(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    link = link_to(args.url or _running(), pool.token_text)
    out.document({"url": link})
    if not (out.as_json or args.no_browser) and has_screen() and webbrowser.open(link):
        out.note("your browser shows it")
    else:
        out.word(link)


def _running() -> str:
    record = PoolRecord.read(Layout.of(None))
    if record is None or not record.console:
        raise ConfigError(
            "no console runs here that `aliquot up` has started", hint="name its address: aliquot console https://…"
        )
    return record.console


CONSOLE = Work(_configure, options.on_pool(_run))
