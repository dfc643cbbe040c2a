"""`balance`: which nodes of a pool should be lent or go home; carried out only with --apply."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime

from rich.table import Table

from aliquot.cli import _options as options
from aliquot.cli._command import Work
from aliquot.cli._json import plain
from aliquot.cli._out import Out
from aliquot.cli._table import table_of
from aliquot.client.admin import Balance

_LOG_SHOWN = 10


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "A pool whose declaration says `balancing: {label: project}` is shared by projects: each node serves the\n"
        "tenant that its label names. Without --apply nothing changes. With `auto: true` the pool does it by itself."
    )
    parser.add_argument("--pool", default="", help="a named set of devices (default: default)")
    parser.add_argument("--apply", action="store_true", help="carry the plan out")
    parser.add_argument("--home", action="append", default=[], metavar="NODE", help="only this node goes home")


def _balance(args: argparse.Namespace, out: Out) -> None:
    with options.open_pool(args) as pool:
        answer = pool.admin.balance(args.pool, carry_out=args.apply, home=args.home)
        names = {node.node_id: node.name for node in pool.nodes(pool=args.pool, with_devices=False)}
    out.document({"carried_out": args.apply, **plain(answer)})
    out.show(_projects(answer))
    word = "moved" if args.apply else "would move"
    for move in answer.moves:
        out.show(f"{names.get(move.node_id, move.node_id)} {word} from {move.lender} to {move.borrower}: {move.reason}")
    if not answer.moves:
        out.show("nothing to move")
        for note in answer.notes:
            out.note(note)
    for move in answer.log[-_LOG_SHOWN:]:
        when = datetime.fromtimestamp(move.at_ms / 1000, UTC).isoformat(" ", "seconds")
        out.note(f"{when}  {names.get(move.node_id, move.node_id)}: {move.lender} to {move.borrower} ({move.reason})")


def _projects(answer: Balance) -> Table:
    return table_of(
        answer.projects,
        {
            "PROJECT": lambda project: project.name,
            "NODES": lambda project: str(len(project.node_ids)),
            "BORROWED": lambda project: str(len(project.borrowed_node_ids)),
            "USE": lambda project: f"{project.use_permille / 10:g} %",
            "WAITED": lambda project: f"{project.waited_ms // 1000} s" if project.waited_ms else "-",
        },
        right=("NODES", "BORROWED", "USE", "WAITED"),
    )


BALANCE = Work(_configure, _balance)
