"""`declare`: nodes from a file, before or without their agents."""

from __future__ import annotations

import argparse
from pathlib import Path

from aliquot.cli import _nodefile as nodefile
from aliquot.cli import _options as options
from aliquot.cli import _views as views
from aliquot.cli._command import Work
from aliquot.cli._out import Out


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (nodefile.__doc__ or "").partition("\n\n")[2]
    parser.add_argument("--file", "-f", type=Path, required=True, help="nodes.yaml, .json, .toml or .csv")
    parser.add_argument("--agentless", action="store_true", help="nodes without agents: grants are accounting only")
    parser.add_argument("--pool", default="", help="for nodes that name none")
    parser.add_argument("--dry-run", action="store_true", help="read and show only")


def _declare(args: argparse.Namespace, out: Out) -> None:
    declarations = nodefile.read_nodes(args.file, agentless=args.agentless, pool=args.pool)
    devices = sum(len(declaration.devices) for declaration in declarations)
    if args.dry_run:
        out.document({"nodes": declarations})
        out.show(f"{args.file} describes {len(declarations)} nodes with {devices} devices")
        return
    with options.open_pool(args) as pool:
        nodes = pool.declare(declarations)
    out.document({"nodes": nodes})
    if len(nodes) <= 50:
        out.show(views.nodes_table(nodes))
    out.show(f"declared {len(nodes)} nodes with {devices} devices")


DECLARE = Work(_configure, _declare)
