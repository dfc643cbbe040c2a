"""`ls`, `get` and `status`: who holds what."""

from __future__ import annotations

import argparse

from rich.text import Text

from aliquot.cli import _options as options
from aliquot.cli import _views as views
from aliquot.cli import _words as words
from aliquot.cli._command import Work, no_options
from aliquot.cli._nodes import node_id_of
from aliquot.cli._out import Out
from aliquot.cli._table import table, table_of
from aliquot.client import LeaseState, Pool, Status, Timeline
from aliquot.common.duration import format_duration_ms


def _lease_state(text: str) -> LeaseState:
    try:
        return LeaseState(text.upper())
    except ValueError:
        known = ", ".join(state.lower() for state in LeaseState if state is not LeaseState.UNSPECIFIED)
        raise argparse.ArgumentTypeError(f"{text!r} is not a state; one of {known}") from None


def _configure_ls(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tenant", "-t", default="", help="only of this tenant")
    parser.add_argument("--queue", "-q", default="", help="only in this queue")
    parser.add_argument("--node", default="", help="with a slice on this node")
    parser.add_argument("--state", action="append", type=_lease_state, default=[], help="may be given several times")
    parser.add_argument("--all", "-a", action="store_true", help="also those that have ended")


def _ls(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    states = args.state or ([state for state in LeaseState if state is not LeaseState.UNSPECIFIED] if args.all else [])
    node_id = node_id_of(pool, args.node) if args.node else ""
    leases = list(pool.leases(tenant=args.tenant, queue=args.queue, states=states, node_id=node_id))
    out.document({"leases": leases})
    if not leases:
        out.note("no leases")
    elif not out.as_json:  # thousands of lines take their time
        out.show(views.leases_table(leases))


def _configure_get(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lease_id", metavar="LEASE")
    parser.add_argument("--timeline", action="store_true", help="what has happened to it, fact by fact")


def _get(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    if args.timeline:
        _show_timeline(out, pool.timeline(args.lease_id))
        return
    lease = pool.get(args.lease_id)
    out.document(lease)
    out.show(*views.lease_view(lease))


def _show_timeline(out: Out, timeline: Timeline) -> None:
    out.document(timeline)
    before_ms = timeline.steps[0].at_ms if timeline.steps else 0
    rows = []
    for step in timeline.steps:
        rows.append((words.moment(step.at_ms), f"+{_span(step.at_ms - before_ms)}", step.what, step.detail))
        before_ms = step.at_ms
    out.show(table("WHEN", ("AFTER", "right"), "WHAT", "", rows=rows))
    if not timeline.complete:
        out.note("some facts are left out: the oldest are compacted away, or there are too many")


def _span(took_ms: int) -> str:
    return f"{took_ms}ms" if took_ms < 1000 else format_duration_ms(took_ms)


def _status(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    status = pool.status()
    out.document(status)
    show_status(out, status)


def show_status(out: Out, status: Status) -> None:
    """The pool's totals for people."""
    nodes = ", ".join(f"{count} {state.lower()}" for state, count in sorted(status.nodes_by_state.items()))
    granting = (
        Text("granting", "green")
        if status.granting
        else Text(f"not granting: {status.not_granting_reason}", "bold red")
    )
    out.show(
        Text.assemble(
            granting,
            f"  leases {status.leases}, {status.queued} of them queued  nodes {nodes or 'none'}  ",
            (f"version {status.version}  seq {status.seq}  leader epoch {status.leader_epoch}", "bright_black"),
        )
    )
    if status.pools:
        out.show(
            table_of(
                status.pools,
                {
                    "POOL": lambda totals: totals.pool,
                    "MODEL": lambda totals: totals.model,
                    "DEVICES": lambda totals: str(totals.devices),
                    "SHARES LEASED": lambda totals: (
                        f"{words.share(totals.leased_share_milli)} / {words.share(totals.capacity_share_milli)}"
                    ),
                    "MEMORY LEASED": lambda totals: (
                        f"{words.amount(totals.leased_memory_bytes)} / {words.amount(totals.capacity_memory_bytes)}"
                    ),
                    "": lambda totals: words.bar(
                        [(_part(totals.leased_memory_bytes, totals.capacity_memory_bytes), "green")], 20
                    ),
                },
                right=("DEVICES", "SHARES LEASED", "MEMORY LEASED"),
                spare=("",),
            )
        )
    if status.tenants:
        out.show(
            table_of(
                status.tenants,
                {
                    "TENANT": lambda totals: totals.tenant,
                    "QUEUE": lambda totals: totals.queue or words.UNKNOWN,
                    "LEASES": lambda totals: str(totals.leases),
                    "QUEUED": lambda totals: str(totals.queued),
                    "SHARES": lambda totals: words.share(totals.leased_share_milli),
                    "MEMORY": lambda totals: words.amount(totals.leased_memory_bytes),
                },
                right=("LEASES", "QUEUED", "SHARES", "MEMORY"),
            )
        )


def _part(value: int, whole: int) -> float:
    return value / whole if whole else 0.0


LS = Work(_configure_ls, options.on_pool(_ls))
GET = Work(_configure_get, options.on_pool(_get))
STATUS = Work(no_options, options.on_pool(_status))
