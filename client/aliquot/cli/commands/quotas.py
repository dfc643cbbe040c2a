"""`quota`: change what a tenant or queue may use, and at which times of the day, without a file."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import replace

from aliquot.cli import _options as options
from aliquot.cli._command import Work
from aliquot.cli._out import Out
from aliquot.client import Pool, admin
from aliquot.common.errors import ConfigError
from aliquot.common.quantity import human_bytes, parse_bytes, parse_milli

_AMOUNTS = "such as 4, `0.5,20Gi`, `,20Gi` or none"
_EPILOG = """\
AMOUNT is a number of GPUs, memory after a comma, or both: 4, 0.5,20Gi, or `none`. What is not named stays as it is.

A window says when, then what is in force while it is open; the first of several that is open counts:

  aliquot quota tenant vision --limit 24 --window 'weekdays 08:00-18:00 Europe/Zurich: limit 4'
  aliquot quota queue batch --window 'weekends: guaranteed 16; limit none' --window '22:00-06:00: limit 8'

Days are `daily`, `weekdays`, `weekends` or such as mon-thu,sat; hours are on the wall in the zone (UTC unless said),
and 22:00-06:00 goes on into the next day. Windows that are given replace those there were; --no-windows takes all away.
Leases are not ended by a limit that comes down: nothing is added until enough was given back.
"""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("kind", choices=("tenant", "queue"), metavar="KIND", help="tenant or queue")
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("--guaranteed", metavar="AMOUNT", help="what it may count on")
    parser.add_argument("--limit", metavar="AMOUNT", help="what it never passes")
    parser.add_argument("--weight", type=int, metavar="N", help="how much it counts when idle capacity is shared out")
    windows = parser.add_mutually_exclusive_group()
    windows.add_argument(
        "--window", action="append", default=[], metavar="'WHEN: limit AMOUNT; guaranteed AMOUNT'", help="repeatable"
    )
    windows.add_argument("--no-windows", action="store_true", help="the same at all times")
    parser.add_argument("--dry-run", action="store_true", help="check everything, change nothing")


def _quota(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    changes = _changes(args)
    tenancy = pool.admin.tenancy()
    declared = _declared(tenancy, args.kind, args.name, changes)
    answer = pool.admin.apply(declared, over=tenancy, dry_run=args.dry_run)
    after = pool.admin.tenancy()
    out.document(answer)
    word = "would be declared" if args.dry_run else "declared"
    for name, version in sorted(answer.changed.items()):
        out.show(f"{name}: {word} (version {version})")
    for name in answer.unchanged:
        out.show(f"{name}: unchanged")
    views: Iterable[admin.TenantView | admin.QueueView] = after.tenants if args.kind == "tenant" else after.queues
    use = next((view.use for view in views if view.spec.name == args.name), None)
    if use is not None and use.windows is not None:
        out.show(in_force_text(use.windows))


def in_force_text(now: admin.WindowsNow) -> str:
    """What is in force of a quota with windows, for people."""
    where = f"window `{now.window}`" if now.window else "outside of its windows"
    return f"in force now: {_said(now.in_force)} ({where})"


def next_text(now: admin.WindowsNow, time: str) -> str:
    """What comes next, at this time; empty: nothing else ever."""
    if now.unknown:
        return "zone unknown"
    return f"{_said(now.next)} at {time}" if now.until_ms and now.next is not None else ""


def _said(quota: admin.Quota) -> str:
    return f"limit {_amount_text(quota.limit)}, guaranteed {_amount_text(quota.guaranteed)}"


def _amount_text(amount: admin.Amount) -> str:
    parts = [] if amount.share_milli is None else [f"{amount.share_milli / 1000:g}"]
    parts += [] if amount.memory_bytes is None else [human_bytes(amount.memory_bytes)]
    return " and ".join(parts) or "none"


def _changes(args: argparse.Namespace) -> dict[str, object]:
    """Fields of the quota that are replaced. Raises ConfigError."""
    changes: dict[str, object] = {}
    for field in ("guaranteed", "limit"):
        if (text := getattr(args, field)) is not None:
            changes[field] = _amount(text, f"--{field}")
    if args.weight is not None:
        changes["weight"] = args.weight
    if args.window or args.no_windows:
        changes["windows"] = tuple(map(_window, args.window))
    if not changes:
        raise ConfigError("nothing would be changed", hint="--limit, --guaranteed, --weight, --window, --no-windows")
    return changes


def _declared(tenancy: admin.Tenancy, kind: str, name: str, changes: dict[str, object]) -> admin.Declarations:
    if kind == "tenant":
        tenant = next((v.spec for v in tenancy.tenants if v.spec.name == name), admin.TenantSpec(name))
        return admin.Declarations(tenants=(replace(tenant, quota=_with(tenant.quota, changes)),))
    queue = next((v.spec for v in tenancy.queues if v.spec.name == name), admin.QueueSpec(name))
    return admin.Declarations(queues=(replace(queue, quota=_with(queue.quota, changes)),))


def _with(quota: admin.Quota, changes: dict[str, object]) -> admin.Quota:
    return replace(quota, **changes)  # type: ignore[arg-type]


def _amount(text: str, where: str) -> admin.Amount:
    if text.strip() == "none":
        return admin.Amount()
    gpus, _, memory = (part.strip() for part in text.partition(","))
    if not (gpus or memory):
        raise ConfigError(f"{where}: nothing is said", hint=_AMOUNTS)
    try:
        return admin.Amount(parse_milli(gpus) if gpus else None, parse_bytes(memory) if memory else None)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}", hint=_AMOUNTS) from error


def _window(text: str) -> admin.QuotaWindow:
    """`weekdays 08:00-18:00: limit 4; guaranteed 2`. The coordinator checks the time."""
    when, colon, said = text.rpartition(": ")
    found: dict[str, admin.Amount] = {}
    for part in said.split(";") if colon else ():
        word, _, amount = part.strip().partition(" ")
        if word not in ("limit", "guaranteed") or word in found:
            raise ConfigError(f"--window: {part.strip()!r} is neither `limit AMOUNT` nor `guaranteed AMOUNT`")
        found[word] = _amount(amount, f"--window: {word}")
    if not found:
        raise ConfigError(
            f"--window: {text!r} does not say what is in force then",
            hint="such as 'weekdays 08:00-18:00 Europe/Zurich: limit 4; guaranteed 2'",
        )
    return admin.QuotaWindow(when.strip(), found.get("guaranteed"), found.get("limit"))


QUOTA = Work(_configure, options.on_pool(_quota))
