"""`waste` and `exempt`: who holds what for nothing, what it costs, and who may for a while."""

from __future__ import annotations

import argparse

from aliquot.cli import _options as options
from aliquot.cli import _views as views
from aliquot.cli import _words as words
from aliquot.cli._command import Work
from aliquot.cli._out import Out
from aliquot.cli._table import table
from aliquot.client import Pool
from aliquot.client.use import UseReport, UseRow
from aliquot.common.duration import format_duration_ms

_GPU_HOUR = 1000 * 3_600_000


def _configure_waste(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Held: no process is there. Idle: processes are there and do nothing. Ghost: no process is there, and the\n"
        "device says that it is busy. What is not measured is never called idle. FOR is what was seen of this spell."
    )
    parser.add_argument("--tenant", default="", help="it and all below it")
    parser.add_argument("--all", action="store_true", help="also leases that do something: what they make of it")


def _waste(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    report = pool.use(tenant=args.tenant, quiet_only=not args.all)
    out.document(report)
    if not report.rows:
        out.note("nothing is held for nothing, as far as it is measured")
        return
    out.show(
        table(
            "LEASE", "TENANT", "STATE", ("FOR", "right"), ("SHARE", "right"), ("EFFICIENCY", "right"),
            ("SCORE", "right"), ("GPU HOURS", "right"), (report.currency.upper(), "right"), "WHAT FOLLOWS",
            rows=[_row(row) for row in report.rows],
        )
    )  # fmt: skip
    hours = sum(row.wasted_milli_ms for row in report.rows) / _GPU_HOUR
    money = sum(row.wasted_micro for row in report.rows) / 1e6
    out.show(f"{hours:.1f} GPU hours, {money:.2f} {report.currency} in what is shown")
    if report.left_out:
        out.note(f"{report.left_out} more are not shown")


def _row(row: UseRow) -> tuple[str, ...]:
    lease, use = row.lease, row.lease.use
    efficiency = use.efficiency_permille if use is not None else None
    return (
        lease.lease_id,
        lease.tenant,
        words.use_state(use),
        format_duration_ms(row.idle_ms - row.idle_ms % 60_000) if row.idle_ms >= 60_000 else words.UNKNOWN,
        words.share(sum(part.share_milli for part in lease.slices)),
        words.UNKNOWN if efficiency is None else f"{efficiency / 10:.0f} %",
        words.score(use),
        f"{row.wasted_milli_ms / _GPU_HOUR:.2f}",
        f"{row.wasted_micro / 1e6:.2f}",
        _follows(row),
    )


def _follows(row: UseRow) -> str:
    use = row.lease.use
    said = []
    if use is not None and use.exempt_until_ms:
        said.append(words.exemption(use))
    if use is not None and use.lent:
        said.append(f"lent, {words.share(row.borrowed_milli)} of it in use")
    if use is not None and use.act_ms:
        said.append(f"{use.action} in {words.until(use.act_ms)}, told {use.told} of {use.warned} times")
    return "; ".join(filter(None, said)) or row.policy


def _configure_exempt(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Without a lease: those that are exempt now. An exemption ends by itself, after at most a day."
    parser.add_argument("lease_id", metavar="LEASE", nargs="?", default="")
    parser.add_argument("--for", dest="for_s", type=options.whole_seconds, default=4 * 3600, metavar="TIME", help="4h")
    parser.add_argument("--reason", default="", help="for people")
    parser.add_argument("--end", action="store_true", help="idleness has consequences again")


def _exempt(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    if not args.lease_id:
        _list(out, pool.use())
        return
    lease = pool.exempt(args.lease_id, 0 if args.end else args.for_s, reason=args.reason)
    out.document(lease)
    out.show(*views.lease_view(lease))


def _list(out: Out, report: UseReport) -> None:
    rows = [row for row in report.rows if row.lease.use is not None and words.exemption(row.lease.use)]
    out.document({"leases": [row.lease for row in rows]})
    if not rows:
        out.note("no lease is exempt")
    else:
        out.show(
            table(
                "LEASE", "TENANT", "STATE", "EXEMPT", "BY",
                rows=[
                    (row.lease.lease_id, row.lease.tenant, words.use_state(use), words.exemption(use), use.exempt_by)
                    for row in rows
                    if (use := row.lease.use) is not None
                ],
            )
        )  # fmt: skip


WASTE = Work(_configure_waste, options.on_pool(_waste))
EXEMPT = Work(_configure_exempt, options.on_pool(_exempt))
