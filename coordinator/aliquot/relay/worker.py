"""One process of a relay: agents on one side, a coordinator on the other, and its metrics and health."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any

from aliquot.common.clock import Clock
from aliquot.common.scraping import allowed_by
from aliquot.coordinator.reading.scrape import Answer, ScrapeServer, scraped
from aliquot.coordinator.rpc.server import SERVER_OPTIONS, Server
from aliquot.relay.config import Settings
from aliquot.relay.front import Front
from aliquot.relay.metrics import RelayMetrics
from aliquot.relay.trusting import EVERY_S, take_up
from aliquot.relay.upstream import Upstream
from aliquot.v1 import agent_pb2

log = logging.getLogger(__name__)

_OPTIONS = (*((key, value) for key, value in SERVER_OPTIONS if key != "grpc.so_reuseport"), ("grpc.so_reuseport", 1))
_AGENTS = agent_pb2.DESCRIPTOR.services_by_name["AgentService"].full_name
_BEAT_MS = 250
_STUCK_MS = 15_000
_GRACE_S = 1.0
"""Over the time that agents have to leave."""


class Worker:
    """`start`, then `serve` until `stop`; all on one event loop. `number` is which of several processes it is."""

    def __init__(self, settings: Settings, number: int, *, clock: Clock, version: str) -> None:
        self._settings = settings
        self._number = number
        self._clock = clock
        self._metrics = RelayMetrics(
            [
                ("aliquot_relay_agents", "Agents that are connected", lambda: len(self._front)),
                (
                    "aliquot_relay_loop_lag_seconds",
                    "How late the event loop's last beat was",
                    lambda: self._lag_ms / 1000,
                ),
            ]
        )
        self._upstream = Upstream(settings, self._metrics, self._upstream_changed, version=version)
        self._front = Front(settings.limits, self._metrics, lambda: self._upstream.mux, lambda: self._lag_ms)
        self._server = Server([self._front.handler()], services=(_AGENTS,), options=_OPTIONS)
        self._scrape: ScrapeServer | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop = asyncio.Event()
        self._lag_ms = 0
        self._beaten_ms = clock.monotonic_ms()
        self.address = ""
        self.metrics_address = ""

    async def start(self) -> None:
        """Listen, and look for the leader. Raises AliquotError where that can't be."""
        settings = self._settings
        self.address = self._server.listen(settings.listen, settings.tls.server())
        if settings.metrics_port >= 0:
            host, port = settings.metrics_host, settings.metrics_port and settings.metrics_port + self._number
            self._scrape = scraped(
                host,
                port,
                self._metrics,
                live=self._live,
                ready=self._ready,
                allowed=allowed_by(host, settings.metrics_token_file),
                tls=settings.tls.server(),
            )
            self.metrics_address = f"{host}:{self._scrape.port}"
        await self._server.serve(leading=False)
        self._spawn(self._beat())
        self._spawn(self._upstream.run())
        if self._number == 0:  # one of several is enough: they share what is kept
            self._spawn(self._follow_authority())

    async def serve(self) -> None:
        """Until `stop` is called; then send the agents elsewhere and end."""
        await self._stop.wait()
        log.info("shutting down: %d agents are sent elsewhere", len(self._front))
        # No more connections here from now on: others that share the port get them.
        stopping = asyncio.create_task(self._server.stop(self._settings.drain / 1000 + _GRACE_S))
        leaving = asyncio.create_task(self._front.leave(self._settings.drain))
        await asyncio.wait([stopping, leaving], return_when=asyncio.FIRST_COMPLETED)
        if (mux := self._upstream.mux) is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GRACE_S):
                    await mux.flush()
        await stopping
        for task in (leaving, *self._tasks):
            task.cancel()
        await asyncio.gather(leaving, *self._tasks, return_exceptions=True)
        if self._scrape is not None:
            await asyncio.to_thread(self._scrape.close)

    def stop(self) -> None:
        """End in order."""
        self._stop.set()

    def _live(self) -> Answer:
        if self._clock.monotonic_ms() - self._beaten_ms < _STUCK_MS:
            return Answer(200, "ok")
        return Answer(503, "the event loop is stuck")

    def _ready(self) -> Answer:
        if self._stop.is_set():
            return Answer(503, "shutting down")
        if self._upstream.mux is None:
            return Answer(503, f"no coordinator that leads is reached at {', '.join(self._settings.coordinator)}")
        return Answer(200, f"ok; the leader is {self._upstream.leader}")

    def _upstream_changed(self) -> None:
        self._spawn(self._server.set_leading(leading=self._upstream.mux is not None))
        if self._upstream.mux is not None and self._number == 0:
            self._spawn(take_up(self._settings, self._upstream.leader))

    async def _follow_authority(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            if self._upstream.mux is not None:
                await take_up(self._settings, self._upstream.leader)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _beat(self) -> None:
        while True:
            due_ms = self._clock.monotonic_ms() + _BEAT_MS
            await asyncio.sleep(_BEAT_MS / 1000)
            self._beaten_ms = self._clock.monotonic_ms()
            self._lag_ms = max(0, self._beaten_ms - due_ms)
