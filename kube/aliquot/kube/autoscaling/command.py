"""`aliquot autoscale`: `create`, `status` and `delete`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict

import yaml

from aliquot.cli._out import Out
from aliquot.cli._parser import Parser, common
from aliquot.common.entry import Entry
from aliquot.common.errors import ConfigError
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import find_cluster
from aliquot.kube.autoscaling import working
from aliquot.kube.core.autoscaling.grammar import DEFAULT_TARGETS, Goal, Scaled, parse_goals, parse_scaled
from aliquot.kube.core.autoscaling.objects import AutoscalerSpec, document

_PROMETHEUS = "http://prometheus-operated.monitoring.svc:9090"
_CHOOSES = ("queue", "tenant")
_EPILOG = """\
Targets are joined by blanks, `,` or `;`, and written with `:` or `=`:
  cpu:70% mem:80%      of what its containers request; measured by Kubernetes itself
  gpu:60%              of each pod's own share of GPUs, whatever its neighbours on the card do
  gpu-memory:80%       of its GPU memory
  queue:4              requests that wait for each replica, of all or of one --queue, --tenant"""


class _Words(Parser):
    """Takes targets wherever they stand, also after options that come after others."""

    def parse_known_args(  # type: ignore[override]  # of its overloads the one that is called
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse's; words that it leaves are targets."""
        found, rest = super().parse_known_args(args, namespace)
        if hasattr(found, "targets"):
            found.targets = [*found.targets, *(word for word in rest if not word.startswith("-"))]
            rest = [word for word in rest if word.startswith("-")]
        return found, rest


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    commands = parser.add_subparsers(dest="what", metavar="COMMAND", required=True, parser_class=_Words)
    create = commands.add_parser(
        "create",
        help="write an autoscaler, or change it in place",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    create.add_argument("scaled", metavar="deploy/NAME", help="what is scaled: deploy/, statefulset/ or replicaset/")
    usual = " ".join(DEFAULT_TARGETS).replace("%", "%%")  # argparse formats help by it
    create.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: {usual}")
    create.add_argument("--min", type=int, default=1, metavar="N", help="fewest replicas (1); 0 needs --keda")
    create.add_argument("--max", type=int, required=True, metavar="N", help="most replicas")
    create.add_argument("--name", default="", help="of the autoscaler (default: of what it scales)")
    for name in _CHOOSES:
        create.add_argument(f"--{name}", default="", help=f"of what waits, only of this {name}")
    create.add_argument("--keda", action="store_true", help="a ScaledObject instead of an HPA")
    create.add_argument("--prometheus", default=_PROMETHEUS, metavar="URL", help=f"that KEDA asks ({_PROMETHEUS})")
    create.add_argument("--auth", default="", metavar="NAME", help="a ClusterTriggerAuthentication for it (none)")
    create.add_argument("--dry-run", action="store_true", help="print the object as YAML, and ask nobody")
    create.set_defaults(act=_create)
    status = commands.add_parser("status", help="how one stands, and why it does what it does, or nothing")
    status.add_argument("scaled", metavar="deploy/NAME")
    status.set_defaults(act=_status)
    delete = commands.add_parser("delete", help="remove what this command has written; replicas stay as they are")
    delete.add_argument("scaled", metavar="deploy/NAME")
    delete.add_argument("--name", default="", help="of the autoscaler, where there are several")
    delete.set_defaults(act=_delete)
    for each in (create, status, delete):
        common(each)
        each.add_argument("--namespace", "-n", default="", help="default: the kubeconfig's")
        each.add_argument("--kubeconfig", default="", metavar="FILE", help="instead of KUBECONFIG")
        each.add_argument("--context", default="", metavar="NAME", help="of the kubeconfig")


def run(args: argparse.Namespace) -> int:
    """Run it; raises AliquotError."""
    return int(asyncio.run(args.act(args)))


def _client(args: argparse.Namespace) -> KubeClient:
    client = KubeClient(find_cluster(args.kubeconfig, args.context))
    args.namespace = args.namespace or client.cluster.namespace
    return client


async def _create(args: argparse.Namespace) -> int:
    scaled = parse_scaled(args.scaled)
    goals = parse_goals(args.targets)
    if args.dry_run and not args.namespace:
        try:
            args.namespace = find_cluster(args.kubeconfig, args.context).namespace
        except ConfigError:
            args.namespace = "default"
    if args.dry_run:
        sys.stdout.write(yaml.safe_dump(document(_asked(args, scaled, goals)), sort_keys=False))
        return 0
    async with _client(args) as client:
        asked = _asked(args, scaled, goals)
        done = await working.create(client, asked)
        out = Out.of(args)
        out.document({"done": done, "kind": asked.kind, "namespace": asked.namespace, "name": asked.name})
        out.show(f"{asked.kind} {asked.namespace}/{asked.name} {done}: {asked.fewest} to {asked.most} of {scaled}")
        out.note(f"how it goes: aliquot autoscale status {scaled} -n {asked.namespace}")
    return 0


def _asked(args: argparse.Namespace, scaled: Scaled, goals: tuple[Goal, ...]) -> AutoscalerSpec:
    choose = {name: value for name in _CHOOSES if (value := getattr(args, name))}
    return AutoscalerSpec(
        args.namespace,
        args.name or scaled.name,
        scaled,
        args.min,
        args.max,
        goals,
        choose,
        args.keda,
        args.prometheus,
        args.auth,
    )


async def _status(args: argparse.Namespace) -> int:
    """1 where something is in the way."""
    out = Out.of(args)
    scaled = parse_scaled(args.scaled)
    async with _client(args) as client:
        found = await working.status(client, args.namespace, scaled)
    out.document([asdict(one) for one in found])
    for one in found:
        now = "nobody has looked yet" if one.now is None else f"{one.now} now, {one.wanted} wanted"
        scaled_at = f", last changed {one.last_scaled}" if one.last_scaled else ""
        out.show(f"{one.autoscaler}: {one.fewest} to {one.most} replicas, {now}{scaled_at}")
        for goal in one.goals:
            out.show(f"  {goal}")
        for condition in one.conditions:
            out.show(f"  {condition['type']}={condition['status']} {condition.get('reason', '')}")
        for reason in one.reasons:
            out.show(f"  - {reason.text}")
            if reason.mend:
                out.show(f"    mend: {reason.mend}")
    return 1 if any(reason.mend for one in found for reason in one.reasons) else 0


async def _delete(args: argparse.Namespace) -> int:
    out = Out.of(args)
    scaled = parse_scaled(args.scaled)
    async with _client(args) as client:
        gone = await working.delete(client, args.namespace, scaled, args.name)
    out.document([asdict(one) for one in gone])
    for one in gone:
        out.show(f"{one} deleted; {scaled} stays at the replicas that it has")
    return 0


AUTOSCALE = Entry(configure, run)
