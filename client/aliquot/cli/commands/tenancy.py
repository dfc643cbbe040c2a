"""`apply`, `tenants`, `queues`, `invoice`, `credit`: who may use how much, and what it costs."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from aliquot.cli import _invoices as invoices
from aliquot.cli import _options as options
from aliquot.cli import _poolfile as poolfile
from aliquot.cli._command import Builtin
from aliquot.cli._exits import Exit
from aliquot.cli._json import message_document
from aliquot.cli._out import Out
from aliquot.cli._table import table
from aliquot.common.errors import ConfigError
from aliquot.common.quantity import human_bytes, parse_quantity
from aliquot.v1 import admin_pb2


def _configure_apply(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (poolfile.__doc__ or "").partition("\n\n")[2]
    parser.add_argument("--file", "-f", type=Path, required=True, help="pool.yaml, .json or .toml")
    parser.add_argument("--dry-run", action="store_true", help="check everything, change nothing")


def _apply(args: argparse.Namespace) -> int:
    out = Out.of(args)
    request = poolfile.read_pool_file(args.file)
    request.dry_run = args.dry_run
    with options.open_pool(args) as pool:
        _name_versions(request, pool.admin.tenancy())
        answer = pool.admin.apply(request)
    if out.as_json:
        out.document(message_document(answer))
        return Exit.OK
    word = "would be declared" if args.dry_run else "declared"
    for name, version in sorted(answer.changed.items()):
        out.show(f"{name}: {word} (version {version})")
    out.show(f"{len(answer.changed)} {word}, {len(answer.unchanged)} unchanged")
    return Exit.OK


def _name_versions(request: admin_pb2.ApplyRequest, known: admin_pb2.Tenancy) -> None:
    """Replace what was there a moment ago, and nothing that somebody has changed since."""
    for items, views in (
        (request.pools, known.pools),
        (request.queues, known.queues),
        (request.tenants, known.tenants),
    ):
        versions = {view.spec.name: view.version for view in views}
        for item in items:
            item.version = versions.get(item.spec.name, 0)
    if request.HasField("rates"):
        request.rates_version = known.rates_version


def _configure_nothing(parser: argparse.ArgumentParser) -> None:
    """No options of its own."""


def _tenants(args: argparse.Namespace) -> int:
    out = Out.of(args)
    with options.open_pool(args) as pool:
        tenancy = pool.admin.tenancy()
    if out.as_json:
        out.document({"tenants": [message_document(view) for view in tenancy.tenants], "alerts": list(tenancy.alerts)})
        return Exit.OK
    rows = [
        (
            view.spec.name if view.version else f"{view.spec.name} (undeclared)",
            *_use(view.use, view.spec.quota),
            f"{view.budget_permille / 10:g} %" if view.spec.HasField("budget") else "-",
        )
        for view in tenancy.tenants
    ]
    out.show(table("TENANT", *_USE_COLUMNS, ("BUDGET", "right"), rows=rows, spare=_SPARE))
    _alerts(out, tenancy)
    return Exit.OK


def _queues(args: argparse.Namespace) -> int:
    out = Out.of(args)
    with options.open_pool(args) as pool:
        tenancy = pool.admin.tenancy()
    if out.as_json:
        out.document({"queues": [message_document(view) for view in tenancy.queues], "alerts": list(tenancy.alerts)})
        return Exit.OK
    views = {view.spec.name: view for view in tenancy.queues}

    def rows(parent: str, depth: int) -> list[tuple[str, ...]]:
        found: list[tuple[str, ...]] = []
        for name, view in views.items():
            if (view.spec.parent if name != "root" else "") == parent and depth < 16:
                found.append(("  " * depth + name, view.spec.policy, *_use(view.use, view.spec.quota)))
                found += rows(name, depth + 1)
        return found

    out.show(table("QUEUE", "POLICY", *_USE_COLUMNS, rows=rows("" if "root" in views else "root", 0), spare=_SPARE))
    _alerts(out, tenancy)
    return Exit.OK


_USE_COLUMNS: tuple[tuple[str, str], ...] = (
    ("GPUS", "right"),
    ("MEMORY", "right"),
    ("GUARANTEED", "right"),
    ("LIMIT", "right"),
    ("WEIGHT", "right"),
    ("WAITING", "right"),
)
_SPARE = ("WEIGHT", "MEMORY", "LIMIT")


def _use(use: admin_pb2.AccountUse, quota: admin_pb2.Quota) -> tuple[str, ...]:
    limit = f"{quota.limit.share_milli / 1000:g}" if quota.limit.HasField("share_milli") else "-"
    guaranteed = f"{quota.guaranteed.share_milli / 1000:g}" if quota.guaranteed.HasField("share_milli") else "-"
    return (
        f"{use.share_milli / 1000:g}",
        human_bytes(use.memory_bytes),
        guaranteed,
        limit,
        str(quota.weight),
        str(use.waiting),
    )


def _alerts(out: Out, tenancy: admin_pb2.Tenancy) -> None:
    for alert in tenancy.alerts:
        out.show(f"! {alert}")


def _configure_invoice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tenant", metavar="TENANT")
    parser.add_argument("--month", metavar="YYYY-MM", help="a calendar month in UTC (default: the present one)")
    parser.add_argument("--from", dest="from_", metavar="TIME", help="ISO time, UTC unless it says otherwise")
    parser.add_argument("--to", metavar="TIME", help="ISO time; the invoice ends before it")
    parser.add_argument("--format", choices=("table", "csv", "html"), default="table", help="html: a page to print")


def _invoice(args: argparse.Namespace) -> int:
    out = Out.of(args)
    start, end = _period(args)
    with options.open_pool(args) as pool:
        invoice = pool.admin.invoice(args.tenant, from_ms=_ms(start), to_ms=_ms(end))
    if out.as_json:
        out.document(message_document(invoice))
    elif args.format == "csv":
        sys.stdout.write(invoices.as_csv(invoice))
    elif args.format == "html":
        sys.stdout.write(invoices.as_page(invoice))
    else:
        out.show(
            f"{invoice.invoice_id}: {invoice.tenant}, {invoices.day(invoice.from_ms)} to "
            f"{invoices.day(invoice.to_ms)} UTC, in {invoice.currency}"
        )
        columns = [
            (name.upper().replace("_", " "), "left" if n < 2 else "right") for n, name in enumerate(invoices.COLUMNS)
        ]
        out.show(table(*columns, rows=invoices.rows(invoice)))
        for name, amount in invoices.sums(invoice):
            out.show(f"{name}: {amount}")
        for note in (*invoice.notes, *invoices.measured(invoice)):
            out.note(note)
    return Exit.OK


def _period(args: argparse.Namespace) -> tuple[datetime, datetime]:
    if args.from_ or args.to:
        if not (args.from_ and args.to):
            raise ConfigError("--from and --to go together", hint="write 2026-11-01T00:00 for each")
        return _moment("--from", args.from_), _moment("--to", args.to)
    try:
        start = datetime.strptime(args.month, "%Y-%m").replace(tzinfo=UTC) if args.month else datetime.now(UTC)
    except ValueError as error:
        raise ConfigError(f"--month: {args.month!r} is no month", hint="write it as 2026-11") from error
    start = start.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return start, (start + timedelta(days=32)).replace(day=1)


def _moment(option: str, text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {text!r} is no time", hint="write it as 2026-11-01T00:00") from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _ms(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _configure_credit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tenant", metavar="TENANT")
    parser.add_argument("amount", metavar="AMOUNT", help="in the currency of the prices; below zero: paid back")
    parser.add_argument("--reference", required=True, help="of the payment; the same one is posted once")
    parser.add_argument("--note", default="", help="for people")


def _credit(args: argparse.Namespace) -> int:
    out = Out.of(args)
    micro = parse_quantity(args.amount) * 10**6
    if micro.denominator != 1:
        raise ConfigError(f"{args.amount} is finer than a millionth")
    with options.open_pool(args) as pool:
        balance = pool.admin.post_credit(args.tenant, micro.numerator, reference=args.reference, note=args.note)
    if out.as_json:
        out.document({"tenant": args.tenant, "balance_micro": str(balance)})
    else:
        out.show(f"{args.tenant}: balance {invoices.money(balance)}")
    return Exit.OK


APPLY = Builtin("apply", "declare pools, tenants, queues and prices of a file", _configure_apply, _apply)
TENANTS = Builtin("tenants", "who may use how much, and does", _configure_nothing, _tenants)
QUEUES = Builtin("queues", "the tree of queues, and what waits in them", _configure_nothing, _queues)
INVOICE = Builtin("invoice", "what a tenant owes for a period", _configure_invoice, _invoice)
CREDIT = Builtin("credit", "post money that a tenant paid", _configure_credit, _credit)
