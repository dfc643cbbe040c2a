"""`nodes`, `cordon`, `uncordon`, `drain`, `forget`: the administration of nodes."""

from __future__ import annotations

import argparse
import time

from aliquot.cli import _options as options
from aliquot.cli import _views as views
from aliquot.cli import _words as words
from aliquot.cli._cards import cards_view
from aliquot.cli._command import Work
from aliquot.cli._nodes import node_id_of
from aliquot.cli._out import Out
from aliquot.cli._parser import seconds
from aliquot.client import Node, NotGrantedInTime, Pool

_LOOK_AGAIN_S = 0.5


def _configure_nodes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", nargs="?", metavar="NODE", help="only this node, with its devices")
    parser.add_argument("--pool", default="", help="only nodes of this pool")
    parser.add_argument(
        "--devices", "-d", action="store_true", help="a line for each device, and the MIG instances of cards"
    )


def _nodes(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    found = [pool.node(args.node)] if args.node else pool.nodes(pool=args.pool)
    nodes = sorted(found, key=lambda node: words.natural(node.name))
    out.document(nodes[0] if args.node else {"nodes": nodes})
    if not nodes:
        out.note("no nodes: start an agent, or `aliquot declare` some")
    else:
        if not args.devices or args.node:
            out.show(views.nodes_table(nodes))
        if args.devices or args.node:
            out.show(views.devices_table(nodes), *cards_view(nodes))
        if args.node:
            for condition in nodes[0].conditions:
                out.show(f"{condition.subject}: {condition.text}")


def _configure_node(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("node", metavar="NODE", help="id or name")


def _configure_with_reason(parser: argparse.ArgumentParser) -> None:
    _configure_node(parser)
    parser.add_argument("--reason", default="", help="for people")


def _cordon(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    node = pool.cordon(node_id_of(pool, args.node), reason=args.reason)
    _show(out, node, f"{node.name} takes no new leases; what runs stays")


def _uncordon(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    node = pool.uncordon(node_id_of(pool, args.node))
    closed = words.closed(node)
    story = f"is no longer closed by hand:{closed}" if closed else "takes new leases again"
    _show(out, node, f"{node.name} {story}")


def _configure_drain(parser: argparse.ArgumentParser) -> None:
    _configure_with_reason(parser)
    parser.add_argument("--grace", type=options.whole_seconds, default=0, metavar="TIME", help="for every lease")
    parser.add_argument("--wait", type=seconds, default=0.0, metavar="TIME", help="until nothing is left there")


def _drain(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    node = pool.drain(node_id_of(pool, args.node), reason=args.reason, grace_s=args.grace)
    deadline = time.monotonic() + args.wait
    left = -1
    while args.wait and node.slices:
        if node.slices != left:
            left = node.slices
            out.note(f"{node.name} still holds {left} slices")
        if time.monotonic() >= deadline:
            raise NotGrantedInTime(
                f"{node.name} still holds {node.slices} slices after {args.wait:g} s",
                hint="look at `aliquot ls --node`; a longer --wait may help",
                reason="DRAINING",
            )
        time.sleep(_LOOK_AGAIN_S)
        node = pool.node(node.node_id)
    rest = f"{node.slices} slices are ending" if node.slices else "nothing is left there"
    _show(out, node, f"{node.name} is drained: {rest}")


def _configure_forget(parser: argparse.ArgumentParser) -> None:
    _configure_node(parser)
    parser.add_argument("--force", action="store_true", help="write off the slices of a LOST node")


def _forget(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    node = pool.node(args.node)
    pool.remove_node(node.node_id, force=args.force)
    _show(out, node, f"{node.name} is forgotten")


def _show(out: Out, node: Node, text: str) -> None:
    out.document(node)
    out.show(text)


NODES = Work(_configure_nodes, options.on_pool(_nodes))
CORDON = Work(_configure_with_reason, options.on_pool(_cordon))
UNCORDON = Work(_configure_node, options.on_pool(_uncordon))
DRAIN = Work(_configure_drain, options.on_pool(_drain))
FORGET = Work(_configure_forget, options.on_pool(_forget))
