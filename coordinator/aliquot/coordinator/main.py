"""The coordinator's program, and the only place where its parts are wired together.

    python -m aliquot.coordinator --listen 127.0.0.1:7070 --journal sqlite:PATH

When it serves it prints one line, `ready {"address": …, "metrics": …}`. SIGTERM and SIGINT end it without losing
anything; so does a kill, which merely takes the replay of what the last snapshot does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc as python_gc
import json
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from aliquot.common import config as common_config
from aliquot.common import logging as common_logging
from aliquot.common.clock import Clock, SystemClock
from aliquot.common.errors import AliquotError, ConfigError
from aliquot.common.ids import IdGenerator
from aliquot.coordinator import gc
from aliquot.coordinator.config import ENV_PREFIX, Settings
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.facts import EndReason
from aliquot.coordinator.core.state import State
from aliquot.coordinator.journal.base import Journal
from aliquot.coordinator.journal.compaction import Compaction
from aliquot.coordinator.journal.memory import MemoryJournal
from aliquot.coordinator.journal.replay import replay
from aliquot.coordinator.journal.snapshots import SnapshotFolder
from aliquot.coordinator.journal.sqlite import SqliteJournal, snapshot_folder_of
from aliquot.coordinator.keepalive import KeepAlive
from aliquot.coordinator.leadership.single import SingleLeadership, lock_path_of
from aliquot.coordinator.metrics import Metrics
from aliquot.coordinator.outbox import Outbox
from aliquot.coordinator.published import whole_state
from aliquot.coordinator.pulse import Pulse
from aliquot.coordinator.rpc.agent_service import agent_handler
from aliquot.coordinator.rpc.lease_service import LeaseService
from aliquot.coordinator.rpc.nodes import NodeWriter
from aliquot.coordinator.rpc.pool_service import PoolService
from aliquot.coordinator.rpc.server import Server
from aliquot.coordinator.rpc.watch_service import WatchService
from aliquot.coordinator.scrape import Answer, ScrapeServer
from aliquot.coordinator.sessions import Sessions
from aliquot.coordinator.telemetry import Telemetry
from aliquot.coordinator.view import View
from aliquot.coordinator.waiting import Waiters
from aliquot.coordinator.watch import WatchHub
from aliquot.coordinator.writer import Writer
from aliquot.v1 import leases_pb2_grpc, pool_pb2_grpc

log = logging.getLogger(__name__)

_STOP_GRACE_S = 1.0
_SWITCH_INTERVAL_S = 0.000_5
"""How long the event loop may keep the journal thread waiting for the interpreter, a few times per commit."""


def version() -> str:
    """Of the installed distribution."""
    try:
        return metadata.version("aliquot")
    except metadata.PackageNotFoundError:
        return "0"


def make_journal(settings: Settings) -> Journal:
    """The journal that `--journal` names. Raises ConfigError."""
    kind, _, place = settings.journal.partition(":")
    if kind == "memory" and not place:
        return MemoryJournal()
    if kind == "sqlite" and place:
        path = Path(place).expanduser()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"{path.parent}: {error.strerror}", hint="give --journal sqlite:PATH") from error
        return SqliteJournal(path, fsync_delay_ms=settings.fsync_delay_ms)
    raise ConfigError(f"journal {settings.journal!r} is unknown", hint="sqlite:PATH or memory:")


def make_leadership(settings: Settings, journal: Journal) -> SingleLeadership:
    """One coordinator per journal."""
    kind, _, place = settings.journal.partition(":")
    lock = lock_path_of(Path(place).expanduser()) if kind == "sqlite" else None
    return SingleLeadership(journal, lock)


class Coordinator:
    """All parts, wired. `start`, then `serve` until `stop`; both on one event loop."""

    def __init__(self, settings: Settings, *, journal: Journal | None = None, clock: Clock | None = None) -> None:
        self.settings = settings
        self.journal = journal or make_journal(settings)
        self.address = ""
        self.metrics_address = ""
        self._leadership = make_leadership(settings, self.journal)
        self._clock = clock
        self._stop = asyncio.Event()

    async def start(self) -> None:
        """Lead, replay, and answer. Raises AliquotError when that can't be."""
        settings = self.settings
        python_gc.disable()
        leader_epoch = self._leadership.acquire()
        try:
            state = self._replayed()
        except BaseException:
            self._leadership.release()
            raise
        clock = self._clock or SystemClock(not_before_ms=state.now_ms)
        self.view = View()
        self.metrics = Metrics(self.view)
        self.hub = WatchHub()
        self.waiters = Waiters()
        self.outbox = Outbox(self.view, self.hub, self.waiters)
        self.writer = Writer(
            state=state,
            journal=self.journal,
            clock=clock,
            publisher=self.outbox,
            meter=self.metrics,
            reload=self._replayed,
            config=settings.writer(),
        )
        self.keepalive = KeepAlive(clock, self._expire)
        self.outbox.follow_leases(self.keepalive)
        self.outbox.load(whole_state(state))
        self.outbox.follow_leases(self.metrics)
        self._writing = asyncio.create_task(self.writer.run())
        self._writing.add_done_callback(lambda _: self._stop.set())
        await self.writer.submit(c.StartLeading(leader_epoch))

        telemetry = Telemetry()
        self.sessions = Sessions(
            writer=self.writer,
            view=self.view,
            clock=clock,
            telemetry=telemetry,
            metrics=self.metrics,
            leader_epoch=leader_epoch,
            pool_secret=self.journal.pool_secret,
            version=version(),
            config=settings.agents.sessions(),
        )
        self.outbox.follow_leases(self.sessions)
        self.outbox.follow_nodes(self.sessions)
        self._serve_calls(NodeWriter(self.view, telemetry, self.sessions.last_heard_ms))
        self.pulse = Pulse(
            clock,
            sweeps=[self.sessions.sweep, self.keepalive.sweep],
            paused=[self.sessions.start_again, self.keepalive.start_again],
            pressure=self.sessions.set_pressure,
        )
        self._serve_metrics()
        self._follow_health()
        await self.server.serve()
        await self.server.set_granting(granting=True)
        self._background = [asyncio.create_task(self.pulse.run())]
        if isinstance(self.journal, SqliteJournal):
            compaction = Compaction(
                str(self.journal.path),
                SnapshotFolder(snapshot_folder_of(self.journal.path)),
                every_facts=settings.snapshot_every_facts,
                durable_seq=lambda: self.writer.durable_seq,
                prune=self.writer.prune,
            )
            self._background.append(asyncio.create_task(compaction.run()))
        gc.settle()

    def _replayed(self) -> State:
        replayed = replay(self.journal, self.settings.core())
        self.journal.resume_after(replayed.state.seq, replayed.digest)
        log.info(
            "replayed %d facts after the snapshot of %d in %d ms: %d leases, %d nodes",
            replayed.facts,
            replayed.snapshot_seq,
            replayed.took_ms,
            len(replayed.state.leases),
            len(replayed.state.nodes),
        )
        return replayed.state

    def _serve_calls(self, nodes: NodeWriter) -> None:
        leases = LeaseService(
            writer=self.writer,
            view=self.view,
            waiters=self.waiters,
            keepalive=self.keepalive,
            metrics=self.metrics,
            ids=IdGenerator(),
            pool_secret=self.journal.pool_secret,
            watch=WatchService(self.hub, self.view, nodes, self.metrics),
        )
        pool = PoolService(writer=self.writer, view=self.view, nodes=nodes, metrics=self.metrics, version=version())
        self.server = Server([agent_handler(self.sessions)])
        leases_pb2_grpc.add_LeaseServiceServicer_to_server(leases, self.server.grpc)
        pool_pb2_grpc.add_PoolServiceServicer_to_server(pool, self.server.grpc)
        settings = self.settings
        self.address = self.server.listen(settings.listen, settings.tls.server_tls(), insecure=settings.insecure)

    def _serve_metrics(self) -> None:
        self._pauses = gc.PauseMeter(self.metrics.gc_pause.observe)
        self._pauses.install()
        self.metrics.gauges += [
            ("aliquot_writer_queue", "Commands that wait to be decided", lambda: self.writer.queued),
            ("aliquot_agent_sessions", "Agents that are connected", lambda: len(self.sessions)),
            ("aliquot_watchers", "Watch streams that are open", lambda: len(self.hub)),
            ("aliquot_granting", "1 while anything is granted", lambda: int(self.writer.granting)),
            ("aliquot_loop_lag_seconds", "How late the last regular beat was", lambda: self.pulse.lag_ms / 1000),
        ]
        self._scrape = None
        if self.settings.metrics_port >= 0:
            host = self.settings.metrics_host
            try:
                self._scrape = ScrapeServer(
                    host, self.settings.metrics_port, self.metrics, live=self._live, ready=self._ready
                )
            except OSError as error:
                raise ConfigError(
                    f"metrics can't be served on {host}:{self.settings.metrics_port}: {error.strerror}",
                    hint="choose another --metrics-port, or -1 for none",
                ) from error
            self.metrics_address = f"{host}:{self._scrape.port}"

    def _live(self) -> Answer:
        return Answer(200, "ok") if self.pulse.is_live() else Answer(503, "the event loop is stuck")

    def _ready(self) -> Answer:
        if self.writer.granting:
            return Answer(200, "ok")
        return Answer(503, f"nothing is granted: {self.writer.not_granting_reason}")

    def _follow_health(self) -> None:
        tasks: set[asyncio.Task[None]] = set()

        def say(granting: bool, reason: str) -> None:  # noqa: FBT001 - a callback
            del reason
            task = asyncio.create_task(self.server.set_granting(granting=granting))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        def ask_all() -> None:
            task = asyncio.create_task(self.sessions.ask_all("JOURNAL_RECOVERED"))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        self.writer.on_health.append(say)
        self.writer.on_reload.append(ask_all)

    def _expire(self, lease_id: str, ttl_ms: int) -> bool:
        command = c.Release(lease_id, EndReason.EXPIRED, f"no keep-alive for {ttl_ms} ms")
        try:
            self.writer.submit(command)
        except AliquotError:
            return False
        return True

    async def serve(self) -> None:
        """Until `stop` is called, or leadership is lost. Then end in order; raises NotLeader in the latter case."""
        try:
            await self._stop.wait()
        finally:
            await self._shut_down()

    def stop(self) -> None:
        """End in order."""
        self._stop.set()

    async def _shut_down(self) -> None:
        log.info("shutting down")
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        stopping = asyncio.create_task(self.server.stop(_STOP_GRACE_S))
        await self.sessions.goodbye()
        self.waiters.wake_all()
        await stopping
        self.writer.close()
        result = (await asyncio.gather(self._writing, return_exceptions=True))[0]
        self.writer.stop_thread()
        self._pauses.remove()
        if self._scrape is not None:
            await asyncio.to_thread(self._scrape.close)
        self._leadership.release()
        if isinstance(result, BaseException):
            raise result


