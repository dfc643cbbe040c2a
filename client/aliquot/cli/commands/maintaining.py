"""`maintenance add|ls|rm`: maintenance windows of nodes, for once or every week."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.table import Table

from aliquot.cli import _options as options
from aliquot.cli import _words as words
from aliquot.cli._actions import action, run_action
from aliquot.cli._command import Work
from aliquot.cli._out import Out
from aliquot.cli._table import table_of
from aliquot.client import Pool
from aliquot.client.admin import Maintenance, MaintenanceWindow
from aliquot.common.duration import format_duration_ms

_NAMED_MAX = 4
_EPILOG = """\
A window closes the nodes that are named, have all of the labels and are in the pool, as far as each is given.
START and END are local times in the zone, such as 2026-11-28T22:00; a weekly window recurs at the same times of
each week. In the lead time before its start, only leases that end in time are placed there: those whose
--time-limit, with their grace, is over by then. At the start the nodes are drained as by `aliquot drain`. At the
end they take leases again, except those that were cordoned or drained by hand.
"""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    actions = parser.add_subparsers(metavar="ACTION", required=True, title="actions")
    add = action(actions, "add", "declare a window", _add)
    add.add_argument("name", metavar="NAME", help="of the window")
    add.add_argument("--start", required=True, metavar="TIME", help="2026-11-28T22:00")
    add.add_argument("--end", required=True, metavar="TIME", help="2026-11-29T06:00")
    add.add_argument("--zone", default="", metavar="ZONE", help="Europe/Berlin (default: UTC)")
    add.add_argument("--weekly", action="store_true", help="repeat it every week")
    add.add_argument("--lead", type=options.whole_seconds, default=0, metavar="TIME", help="lead time before it: 4h")
    add.add_argument("--grace", type=options.whole_seconds, default=0, metavar="TIME", help="for every lease")
    add.add_argument("--node", action="append", default=[], metavar="NODE", help="id or name")
    add.add_argument("--label", action="append", type=options.pair, default=[], metavar="KEY=VALUE", help="of nodes")
    add.add_argument("--pool", default="", help="a named set of devices")
    add.add_argument("--reason", default="", help="for people")
    action(actions, "ls", "list the windows, the next one first", _ls)
    remove = action(actions, "rm", "withdraw a window; its nodes take leases again", _rm)
    remove.add_argument("name", metavar="NAME", help="of the window")


def _add(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    window = MaintenanceWindow(
        name=args.name,
        start=args.start,
        end=args.end,
        zone=args.zone,
        weekly=args.weekly,
        lead_s=args.lead,
        grace_s=args.grace,
        node_ids=tuple(args.node),
        labels=dict(args.label),
        pool=args.pool,
        reason=args.reason,
    )
    view = pool.admin.declare_maintenance(window)
    out.document(view)
    out.show(f"{_when(view)}, over {_nodes(view)}")


def _ls(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    views = pool.admin.maintenance()
    names = {node.node_id: node.name for node in pool.nodes(with_devices=False)} if views else {}
    out.document({"windows": views})
    if not views:
        out.note("no maintenance windows: `aliquot maintenance add` declares one")
    else:
        out.show(_table(views, names))


def _rm(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    pool.admin.end_maintenance(args.name)
    out.document({"name": args.name, "removed": True})
    out.show(f"{args.name} is withdrawn")


def _table(views: Sequence[Maintenance], names: dict[str, str]) -> Table:
    return table_of(
        views,
        {
            "WINDOW": lambda view: view.window.name,
            "PHASE": lambda view: view.phase.lower(),
            "FROM": lambda view: words.moment(view.starts_ms),
            "TO": lambda view: words.moment(view.ends_ms),
            "EVERY": lambda view: f"week in {view.window.zone}" if view.window.weekly else words.UNKNOWN,
            "LEAD": lambda view: format_duration_ms(view.window.lead_s * 1000) if view.window.lead_s else words.UNKNOWN,
            "NODES": lambda view: _nodes(view, names),
            "SLICES": lambda view: str(view.slices),
            "REASON": lambda view: view.window.reason,
        },
        right=("SLICES",),
    )


def _when(view: Maintenance) -> str:
    every = " and every week" if view.window.weekly else ""
    span = f"from {words.moment(view.starts_ms)} to {words.moment(view.ends_ms)}"
    return f"{view.window.name} is {view.phase.lower()}: {span}{every}"


def _nodes(view: Maintenance, names: dict[str, str] | None = None) -> str:
    if names is None or not 0 < view.nodes <= _NAMED_MAX:
        return f"{view.nodes} node" + ("" if view.nodes == 1 else "s")
    return " ".join(sorted((names.get(node_id, node_id) for node_id in view.node_ids), key=words.natural))


MAINTENANCE = Work(_configure, run_action)
