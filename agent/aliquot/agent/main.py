"""The command `aliquot-agent`: reads settings, runs an agent, ends it cleanly on SIGTERM.

When it works it prints one line, `ready {"node_id": …, "socket": …, "metrics": …}`, like the coordinator.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from aliquot.agent.agent import Agent
from aliquot.agent.devices.base import DeviceBackend
from aliquot.agent.devices.kinds import make_backend
from aliquot.agent.settings import ENV_PREFIX, LIVE, Settings
from aliquot.common import config
from aliquot.common import logging as logs
from aliquot.common.duties import Duties
from aliquot.common.errors import AliquotError, ConfigError
from aliquot.common.notify import beat, notify
from aliquot.common.reloading import read_again
from aliquot.common.runtime import VERSION, say_ready
from aliquot.common.tls import in_authority

log = logging.getLogger(__name__)

EXIT_REFUSED = 1
EXIT_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run an agent until it is told to end. Exit codes: 0 ended by a signal, 1 refused with the reason, 2 usage."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if words[:1] == ["install-service"]:
            from aliquot.common.services import install_service  # noqa: PLC0415 - an agent that runs does not need it

            return install_service("aliquot-agent", words[1:])
        joins = words[:1] == ["join"]
        parsed = vars(_parser(joins=joins).parse_args(words[1:] if joins else words))
        file: Path | None = parsed.pop("config")
        string: str | None = parsed.pop("string", None)

        def read() -> Settings:
            table = None if file is None else "agent"
            return config.load(
                Settings, env_prefix=ENV_PREFIX, file=file, table=table, env=os.environ, flags=parsed
            ).settings

        settings = read()
        logs.configure(settings.log_level, json=settings.log_json)
        if string is not None:
            _join(settings, string)
        else:
            asyncio.run(_run(settings, read))
    except AliquotError as error:
        sys.stderr.write(f"aliquot-agent: {error.explain()}\n")
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_REFUSED
    except OSError as error:
        sys.stderr.write(f"aliquot-agent: {error}\n")
        return EXIT_REFUSED
    return 0


def _join(settings: Settings, string: str) -> None:
    # An agent that runs needs neither, nor what they bring.
    from aliquot.agent.joining import join  # noqa: PLC0415 - see above
    from aliquot.common.connection_string import decode  # noqa: PLC0415 - see above

    text = sys.stdin.readline() if string == "-" else string
    joined = asyncio.run(join(settings, decode(text), lambda: make_backend(settings.devices)))
    member = joined.membership
    sys.stdout.write(f"node {joined.name} ({member.node_id}) has joined pool {member.pool_id}: start aliquot-agent\n")


async def _run(settings: Settings, read: Callable[[], Settings]) -> None:
    backend = make_backend(settings.devices)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)

    duties = Duties()  # until there is a node to tell them of

    def hang_up() -> None:
        nonlocal settings
        settings = read_again(settings, read, LIVE, duties)

    loop.add_signal_handler(signal.SIGHUP, hang_up)
    starting = asyncio.create_task(_start(settings, backend), name="start")
    waiting = asyncio.create_task(ended.wait(), name="wait for a signal")
    await asyncio.wait({starting, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        return
    agent = starting.result()
    duties = agent.state.duties
    logs.always(node=agent.state.name)
    # What start-up has loaded stays. Python collects the oldest generation only when the new objects are a quarter of
    # all, which would then never happen: unreachable cycles would pile up.
    gc.collect()
    gc.freeze()
    metrics = "" if agent.metrics_port is None else f"{in_authority(settings.metrics_host)}:{agent.metrics_port}"
    say_ready(node_id=agent.state.node_id, socket=str(settings.socket), metrics=metrics)
    notify("READY=1", f"STATUS={len(agent.state.devices)} devices, node {agent.state.node_id}")
    running = asyncio.create_task(agent.run(), name="agent")
    beating = asyncio.create_task(beat(), name="systemd watchdog")
    joining = asyncio.create_task(_join_by_itself(settings, agent), name="join")
    try:
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        log.info("ending: reservations stay, and their limits are taken up again at the next start")
        notify("STOPPING=1")
    finally:
        for task in (running, beating, joining, waiting):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await agent.close()


async def _join_by_itself(settings: Settings, agent: Agent) -> None:
    if settings.join_file is not None:
        from aliquot.agent.joining import join_when_it_can  # noqa: PLC0415 - as above

        await join_when_it_can(settings, settings.join_file, lambda: make_backend(settings.devices))
        agent.stream.connect_again()


async def _start(settings: Settings, backend: DeviceBackend) -> Agent:
    agent = await Agent.open(settings, backend)
    await agent.start()
    return agent


def _parser(*, joins: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="aliquot-agent join" if joins else "aliquot-agent",
        description="Lets this node join a pool, with a key that is made here and stays here."
        if joins
        else "Reads this node's devices, holds reservations on disk, and enforces what leases grant. "
        "`aliquot-agent join STRING` lets the node join a pool first.",
        epilog=f"Every setting can also be given as {ENV_PREFIX}<NAME>, or in the [agent] table of --config.",
    )
    if joins:
        parser.add_argument("string", metavar="STRING", help="what `aliquot node invite` printed; -: read from stdin")
    parser.add_argument("--version", action="version", version=f"aliquot-agent {VERSION}")
    parser.add_argument("--config", type=Path, help="a TOML file with a table [agent]")
    parser.add_argument("--coordinator", metavar="HOST:PORT[,...]", help="coordinators; the leader is found among them")
    parser.add_argument("--state-dir", help="where reservations are kept")
    parser.add_argument("--socket", help="path of the socket that processes attach by")
    parser.add_argument("--metrics-host", help="where to serve metrics (default 127.0.0.1)")
    parser.add_argument("--metrics-port", help="0: a free one, -1: none")
    parser.add_argument(
        "--dcgm-names", action="store_const", const=True, help="also serve dcgm-exporter's metric names"
    )
    parser.add_argument("--node-name", help="what people call this node (default: the host's name)")
    parser.add_argument("--node-id", help="a stable id (default: made once and kept)")
    parser.add_argument("--pool", help="the pool this node joins")
    parser.add_argument("--failure-domain", help="rack, row or zone")
    parser.add_argument("--label", action="append", metavar="KEY=VALUE", help="may be given several times")
    parser.add_argument("--devices", metavar="KIND[,KIND...]", help="auto, nvml, drm, or several")
    parser.add_argument("--containment", metavar="auto|cgroup|process_group", help="how to follow a lease's processes")
    parser.add_argument(
        "--tls-ca",
        dest="tls.ca_file",
        metavar="FILE",
        help="PEM of the authority that signed the coordinator's certificate",
    )
    parser.add_argument(
        "--tls-cert", dest="tls.certificate_file", metavar="FILE", help="PEM of this agent's own certificate"
    )
    parser.add_argument("--tls-key", dest="tls.key_file", metavar="FILE", help="PEM of its key")
    parser.add_argument("--log-level")
    parser.add_argument("--log-json", action="store_const", const=True)
    return parser


if __name__ == "__main__":
    sys.exit(main())
