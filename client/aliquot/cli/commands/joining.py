"""`node invite`, `node disenrol` and `node settle`: who may be a node of the pool, and what one holds for nobody."""

from __future__ import annotations

import argparse

from aliquot.cli import _options as options
from aliquot.cli import _words as words
from aliquot.cli._actions import action, run_action
from aliquot.cli._command import Work
from aliquot.cli._out import Out
from aliquot.cli.commands.caring import unknown_table
from aliquot.client import Pool
from aliquot.common.tls import is_local_address


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True, title="actions")
    invite = action(actions, "invite", "let a node join: prints the command to run there, once", _invite)
    invite.add_argument("node", metavar="NODE", help="its name, or its id; it need not be known yet")
    invite.add_argument(
        "--ttl", type=options.whole_seconds, default=3600, metavar="TIME", help="good for (default: 1h)"
    )
    invite.add_argument(
        "--address", action="append", default=[], metavar="HOST:PORT", help="where the node reaches the coordinators"
    )
    disenrol = action(actions, "disenrol", "let a node's key count no more; what runs there goes on", _disenrol)
    disenrol.add_argument("node", metavar="NODE", help="its name or its id")
    settle = action(actions, "settle", "end slices that the books do not know, such as after a restore", _settle)
    settle.add_argument("node", metavar="NODE", help="its name or its id")
    settle.add_argument("slices", metavar="SLICE", nargs="*", help="as `aliquot health` lists them (default: all)")


def _invite(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    made = pool.access.invite_node(args.node, ttl_ms=args.ttl * 1000)
    addresses = args.address or made.addresses
    string = pool.connection_string(made.invite, addresses=addresses, node=made.node, ca_pem=made.ca_pem)
    out.document({"join": string, "invite": made})
    out.word(f"aliquot-agent join {string}")
    out.note(f"for {made.node}, once, until {words.moment(made.expires_ms)}")
    if addresses and all(map(is_local_address, addresses)):
        out.note(f"it names {', '.join(addresses)}, which is this machine only: for others, add --address HOST:PORT")


def _disenrol(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    pool.access.disenrol_node(args.node)
    out.document({"node": args.node})
    out.show(f"{args.node} is no node of this pool any more; `aliquot node invite {args.node}` lets it join again")


def _settle(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    ended = pool.admin.settle_slices(args.node, args.slices)
    out.document({"node": args.node, "slices": ended})
    if ended:
        out.show(unknown_table(ended))
        out.note("they are told to end, and are gone within their grace of 30 s")
    else:
        out.note(f"the books know all that {args.node} holds")


NODE = Work(_configure, run_action)
