"""Looks again and again, keeps what was seen last, and tells programs of cards that are hardly used."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from aliquot.cli.notify.control import post
from aliquot.common.errors import AliquotError
from aliquot.common.utilisation import USUAL_BOUNDS, USUAL_WEIGHTS, Bounds, Weights
from aliquot.console.monitor.rating import Row, rate
from aliquot.console.monitor.readings import Ask, Window, asker, read

log = logging.getLogger(__name__)
TOLD_MAX: Final = 1_000
LOGGED_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Settings:
    """What to watch, how to judge it, and whom to tell."""

    prom_url: str = "http://prometheus:9090"
    prom_token: str = ""
    window: Window = field(default_factory=Window)
    interval_s: int = 300
    weights: Weights = USUAL_WEIGHTS
    bounds: Bounds = USUAL_BOUNDS
    tenant_label: str = ""
    """Of the series; empty: the namespace is the tenant."""
    control_api: str = ""
    """Each card below the threshold is posted there; empty: nowhere."""


@dataclass(slots=True)
class Seen:
    """What the last look brought, and what went wrong since."""

    rows: list[Row] = field(default_factory=list)
    at: dt.datetime | None = None
    """When it succeeded last; None: never."""
    error: str = ""


class Watching:
    """Looks every interval, and when it is asked to. One look at a time."""

    def __init__(self, settings: Settings, ask: Ask | None = None) -> None:
        self.settings = settings
        self.seen = Seen()
        self._ask = ask or asker(settings.prom_url, settings.prom_token)
        self._wanted = asyncio.Event()
        self._lock = threading.Lock()

    def look_soon(self) -> None:
        """Not before the look that is under way is over."""
        self._wanted.set()

    async def run(self) -> None:
        """For ever."""
        while True:
            self._wanted.clear()
            await asyncio.to_thread(self.look)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.interval_s):
                    await self._wanted.wait()

    def look(self) -> Seen:
        """Once, with what follows of it; a failure leaves what was seen before. Blocks; on any thread."""
        with self._lock:
            now = dt.datetime.now(dt.UTC)
            try:
                rows = look(self.settings, self._ask)
            except AliquotError as error:
                log.warning("%s", error.explain())
                self.seen = Seen(self.seen.rows, self.seen.at, error.message)
                return self.seen
            self.seen = Seen(rows, now)
            _log(rows)
            if self.settings.control_api:
                _tell(self.settings.control_api, [row for row in rows if row.is_low], now)
            return self.seen


def look(settings: Settings, ask: Ask | None = None) -> list[Row]:
    """What Prometheus says now. Raises HttpError."""
    ask = ask or asker(settings.prom_url, settings.prom_token)
    return rate(read(ask, settings.window, settings.tenant_label), settings.weights, settings.bounds)


def _log(rows: Sequence[Row]) -> None:
    for row in rows[:LOGGED_MAX]:
        level = logging.WARNING if row.is_low else logging.INFO
        whose = f"{row.namespace}/{row.pod}" if row.pod else "nobody"
        log.log(level, "%s on %s, %s: %s, score %s", row.gpu_id, row.hostname, whose, row.status, row.score)
    if len(rows) > LOGGED_MAX:
        log.info("and %d more", len(rows) - LOGGED_MAX)


def _tell(address: str, rows: Sequence[Row], now: dt.datetime) -> None:
    """POST each; the first that can't be delivered ends it, because the next look tells them again."""
    for row in rows[:TOLD_MAX]:
        finding: dict[str, str | float | None] = {
            "gpu_id": row.gpu_id,
            "pod": row.pod,
            "namespace": row.namespace,
            "hostname": row.hostname,
            "score": row.score,
            "status": row.status,
            "timestamp": now.isoformat(timespec="seconds"),
        }
        try:
            post(address, finding)
        except OSError as error:
            log.warning("%s was not told of %s: %s", address, row.gpu_id, error)
            return
