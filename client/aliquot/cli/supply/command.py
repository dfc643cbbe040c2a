"""`supply`: what is on offer and ordered, and why; put shapes on offer, act or only advise, carry orders out."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import signal
import socket
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

from rich.table import Table

from aliquot.cli import _options as options
from aliquot.cli import _words as words
from aliquot.cli._actions import action, run_action
from aliquot.cli._changes import changes, refuse_loss
from aliquot.cli._command import Work
from aliquot.cli._out import Out
from aliquot.cli._parser import seconds
from aliquot.cli._table import table, table_of
from aliquot.cli.supply.file import read_supply_file
from aliquot.cli.supply.hook import parse_command
from aliquot.cli.supply.runner import Runner
from aliquot.client import Pool
from aliquot.client.supply import NodeOrder, OrderWay, Supply, SupplyPolicy
from aliquot.common.clock import SystemClock
from aliquot.common.duration import format_duration_ms

_EPILOG = """\
Without an action: the advice of the moment. Nothing is ordered until `aliquot supply act on`, and nothing comes
until a program carries orders out: `aliquot supply run --hook '/etc/aliquot/node.sh {way} {node}'`.
"""
_USUAL_POLICY = SupplyPolicy(
    target_wait_s=300,
    means=("wait", "reclaim", "shrink", "move"),
    means_s=120,
    idle_s=600,
    keep_s=1800,
    rest_s=86_400,
    headroom_permille=100,
    late_s=900,
    orders_max=32,
    hour_micro=0,
    month_micro=0,
    ready_permille=930,
)
"""What the coordinator makes of a policy that says nothing."""
_RUN_EPILOG = """\
The command reads the order as JSON on its standard input; {order} {way} {node} {shape} {pool} {reference} in it are
replaced. It ends with 0 where the node is on its way (or going), and may say more as a JSON object: reference, node
(the name under which it will come), due_s. Otherwise it failed, and is run again, later, for the same order id; with
{"error": "...", "final": true} it is not. Several of these programs may run: each order is given to one at a time.
"""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.set_defaults(act=options.on_pool(_advice))
    actions = parser.add_subparsers(metavar="ACTION", title="actions")
    action(actions, "advice", "what should come and go now, and why", _advice)
    action(actions, "shapes", "what is on offer, and by which rules", _shapes)
    action(actions, "orders", "orders that are open, and the latest that are over", _orders)
    apply = action(actions, "apply", "put the shapes of a file on offer, and no others", _apply)
    apply.add_argument("file", type=Path, metavar="FILE", help="YAML, JSON or TOML; see docs/supply.md")
    apply.add_argument("--yes", "-y", action="store_true", help="also where something that was declared disappears")
    act = action(actions, "act", "order what is advised (on), or only advise (off)", _act)
    act.add_argument("to", choices=("on", "off"), help="off: a dry run; orders under way go on")
    cancel = action(actions, "cancel", "want no more of an order", _cancel)
    cancel.add_argument("number", type=options.positive, metavar="NUMBER", help="of the order")
    cancel.add_argument("--reason", default="", help="for people")
    run = action(actions, "run", "carry orders out, with a command of yours", _run_hook)
    run.epilog = _RUN_EPILOG
    run.add_argument("--hook", required=True, type=parse_command, metavar="COMMAND", help="for each order")
    run.add_argument("--hook-timeout", type=seconds, default=120.0, metavar="TIME", help="of the command (2m)")
    run.add_argument("--every", type=seconds, default=5.0, metavar="TIME", help="how often to look (5s)")
    run.add_argument("--name", default="", help="of this program (default: the machine's name)")
    run.add_argument("--invites", action="store_true", help="tell nodes that come an invite to join with")
    run.add_argument("--once", action="store_true", help="carry out what there is now, and end")


def _advice(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    found = pool.supply.get()
    out.document(found)
    if not found.version:
        out.note("nothing is on offer: `aliquot supply apply FILE` puts node shapes on offer")
        return
    for advice in found.advice:
        would = "" if found.spec.policy.act else "would "
        word = {OrderWay.ADD: "order", OrderWay.REMOVE: "give back"}.get(advice.way, "?")
        out.show(f"{would}{word} {advice.node_name} ({advice.shape}): {advice.why}")
    if not found.advice:
        out.show("nothing to order or give back")
    _explain(out, found)
    if found.orders:
        out.show(_order_table(found.orders))
    if found.nodes:
        out.show(_nodes(found))
    if not found.spec.policy.act:
        out.note("this is a dry run: `aliquot supply act on` lets the pool order")


def _explain(out: Out, found: Supply) -> None:
    for served in found.served:
        out.note(f"{served.lease_id or 'a request'} needs no node ({served.means}): {served.story}")
    for unserved in found.unserved:
        more = f" and {unserved.requests - 1} more" if unserved.requests > 1 else ""
        out.note(f"{unserved.lease_id or 'a request'}{more}: no node can be ordered: {unserved.why}")
    for rest in found.resting:
        until = words.moment(rest.until_ms)
        out.note(f"shape {rest.shape} is not asked for before {until}: {rest.problem} ({rest.failures} in a row)")
    if found.hour_micro or found.month_micro:
        out.note(f"{found.hour_micro / 1e6:.2f} an hour now; {found.month_micro / 1e6:.2f} since the month began")


def _shapes(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    found = pool.supply.get(advice=False)
    out.document({"version": found.version, "spec": found.spec})
    rows = [
        (
            shape.name,
            shape.pool,
            f"{shape.devices} x {shape.model}",
            f"{shape.nodes_min}..{shape.nodes_max}",
            format_duration_ms(shape.lead_s * 1000) if shape.lead_s else words.UNKNOWN,
            f"{shape.price_micro / 1e6:.2f}" if shape.price_micro else words.UNKNOWN,
            " ".join(shape.machines[:4]) + (" ..." if len(shape.machines) > 4 else ""),
        )
        for shape in found.spec.shapes
    ]
    if rows:
        out.show(table("SHAPE", "POOL", "DEVICES", "NODES", "LEAD", ("AN HOUR", "right"), "MACHINES", rows=rows))
    policy = found.spec.policy
    target = format_duration_ms((policy.target_wait_s or 0) * 1000)
    means = ", ".join(policy.means) or "nothing"
    out.note(f"{'orders' if policy.act else 'advice only'}; target {target}; before a node: {means}")


def _orders(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    found = pool.supply.get(advice=False)
    out.document({"open": found.orders, "closed": found.closed})
    if not found.orders and not found.closed:
        out.note("nothing was ordered")
    else:
        out.show(_order_table((*found.orders, *found.closed)))


def _order_table(orders: Iterable[NodeOrder]) -> Table:
    return table_of(
        orders,
        {
            "ORDER": lambda order: str(order.number),
            "WAY": lambda order: order.way.lower(),
            "NODE": lambda order: order.node_name,
            "SHAPE": lambda order: order.shape,
            "STATE": lambda order: order.state.lower().replace("_", " "),
            "ORDERED": lambda order: words.moment(order.ordered_ms),
            "DUE": lambda order: words.moment(order.due_ms),
            "WHY": lambda order: order.problem or order.why,
        },
    )


def _nodes(found: Supply) -> Table:
    return table_of(
        found.nodes,
        {
            "NODE": lambda node: node.name,
            "SHAPE": lambda node: node.shape,
            "POOL": lambda node: node.pool,
            "LEASES": lambda node: str(node.leases),
            "HERE SINCE": lambda node: words.moment(node.here_ms) if node.here_ms else words.UNKNOWN,
            "KEPT BECAUSE": lambda node: "leases are there" if node.leases else node.kept,
        },
        right=("LEASES",),
    )


def _apply(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    spec = read_supply_file(args.file)
    found = pool.supply.get(advice=False)
    was = found.spec.policy if found.version else spec.policy
    if was.spare_permille == was.headroom_permille:  # as it is where nothing is said of it
        was = dataclasses.replace(was, spare_permille=None)
    of_policy = changes("policy", was, spec.policy, _USUAL_POLICY)
    left = {shape.name for shape in spec.shapes}
    gone = [f"shape {shape.name} disappears" for shape in found.spec.shapes if shape.name not in left]
    for line in (*gone, *of_policy.lines):
        out.show(line)
    if not args.yes:
        refuse_loss([*gone, *of_policy.gone])
    version = pool.supply.declare(spec, version=found.version)
    out.document({"version": version, "shapes": [shape.name for shape in spec.shapes]})
    out.show(f"{len(spec.shapes)} shapes are on offer (version {version})")


def _act(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    found = pool.supply.get(advice=False)
    policy = dataclasses.replace(found.spec.policy, act=args.to == "on")
    version = pool.supply.declare(dataclasses.replace(found.spec, policy=policy), version=found.version)
    out.document({"version": version, "act": policy.act})
    out.show("nodes are ordered and given back" if policy.act else "advice only: nothing is ordered")


def _cancel(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    order = pool.supply.withdraw(args.number, reason=args.reason)
    out.document(order)
    out.show(f"{order.order_id} is withdrawn")


def _run_hook(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    if not args.once:
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    name = args.name or socket.gethostname()
    runner = Runner(pool, name, args.hook, timeout_s=args.hook_timeout, invites=args.invites, clock=SystemClock())
    try:
        if args.once:
            done = runner.look()
            runner.settle()
            out.document({"carried_out": done})
            out.note(f"{done} orders were carried out")
            return
        stop = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stop.set())
        out.note(f"orders are carried out as {name}")
        runner.run(args.every, stop)
    finally:
        runner.close()


SUPPLY = Work(_configure, run_action)
