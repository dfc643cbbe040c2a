"""Our processes in a cluster.

aliquot-kube extender       beside a stock kube-scheduler: filter, prioritise, bind, preempt
aliquot-kube controllers    one leads: reconciling, Kueue's admission checks, ElasticJobs, claims
aliquot-kube webhook        admission: counts what pods ask for

Each prints one line, `ready {…}`, when it serves; SIGTERM and SIGINT end it. Whatever it knows it can learn again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from aliquot.client import AsyncPool
from aliquot.common import config as common_config
from aliquot.common import logging as common_logging
from aliquot.common.errors import AliquotError
from aliquot.common.runtime import event_loop_factory, say_ready, until_signalled
from aliquot.kube import webhook
from aliquot.kube.alive import alive
from aliquot.kube.api.client import KubeClient
from aliquot.kube.api.cluster import find_cluster
from aliquot.kube.api.election import Election, LeadershipLost
from aliquot.kube.controllers.claims import ClaimController
from aliquot.kube.controllers.elastic_jobs import ElasticJobController
from aliquot.kube.controllers.kueue import KueueController
from aliquot.kube.controllers.reconciler import Reconciler
from aliquot.kube.controllers.remote_pods import RemotePodController
from aliquot.kube.core.names import CONTROLLERS_LEASE
from aliquot.kube.extender.http import verbs
from aliquot.kube.holding.parts import Parts
from aliquot.kube.serving import serve
from aliquot.kube.settings import ENV_PREFIX, TABLE, Settings
from aliquot.kube.wiring import following, make_extender, make_parts, running


def parse(argv: Sequence[str] | None) -> tuple[str, Settings]:
    """Which process, and its settings. Raises ConfigError."""
    parser = argparse.ArgumentParser(prog="aliquot-kube", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("process", choices=("extender", "controllers", "webhook"))
    parser.add_argument("--kubeconfig", metavar="FILE", help="instead of the pod's own service account")
    parser.add_argument("--cluster", metavar="NAME", help="names this cluster among those that share the pool")
    parser.add_argument("--listen-port", metavar="PORT", type=int, help="of the extender (8760); 0: a free one")
    flags = common_config.flags_of(parser, argv, ENV_PREFIX, TABLE)
    process, file = flags.pop("process"), flags.pop("config")
    loaded = common_config.load(Settings, env_prefix=ENV_PREFIX, file=file, table=TABLE, env=os.environ, flags=flags)
    return process, loaded.settings


async def run(process: str, settings: Settings) -> None:
    """Serve until cancelled. Raises AliquotError, or LeadershipLost."""
    cluster = find_cluster(settings.kubeconfig)
    if process == "webhook":
        async with KubeClient(cluster) as client:
            await run_webhook(client, settings, settings.namespace or cluster.namespace)
        return
    async with alive(settings.alive_file), KubeClient(cluster) as client, AsyncPool() as pool:
        parts = await make_parts(client, pool, settings, f"aliquot-{process}")
        if process == "extender":
            await run_extender(parts, settings)
        else:
            namespace = settings.namespace or cluster.namespace
            holder = f"{os.environ.get('POD_NAME') or socket.gethostname()}_{os.getpid()}"
            await run_controllers(parts, settings, Election(client, namespace, CONTROLLERS_LEASE, holder))


async def run_extender(parts: Parts, settings: Settings) -> None:
    """The extender, until cancelled."""
    extender, reconciler = make_extender(parts)

    def not_ready() -> str:
        if not parts.book.synced.is_set():
            return "the pool's leases are not known yet"
        if not parts.pods.informer.trustworthy:
            return parts.pods.informer.problem or "the API server was not heard"
        return ""

    end, port = await serve(verbs(extender), settings.listen_host, settings.listen_port, not_ready=not_ready)
    try:
        async with running(*following(parts), reconciler.run(), extender.run()) as failed:
            say_ready(address=f"{settings.listen_host}:{port}")
            await failed
    finally:
        await end()


async def run_webhook(client: KubeClient, settings: Settings, namespace: str) -> None:
    """The webhook, until cancelled. It asks no pool. Raises ConfigError, and KubeError for its certificate's Secret."""
    folder, renew = settings.webhook_tls, None
    with contextlib.ExitStack() as stack:
        if settings.webhook_service:
            from aliquot.kube.webhook_certificate import SharedCertificate  # noqa: PLC0415 - a library only it needs

            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aliquot-")))
            renew = SharedCertificate(client, namespace, settings.webhook_service, folder).refresh
            await renew()
        certificate = webhook.Certificate(folder)
        questions = webhook.questions(settings.scheduler, settings.replica_percent)
        end, port = await serve(questions, settings.webhook_host, settings.webhook_port, tls=certificate.context)
        try:
            async with running(webhook.keep(certificate, client, renew=renew)) as failed:
                say_ready(address=f"{settings.webhook_host}:{port}")
                await failed
        finally:
            await end()


async def run_controllers(parts: Parts, settings: Settings, election: Election) -> None:
    """The controllers, as long as this process leads. Raises LeadershipLost."""

    async def lead(epoch: int) -> None:
        elastic = ElasticJobController(parts, settings.scheduler)
        work = [Reconciler(parts).run(), KueueController(parts).loop.run(), elastic.loop.run()]
        work.append(ClaimController(parts).loop.run())
        if settings.remote_pods:
            work.append(RemotePodController(parts).loop.run())
        async with running(*following(parts), *work) as failed:
            say_ready(leading=True, epoch=epoch)
            await failed

    await election.run(lead)


def main(argv: Sequence[str] | None = None) -> int:
    """The program."""
    try:
        process, settings = parse(argv)
        common_logging.configure(settings.log_level, json=settings.log_json)
        # Each question over HTTP leaves cycles, and with the usual 700 objects looking for them, among all that was
        # loaded, is a tenth or more of what a pod costs. 10,000 are about a megabyte.
        gc.freeze()
        gc.set_threshold(10_000)
        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            runner.run(until_signalled(run(process, settings)))
    except AliquotError as error:
        sys.stderr.write(error.explain() + "\n")
        return 1
    except LeadershipLost as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
