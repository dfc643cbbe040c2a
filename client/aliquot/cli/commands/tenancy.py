"""`apply`, `withdraw`, `tenants`, `queues`, `forgive`: who may use how much."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path

from aliquot.cli import _options as options
from aliquot.cli import _poolfile as poolfile
from aliquot.cli import _words as words
from aliquot.cli._changes import Changes, changes, refuse_loss
from aliquot.cli._command import Work, no_options
from aliquot.cli._out import Out
from aliquot.cli._table import table
from aliquot.cli.commands.quotas import next_text
from aliquot.client import Pool, admin
from aliquot.common.quantity import human_bytes


def _configure_apply(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (poolfile.__doc__ or "").partition("\n\n")[2]
    parser.add_argument("--file", "-f", type=Path, required=True, help="pool.yaml, .json or .toml")
    parser.add_argument("--dry-run", action="store_true", help="show what would change, and change nothing")
    parser.add_argument("--yes", "-y", action="store_true", help="also where something that was declared disappears")


def _apply(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    declared = poolfile.read_pool_file(args.file)
    # Replaces only what was read here: a change by somebody else since then is a conflict.
    before = pool.admin.tenancy()
    found = list(_changes(declared, before))
    for line in (line for each in found for line in each.lines):
        out.show(line)
    if not (args.yes or args.dry_run):
        refuse_loss([line for each in found for line in each.gone])
    answer = pool.admin.apply(declared, over=before, dry_run=args.dry_run)
    out.document(answer)
    word = "would be declared" if args.dry_run else "declared"
    for name, version in sorted(answer.changed.items()):
        out.show(f"{name}: {word} (version {version})")
    out.show(f"{len(answer.changed)} {word}, {len(answer.unchanged)} unchanged")


def _changes(declared: admin.Declarations, before: admin.Tenancy) -> Iterator[Changes]:
    """Of each declaration that replaces one."""
    for kind, new, views, usual in (
        ("pool", declared.pools, before.pools, poolfile.USUAL_POOL),
        ("queue", declared.queues, before.queues, poolfile.USUAL_QUEUE),
        ("tenant", declared.tenants, before.tenants, poolfile.USUAL_TENANT),
    ):
        there = {view.spec.name: view.spec for view in views if view.version}
        for spec in new:
            if spec.name in there:
                yield changes(f"{kind} {spec.name}", there[spec.name], spec, usual)
    if declared.rates is not None and before.rates is not None:
        yield changes("prices", before.rates, declared.rates, poolfile.USUAL_PRICES)


def _configure_withdraw(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=("pool", "tenant", "queue"), metavar="KIND", help="pool, tenant or queue")
    parser.add_argument("name", metavar="NAME")


def _withdraw(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    pool.admin.withdraw(args.kind, args.name)
    out.document({"kind": args.kind, "name": args.name, "withdrawn": True})
    out.show(f"{args.kind} {args.name} is withdrawn")


def _tenants(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    tenancy = pool.admin.tenancy()
    out.document({"tenants": tenancy.tenants, "alerts": tenancy.alerts})
    changing = any(view.use.windows for view in tenancy.tenants)
    bounds = {view.spec.name: most for view in tenancy.tenants if (most := view.spec.priority_max) is not None}
    rows = [
        (
            view.spec.name if view.version else f"{view.spec.name} (undeclared)",
            *_use(view.use, _in_force(view), view.spec.waiting_max),
            f"{view.budget_permille / 10:g} %" if view.spec.budget is not None else "-",
            *((_priority_max(view.spec.name, bounds),) if bounds else ()),
            *((_next(view.use),) if changing else ()),
        )
        for view in tenancy.tenants
    ]
    last = [*([("PRIORITY", "right")] if bounds else []), *([("NEXT", "left")] if changing else [])]
    out.show(table("TENANT", *_USE_COLUMNS, ("BUDGET", "right"), *last, rows=rows, spare=_SPARE))
    _alerts(out, tenancy)


def _queues(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    tenancy = pool.admin.tenancy()
    out.document({"queues": tenancy.queues, "alerts": tenancy.alerts})
    views = {view.spec.name: view for view in tenancy.queues}
    changing = any(view.use.windows for view in tenancy.queues)

    def rows(parent: str, depth: int) -> list[tuple[str, ...]]:
        found: list[tuple[str, ...]] = []
        for name, view in views.items():
            if (view.spec.parent if name != "root" else "") == parent and depth < 16:
                order = ", ".join(filter(None, (view.spec.policy, view.spec.placement)))
                row = ("  " * depth + name, order, *_use(view.use, _in_force(view)))
                found.append((*row, _next(view.use)) if changing else row)
                found += rows(name, depth + 1)
        return found

    columns = ("QUEUE", "POLICY", *_USE_COLUMNS, *(("NEXT",) if changing else ()))
    out.show(table(*columns, rows=rows("" if "root" in views else "root", 0), spare=_SPARE))
    _alerts(out, tenancy)


_USE_COLUMNS: tuple[tuple[str, str], ...] = (
    ("GPUS", "right"),
    ("MEMORY", "right"),
    ("GUARANTEED", "right"),
    ("LIMIT", "right"),
    ("WEIGHT", "right"),
    ("WAITING", "right"),
)
_SPARE = ("WEIGHT", "MEMORY", "LIMIT")


def _in_force(view: admin.TenantView | admin.QueueView) -> admin.Quota:
    """What is in force now, as windows of the quota have it."""
    return view.spec.quota if view.use.windows is None else view.use.windows.in_force


def _next(use: admin.AccountUse) -> str:
    """What windows of the quota make of it next, and when."""
    return (next_text(use.windows, words.moment(use.windows.until_ms)) if use.windows is not None else "") or "-"


def _priority_max(tenant: str, bounds: Mapping[str, int]) -> str:
    """The highest that may be asked for: the least of its own and of those above it."""
    held = [most for name, most in bounds.items() if f"{tenant}/".startswith(f"{name}/")]
    return f"<= {min(held)}" if held else "-"


def _use(use: admin.AccountUse, quota: admin.Quota, waiting_max: int | None = None) -> tuple[str, ...]:
    return (
        f"{use.share_milli / 1000:g}",
        human_bytes(use.memory_bytes),
        _gpus(quota.guaranteed),
        _gpus(quota.limit),
        str(quota.weight),
        str(use.waiting) if waiting_max is None else f"{use.waiting} of {waiting_max}",
    )


def _gpus(amount: admin.Amount) -> str:
    return "-" if amount.share_milli is None else f"{amount.share_milli / 1000:g}"


def _alerts(out: Out, tenancy: admin.Tenancy) -> None:
    for alert in tenancy.alerts:
        out.show(f"! {alert}")


def _configure_forgive(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "What follows from leases that ended as OVER_LIMIT is declared as `on_over_limit` in the pool file."
    parser.add_argument("tenant", metavar="TENANT")


def _forgive(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    offences = pool.admin.forgive(args.tenant)
    out.document({"tenant": args.tenant, "offences": offences})
    out.show(f"tenant {args.tenant}: {offences} forgiven" if offences else f"nothing is held against {args.tenant}")


APPLY = Work(_configure_apply, options.on_pool(_apply))
WITHDRAW = Work(_configure_withdraw, options.on_pool(_withdraw))
TENANTS = Work(no_options, options.on_pool(_tenants))
QUEUES = Work(no_options, options.on_pool(_queues))
FORGIVE = Work(_configure_forgive, options.on_pool(_forgive))
