"""`set-aside`: work that the coordinator leaves alone because deciding on it failed too often; retried when told to."""

from __future__ import annotations

import argparse
import time

from aliquot.cli import _options as options
from aliquot.cli import _words as words
from aliquot.cli._command import Work
from aliquot.cli._out import Out
from aliquot.cli._table import table_of
from aliquot.client import Pool


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Each of these is a defect: please report it with its error. What fails again is set aside again."
    parser.add_argument("subject", nargs="?", default="", metavar="SUBJECT", help="a lease, pool, tenant or window")
    parser.add_argument("--retry", action="store_true", help="have it tried again")


def _set_aside(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    ask = pool.admin.retry_set_aside if args.retry else pool.admin.set_aside
    found = ask(args.subject)
    out.document({"retried": args.retry, "set_aside": found})
    if not found:
        out.note("nothing is set aside")
        return
    now_ms = int(time.time() * 1000)
    out.show(
        table_of(
            found,
            {
                "SUBJECT": lambda one: one.subject or words.UNKNOWN,
                "WORK": lambda one: one.work,
                "FAILURES": lambda one: str(one.failures),
                "SINCE": lambda one: words.age(one.since_ms, now_ms),
                "ERROR": lambda one: one.error,
            },
            right=("FAILURES", "SINCE"),
            spare=("FAILURES", "SINCE"),
        )
    )
    out.note(f"{len(found)} tried again" if args.retry else "have them tried again with --retry")


SET_ASIDE = Work(_configure, options.on_pool(_set_aside))
