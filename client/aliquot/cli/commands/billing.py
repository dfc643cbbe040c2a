"""`invoice`, `credit`, `correct`, `close-books`: what was used, what it costs, and what was paid."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime, timedelta

from aliquot.cli import _invoices as invoices
from aliquot.cli import _options as options
from aliquot.cli._command import Work
from aliquot.cli._out import Out
from aliquot.cli._table import table
from aliquot.client import Pool
from aliquot.common.errors import ConfigError
from aliquot.common.quantity import parse_quantity


def _configure_invoice(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tenant", metavar="TENANT")
    parser.add_argument("--month", metavar="YYYY-MM", help="a calendar month in UTC (default: the present one)")
    parser.add_argument("--from", dest="from_", metavar="TIME", help="ISO time, UTC unless it says otherwise")
    parser.add_argument("--to", metavar="TIME", help="ISO time; the invoice ends before it")
    parser.add_argument("--format", choices=("table", "csv", "html"), default="table", help="html: a page to print")


def _invoice(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    start, end = _period(args)
    invoice = pool.admin.invoice(args.tenant, from_ms=_ms(start), to_ms=_ms(end))
    out.document(invoice)
    if args.format == "csv":
        out.word(invoices.as_csv(invoice).rstrip("\n"))
    elif args.format == "html":
        out.word(invoices.as_page(invoice).rstrip("\n"))
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


def _period(args: argparse.Namespace) -> tuple[datetime, datetime]:
    if args.from_ or args.to:
        if not (args.from_ and args.to):
            raise ConfigError("--from and --to go together", hint="write 2026-11-01T00:00 for each")
        return _moment("--from", args.from_), _moment("--to", args.to)
    try:
        start = datetime.strptime(args.month, "%Y-%m").replace(tzinfo=UTC) if args.month else datetime.now(UTC)
    except ValueError as error:
        raise ConfigError(f"--month: {args.month!r} is not a month", hint="write it as 2026-11") from error
    start = start.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return start, (start + timedelta(days=32)).replace(day=1)


def _moment(option: str, text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {text!r} is not a time", hint="write it as 2026-11-01T00:00") from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _ms(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _configure_credit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tenant", metavar="TENANT")
    parser.add_argument("amount", metavar="AMOUNT", help="in the currency of the prices; negative: paid back")
    parser.add_argument("--reference", required=True, help="of the payment; the same one is posted once")
    parser.add_argument("--note", default="", help="for people")


def _credit(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    micro = _whole(args.amount, 10**6)
    balance = pool.admin.post_credit(args.tenant, micro, reference=args.reference, note=args.note)
    out.document({"tenant": args.tenant, "balance_micro": str(balance)})
    out.show(f"{args.tenant}: balance {invoices.money(balance)}")


def _whole(text: str, scale: int) -> int:
    found = parse_quantity(text) * scale
    if found.denominator != 1:
        raise ConfigError(f"{text} has too many decimals", hint="write fewer decimals")
    return found.numerator


def _configure_correct(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Books an entry of today. Negative hours reduce the charge, as in --gpu-hours=-2.5."
    parser.add_argument("tenant", metavar="TENANT")
    parser.add_argument("--queue", required=True, help="the queue through which it was used, as on the invoice")
    parser.add_argument("--model", required=True, help="the model that was used: its price holds")
    parser.add_argument("--gpu-hours", default="0", metavar="HOURS", help="of whole devices")
    parser.add_argument("--gib-hours", default="0", metavar="HOURS", help="of GiB of device memory")
    parser.add_argument("--reference", required=True, help="of the correction; the same one is booked once")
    parser.add_argument("--note", default="", help="for people")


def _correct(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    share_milli_ms = _whole(args.gpu_hours, invoices.GPU_HOUR)
    memory_byte_ms = _whole(args.gib_hours, invoices.GIB_HOUR)
    if not share_milli_ms and not memory_byte_ms:
        raise ConfigError("nothing to correct", hint="give --gpu-hours, --gib-hours, or both")
    pool.admin.correct_usage(
        args.tenant,
        queue=args.queue,
        model=args.model,
        share_milli_ms=share_milli_ms,
        memory_byte_ms=memory_byte_ms,
        reference=args.reference,
        note=args.note,
    )
    out.document({"tenant": args.tenant, "reference": args.reference, "booked": True})
    out.show(f"{args.tenant}: booked as {args.reference}")


def _configure_close(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Closed days keep only sums: invoices then begin and end at midnight there. This can't be undone."
    parser.add_argument("day", metavar="DAY", help="the first day (UTC) that stays open: 2026-11-01")


def _close_books(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    day = _moment("DAY", args.day)
    pool.admin.close_books(_ms(day))
    out.document({"closed_up_to_ms": _ms(day)})
    out.show(f"the books are closed up to {invoices.day(_ms(day))} UTC")


INVOICE = Work(_configure_invoice, options.on_pool(_invoice))
CREDIT = Work(_configure_credit, options.on_pool(_credit))
CORRECT = Work(_configure_correct, options.on_pool(_correct))
CLOSE_BOOKS = Work(_configure_close, options.on_pool(_close_books))