def parse_settings(argv: list[str] | None) -> Settings:
    """Settings from flags, the environment and a file. Raises ConfigError."""
    parser = argparse.ArgumentParser(prog="aliquot-coordinator", description="the coordinator of a pool of GPU parts")
    parser.add_argument("--version", action="version", version=version())
    parser.add_argument("--config", type=Path, help="a TOML file; its table [coordinator] is read")
    parser.add_argument("--listen", help="host:port or unix:PATH (127.0.0.1:7070)")
    parser.add_argument("--journal", help="sqlite:PATH, or memory: to forget everything at the end")
    parser.add_argument(
        "--metrics-port", type=int, help="HTTP port of /metrics, /healthz, /readyz; 0: a free one; -1: none"
    )
    parser.add_argument("--metrics-host", help="where that port listens (127.0.0.1)")
    parser.add_argument(
        "--insecure", action="store_true", default=None, help="listen without TLS where others can connect"
    )
    parser.add_argument("--tls-cert", dest="tls.certificate_file", help="PEM file")
    parser.add_argument("--tls-key", dest="tls.key_file", help="PEM file")
    parser.add_argument("--tls-client-ca", dest="tls.client_ca_file", help="PEM file: clients need a certificate by it")
    parser.add_argument("--policy", help="how leases are placed: binpack, spread, …")
    parser.add_argument("--log-level", help="debug, info, warning, error")
    parser.add_argument("--log-json", action="store_true", default=None, help="one JSON object a line")
    parser.add_argument("--snapshot-every-facts", type=int, help="facts between two snapshots")
    parser.add_argument("--fsync-ms", dest="fsync_delay_ms", type=int, help=argparse.SUPPRESS)
    flags = vars(parser.parse_args(argv))
    file = flags.pop("config")
    return common_config.load(
        Settings, env_prefix=ENV_PREFIX, file=file, table="coordinator", env=os.environ, flags=flags
    ).settings


def _allow_many_connections() -> None:
    """Each agent and launcher is a connection; the usual bound of 1,024 open files is for other programs."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def run(settings: Settings, journal: Journal | None = None) -> None:
    """Serve until a signal comes."""
    coordinator = Coordinator(settings, journal=journal)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, coordinator.stop)
    await coordinator.start()
    ready = {"address": coordinator.address, "metrics": coordinator.metrics_address}
    sys.stdout.write(f"ready {json.dumps(ready)}\n")
    sys.stdout.flush()
    await coordinator.serve()


def main(argv: list[str] | None = None, *, wrap: Callable[[Journal], Journal] = lambda journal: journal) -> int:
    """The program. `wrap` puts something between it and its journal."""
    try:
        settings = parse_settings(argv)
        common_logging.configure(settings.log_level, json=settings.log_json)
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        _allow_many_connections()
        asyncio.run(run(settings, wrap(make_journal(settings))))
    except AliquotError as error:
        sys.stderr.write(error.explain() + "\n")
        return 1
    return 0
