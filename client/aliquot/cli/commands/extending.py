"""`extend`: a longer time limit for a lease that has one."""

from __future__ import annotations

import argparse
import time
from datetime import datetime, timedelta

from aliquot.cli import _options as options
from aliquot.cli import _views as views
from aliquot.cli._command import Work
from aliquot.cli._out import Out
from aliquot.client import Lease, Pool
from aliquot.common.errors import ConfigError


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "aliquot extend LEASE 2h             two hours more\n"
        "aliquot extend LEASE --until 18:00  to the next 18:00 by the clock of this machine\n"
        "aliquot extend LEASE --to 8h        eight hours in all\n"
        "Refused where others were promised what it holds for when it ends; the message says up to when it can stay."
    )
    parser.add_argument("lease_id", metavar="LEASE")
    parser.add_argument("by_s", metavar="TIME", nargs="?", type=options.whole_seconds, help="how much more")
    parser.add_argument("--until", default="", metavar="TIME", help="18:00, or 2026-11-24T18:00")
    parser.add_argument("--to", dest="to_s", type=options.whole_seconds, metavar="TIME", help="its time limit in all")
    parser.add_argument("--reason", default="", help="for people")


def _extend(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    if sum((args.by_s is not None, bool(args.until), args.to_s is not None)) != 1:
        raise ConfigError("say how long: a time, --until or --to", hint="aliquot extend LEASE 2h")
    if args.to_s is not None:
        wanted_s = args.to_s
    else:
        lease = pool.get(args.lease_id)
        wanted_s = lease.time_limit_s + args.by_s if args.by_s is not None else _up_to(lease, args.until)
    lease = pool.extend(args.lease_id, wanted_s, reason=args.reason)
    out.document(lease)
    out.show(*views.lease_view(lease))


def _up_to(lease: Lease, text: str) -> int:
    """The time limit with which it ends then, in seconds."""
    if not lease.ends_ms:
        raise ConfigError("--until: it is not granted, or has no time limit", hint="aliquot extend LEASE 2h")
    until_ms = round(next_time(text, datetime.fromtimestamp(time.time()).astimezone()).timestamp() * 1000)
    return max(1, -((lease.granted_ms - until_ms) // 1000))


def next_time(text: str, now: datetime) -> datetime:
    """When it is that time: of a time alone the next one. Without a zone it is that of `now`. Raises ConfigError."""
    try:
        if "T" in text or "-" in text:
            found = datetime.fromisoformat(text)
            return found if found.tzinfo is not None else found.replace(tzinfo=now.tzinfo)
        clock = datetime.strptime(text, "%H:%M").replace(tzinfo=now.tzinfo)
    except ValueError as error:
        raise ConfigError(f"--until: {text!r} is not a time", hint="write it as 18:00 or 2026-11-24T18:00") from error
    found = now.replace(hour=clock.hour, minute=clock.minute, second=0, microsecond=0)
    return found if found > now else found + timedelta(days=1)


EXTEND = Work(_configure, options.on_pool(_extend))
