"""Invoices for people and programs: a table, CSV, and a page to print. JSON has the fields of `Invoice`."""

from __future__ import annotations

import csv
import html
import io
from datetime import UTC, datetime

from aliquot.cli import _words as words
from aliquot.client.admin import Invoice

GPU_HOUR = 1000 * 3_600_000
GIB_HOUR = (1 << 30) * 3_600_000
COLUMNS = ("queue", "model", "gpu_hours", "gib_hours", "price_gpu_hour", "price_gib_hour", "slices", "amount")


def day(at_ms: int) -> str:
    """A moment, in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")


def money(micro: int) -> str:
    """Millionths as a decimal with at least two places, exactly."""
    sign, size = ("-", -micro) if micro < 0 else ("", micro)
    part = f"{size % 10**6:06d}".rstrip("0")
    return f"{sign}{size // 10**6}.{part.ljust(2, '0')}"


def hours(amount: int, unit: int) -> str:
    """A quantity in hours, to a thousandth."""
    milli = (amount * 1000 + unit // 2) // unit
    sign, size = ("-", -milli) if milli < 0 else ("", milli)
    return f"{sign}{size // 1000}.{size % 1000:03d}"


def rows(invoice: Invoice) -> list[tuple[str, ...]]:
    """One row for each line of the invoice."""
    return [
        (
            line.queue,
            line.model or "any",
            hours(line.billable_share_milli_ms, GPU_HOUR),
            hours(line.billable_memory_byte_ms, GIB_HOUR),
            money(line.gpu_hour_micro) if line.priced else "no price",
            money(line.gib_hour_micro) if line.priced else "no price",
            str(line.slices),
            money(line.amount_micro),
        )
        for line in invoice.lines
    ]


def sums(invoice: Invoice) -> list[tuple[str, str]]:
    """The sums below the lines."""
    found = [("subtotal", money(invoice.subtotal_micro))]
    for tier in invoice.discounts:
        above = hours(tier.above_gpu_milli_hours * (GPU_HOUR // 1000), GPU_HOUR)
        found.append((f"{tier.discount_permille / 10:g} % above {above} GPU-hours", money(-tier.discount_micro)))
    found.append(("total", money(invoice.total_micro)))
    found.append(("paid in this period", money(invoice.paid_micro)))
    if invoice.balance_micro is not None:
        found.append(("balance now", money(invoice.balance_micro)))
    return found


def measured(invoice: Invoice) -> list[str]:
    """What agents measured beside what was reserved, in words; empty if nothing was measured."""
    moved = []
    if invoice.observed_up_bytes or invoice.observed_down_bytes:
        up, down = words.amount(invoice.observed_up_bytes), words.amount(invoice.observed_down_bytes)
        moved = [f"moved on these days by programs elsewhere, not charged: {up} up, {down} down"]
    if not invoice.observed_interval_ms:
        return moved
    busy = hours(invoice.observed_busy_milli_ms, GPU_HOUR)
    memory = hours(invoice.observed_memory_byte_ms, GIB_HOUR)
    reserved = sum(line.share_milli_ms for line in invoice.lines)
    part = f", {invoice.observed_busy_milli_ms * 100 // reserved} % of what was reserved" if reserved > 0 else ""
    told = f"measured on the whole days (UTC) of the period: {busy} GPU-hours busy{part}, {memory} GiB-hours in use"
    return [told, f"energy that cards drew for its leases on these days, not charged: {_energy(invoice)}", *moved]


def _counts_energy(invoice: Invoice) -> bool:
    """Of a lease that ended between two readings there is an amount, and no time."""
    return bool(invoice.observed_energy_interval_ms or invoice.observed_energy_mj)


def _energy(invoice: Invoice) -> str:
    """In words; where only some of the cards count it, for how much of the time that was measured."""
    if not _counts_energy(invoice):
        return "not measured"
    percent = invoice.observed_energy_interval_ms * 100 // invoice.observed_interval_ms
    return words.energy(invoice.observed_energy_mj) + (f", of {percent} % of the time" if percent < 100 else "")


def as_csv(invoice: Invoice) -> str:
    """Lines first, then the sums, as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("invoice", "tenant", "from", "to", "currency", *COLUMNS))
    head = (invoice.invoice_id, invoice.tenant, day(invoice.from_ms), day(invoice.to_ms), invoice.currency)
    for row in rows(invoice):
        writer.writerow((*head, *row))
    for name, amount in sums(invoice):
        writer.writerow((*head, name, *("",) * (len(COLUMNS) - 2), amount))
    if invoice.observed_interval_ms:
        busy = hours(invoice.observed_busy_milli_ms, GPU_HOUR)
        memory = hours(invoice.observed_memory_byte_ms, GIB_HOUR)
        writer.writerow((*head, "measured", "", busy, memory, *("",) * (len(COLUMNS) - 4)))
    if _counts_energy(invoice):
        writer.writerow((*head, "energy_joules", "", invoice.observed_energy_mj // 1000, *("",) * (len(COLUMNS) - 3)))
    if invoice.observed_up_bytes or invoice.observed_down_bytes:
        moved = invoice.observed_up_bytes, invoice.observed_down_bytes
        writer.writerow((*head, "bytes up and down", "", *moved, *("",) * (len(COLUMNS) - 4)))
    return text.getvalue()


def as_page(invoice: Invoice) -> str:
    """A page to print, complete in itself."""
    escape = html.escape
    head = "".join(f"<th>{escape(name.replace('_', ' '))}</th>" for name in COLUMNS)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows(invoice))
    foot = "".join(
        f'<tr><th colspan="{len(COLUMNS) - 1}">{escape(name)}</th><td>{escape(amount)}</td></tr>'
        for name, amount in sums(invoice)
    )
    notes = "".join(f"<p>{escape(note)}</p>" for note in (*invoice.notes, *measured(invoice)))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(invoice.invoice_id)}</title><style>
body {{ font: 11pt sans-serif; margin: 2cm; }}
table {{ border-collapse: collapse; width: 100%; }}
th, td {{ border-bottom: 1px solid #ccc; padding: 4px 8px; text-align: right; }}
th:nth-child(-n+2), td:nth-child(-n+2) {{ text-align: left; }}
tfoot th {{ text-align: right; }}
</style></head><body>
<h1>Invoice {escape(invoice.invoice_id)}</h1>
<p>Tenant <b>{escape(invoice.tenant)}</b>, {day(invoice.from_ms)} to {day(invoice.to_ms)} UTC.
Made {day(invoice.made_ms)} UTC. Amounts in {escape(invoice.currency)}.</p>
<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody><tfoot>{foot}</tfoot></table>
{notes}</body></html>
"""
