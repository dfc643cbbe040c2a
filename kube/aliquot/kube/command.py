"""`aliquot kube`: what a cluster lacks (`doctor`), and what would become of a manifest (`plan`)."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from dataclasses import asdict
from pathlib import Path

from aliquot.cli._parser import common
from aliquot.client import AsyncPool, Explanation
from aliquot.common.entry import Entry
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import find_cluster
from aliquot.kube.core import names
from aliquot.kube.core.surroundings import Finding, Mark
from aliquot.kube.doctor import Doctor
from aliquot.kube.holding.telling import why_not
from aliquot.kube.ordering import command as ordering
from aliquot.kube.planning import Plan, Template, plan, read, templates

_REFUSED = 4
_NOT_NOW = 5
"""Exit codes as those of `aliquot why`."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    commands = parser.add_subparsers(dest="what", metavar="COMMAND", required=True)
    doctor = commands.add_parser("doctor", help="say what this cluster lacks, each with the command that mends it")
    common(doctor)
    doctor.add_argument("--kubeconfig", default="", metavar="FILE", help="instead of KUBECONFIG")
    doctor.add_argument("--context", default="", metavar="NAME", help="of the kubeconfig")
    doctor.set_defaults(act=_doctor)
    planning = commands.add_parser("plan", help="would these manifests start now, where, and why not?")
    common(planning)
    planning.add_argument("-f", "--file", action="append", type=Path, required=True, metavar="FILE", help="YAML")
    planning.add_argument("--tenant", default="", help="who pays (default: the namespace, as the rules do)")
    planning.add_argument(
        "--replica-percent", type=int, default=0, metavar="N", help="what nvidia.com/gpu.shared is of a card"
    )
    planning.set_defaults(act=_plan)
    ordering.configure(commands)


def run(args: argparse.Namespace) -> int:
    """Run it; raises AliquotError."""
    return int(asyncio.run(args.act(args)))


def _pool(args: argparse.Namespace) -> AsyncPool:
    return AsyncPool(args.coordinator, token_file=args.token_file, timeout_s=args.timeout)


async def _doctor(args: argparse.Namespace) -> int:
    """1 where something is wrong."""
    logging.getLogger("aliquot.kube.api").setLevel(logging.CRITICAL)  # what may not be read is a finding
    found: list[Finding] = []
    async with KubeClient(find_cluster(args.kubeconfig, args.context)) as client, _pool(args) as pool:
        async for finding in Doctor(client, pool).findings():
            found.append(finding)
            if not args.json:
                mend = f"\n{'':22}mend: {finding.mend}" if finding.mend else ""
                sys.stdout.write(f"{finding.mark.value:6}{finding.subject:16}{finding.text}{mend}\n")
                sys.stdout.flush()
    if args.json:
        sys.stdout.write(json.dumps([asdict(finding) for finding in found]) + "\n")
    return 1 if any(finding.mark is Mark.BAD for finding in found) else 0


async def _plan(args: argparse.Namespace) -> int:
    """0: all would start now; 4: something never; 5: something not now."""
    async with _pool(args) as pool:
        several = templates(read(args.file), replica_percent=args.replica_percent)
        found = [await plan(pool, template, tenant=args.tenant) for template in several]
    if args.json:
        sys.stdout.write(json.dumps([_document(one) for one in found]) + "\n")
    else:
        sys.stdout.writelines(f"{_line(one)}\n{_instead(one.template)}" for one in found)
        if not found:
            sys.stdout.write("no pods in these manifests\n")
    if any(one.template.problem or (one.explanation is not None and one.explanation.impossible) for one in found):
        return _REFUSED
    asking = [one for one in found if one.explanation is not None]
    return 0 if all(one.starting == one.template.count for one in asking) else _NOT_NOW


def _document(one: Plan) -> dict[str, object]:
    asked = one.template
    found: dict[str, object] = {
        "where": asked.where,
        "count": asked.count,
        "request": asked.gpu,
        "gang": asked.gang,
        "problem": asked.problem,
        "said": asked.said,
    }
    if one.explanation is not None:
        found |= {
            "starting": one.starting,
            "fits_now": one.starting == asked.count,
            "impossible": one.explanation.impossible,
            "summary": one.explanation.summary,
            "nodes": _nodes(one.explanation),
        }
    return found


def _nodes(explanation: Explanation) -> list[str]:
    return sorted({part.node_name or part.node_id for part in explanation.placement})


def _line(one: Plan) -> str:
    asked = one.template
    if asked.problem:
        return f"{asked.where}: {asked.problem}"
    if one.explanation is None:
        return f"{asked.where}: asks for no parts of GPUs"
    what = f"{asked.count} x {asked.gpu}" + (" as a gang" if asked.gang else "")
    if one.starting == asked.count:
        nodes = _nodes(one.explanation)
        return f"{asked.where}: {what} would start now on {', '.join(nodes[:8])}{' …' if len(nodes) > 8 else ''}"
    if one.starting:
        return f"{asked.where}: {one.starting} of {what} would start now, the others would wait"
    verdict = "can never start" if one.explanation.impossible else "would wait"
    return f"{asked.where}: {what} {verdict}: {why_not(one.explanation)}"


def _instead(asked: Template) -> str:
    """Of one in other words: what it is as it stands, and what to write."""
    if not asked.said or asked.problem:
        return ""
    return (
        f"  now: {asked.said}, for which it gets nothing here; this, where it or its namespace has the label "
        f"{names.TRANSLATE}=true,\n"
        f'  or write: annotations: {{{names.REQUEST}: "{asked.gpu}"}}\n'
    )


KUBE = Entry(configure, run)
