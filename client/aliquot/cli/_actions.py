"""Commands that have actions of their own, such as `aliquot maintenance add`: one way to add one, and to run it."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from aliquot.cli._options import on_pool
from aliquot.cli._out import Out
from aliquot.cli._parser import common
from aliquot.client import Pool


def action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    act: Callable[[Pool, argparse.Namespace, Out], int | None],
) -> argparse.ArgumentParser:
    """Add an action that asks the pool, with the options that every command has; `text` is its help, without a full
    stop.
    """
    return action_alone(actions, name, text, on_pool(act))


def action_alone(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    text: str,
    act: Callable[[argparse.Namespace, Out], int | None],
) -> argparse.ArgumentParser:
    """Add an action that opens no pool, or one of its own."""
    parser = actions.add_parser(
        name,
        help=text,
        description=text[:1].upper() + text[1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common(parser)
    parser.set_defaults(act=act)
    return parser


def run_action(args: argparse.Namespace, out: Out) -> int | None:
    """Run the action that was chosen; returns its exit code."""
    code: int | None = args.act(args, out)
    return code
