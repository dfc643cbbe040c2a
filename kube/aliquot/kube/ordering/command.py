"""`aliquot kube nodes`: carries the pool's orders of nodes out in a Kubernetes cluster."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys

from aliquot.cli._out import Out
from aliquot.cli._parser import common, seconds
from aliquot.client import AsyncPool
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import find_cluster
from aliquot.kube.core.ordering import CLASSES, Means
from aliquot.kube.ordering.carrier import Carrier

_EPILOG = f"""\
Orders become placeholders: pods of low priority that ask for all devices of a node, one Deployment for each shape.
With --provisioning CLASS they become ProvisioningRequests instead; classes of the cluster autoscaler:
  {CLASSES[0]}
  {CLASSES[1]}
Nodes that come must carry the label supply.aliquot.dev/shape=SHAPE, and the shape's own labels.
"""


def configure(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """The action's options."""
    parser = commands.add_parser(
        "nodes",
        help="carry orders of nodes out, with the cluster's own autoscaler",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common(parser)
    parser.add_argument("--namespace", "-n", default="", help="of what is written (default: the kubeconfig's)")
    parser.add_argument("--name", default="kubernetes", help="under which orders are taken: one for each cluster")
    parser.add_argument("--provisioning", default="", metavar="CLASS", help="write ProvisioningRequests of this class")
    parser.add_argument(
        "--resource", default="nvidia.com/gpu", metavar="NAME", help="that counts whole devices (nvidia.com/gpu)"
    )
    parser.add_argument("--image", default=Means("").image, help="of placeholders: one that does nothing")
    parser.add_argument("--every", type=seconds, default=10.0, metavar="TIME", help="how often to look (10s)")
    parser.add_argument("--once", action="store_true", help="look once, and end")
    parser.add_argument("--kubeconfig", default="", metavar="FILE", help="instead of KUBECONFIG")
    parser.add_argument("--context", default="", metavar="NAME", help="of the kubeconfig")
    parser.set_defaults(act=_nodes)


async def _nodes(args: argparse.Namespace) -> int:
    out = Out.of(args)
    if not args.once:
        logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    async with (
        KubeClient(find_cluster(args.kubeconfig, args.context)) as client,
        AsyncPool(args.coordinator, token_file=args.token_file, timeout_s=args.timeout) as pool,
    ):
        namespace = args.namespace or client.cluster.namespace
        means = Means(namespace, args.name, args.resource, args.image, args.provisioning)
        carrier = Carrier(client, pool, means)
        if args.once:
            at_work = await carrier.look()
            out.document({"at_work": at_work})
            out.show(f"{at_work} orders are being carried out in namespace {namespace}")
            return 0
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        out.note(f"orders are carried out in namespace {namespace} as {args.name}")
        await carrier.run(args.every, stop)
    return 0
