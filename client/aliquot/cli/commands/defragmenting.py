"""`defragment`: which leases should be moved so that more fits; carried out only with --apply."""

from __future__ import annotations

import argparse

from aliquot.cli import _options as options
from aliquot.cli._command import Builtin
from aliquot.cli._exits import Exit
from aliquot.cli._out import Out
from aliquot.client.admin import LeaseMove

_STEP_MOVES = 8


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Only leases that were asked for with --movable are moved. A moved program is told to end, and its launcher\n"
        "starts it at the new place; both places are held meanwhile. Without --apply nothing changes, and the steps\n"
        "are planned independently, so two proposals may name the same place."
    )
    parser.add_argument("--apply", action="store_true", help="carry the moves out")
    parser.add_argument("--moves", type=_count, default=_STEP_MOVES, metavar="N", help="at most N moves (8)")


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _defragment(args: argparse.Namespace) -> int:
    out = Out.of(args)
    moves: list[LeaseMove] = []
    gained_milli = cursor = 0
    mix_known, over = False, False
    with options.open_pool(args) as pool:
        while not over:
            wanted = min(args.moves - len(moves), _STEP_MOVES)
            step = pool.admin.defragment(carry_out=args.apply, moves_max=wanted, cursor=cursor)
            moves += step.moves
            gained_milli += step.gained_share_milli
            mix_known, cursor = step.mix_known, step.cursor
            over = not cursor or len(moves) >= args.moves
            if not over:
                out.note(f"{len(moves)} moves so far")
        names = {node.node_id: node.name for node in pool.nodes(with_devices=False)} if moves else {}
    if out.as_json:
        out.document(
            {
                "carried_out": args.apply,
                "mix_known": mix_known,
                "gained_gpus": gained_milli / 1000,
                "moves": [
                    {
                        "lease_id": move.lease_id,
                        "tenant": move.tenant,
                        "from_node": names.get(move.from_node_id, move.from_node_id),
                        "to_node": names.get(move.to_node_id, move.to_node_id),
                        "device_uuids": list(move.device_uuids),
                    }
                    for move in moves
                ],
            }
        )
        return Exit.OK
    word = "moves" if args.apply else "would move"
    for move in moves:
        source, target = names.get(move.from_node_id, move.from_node_id), names.get(move.to_node_id, move.to_node_id)
        out.show(f"{move.lease_id} of {move.tenant} {word} from {source} to {target}")
    if moves:
        out.show(f"{gained_milli / 1000:g} GPUs of idle capacity become usable for what arrives")
    elif not mix_known:
        out.show("nothing to move: nothing has arrived yet, so it is not known what would be useful")
    else:
        out.show("nothing to move")
    return Exit.OK


DEFRAGMENT = Builtin("defragment", "move movable leases so that more fits", _configure, _defragment)
