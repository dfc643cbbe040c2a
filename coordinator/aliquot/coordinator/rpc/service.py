"""What the services of a coordinator that leads have in common: what they ask, and what they are counted by."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from aliquot.common.clock import Clock
from aliquot.common.ids import IdGenerator
from aliquot.coordinator.reading.activity import Activity
from aliquot.coordinator.reading.metrics import Metrics
from aliquot.coordinator.reading.usage import ObservedUse
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.reading.waiting import Waiters
from aliquot.coordinator.upkeep.keepalive import KeepAlive
from aliquot.coordinator.wire import calls
from aliquot.coordinator.writing.journal.base import Journal
from aliquot.coordinator.writing.writer import Writer
from aliquot.v1 import pool_pb2, types_pb2

if TYPE_CHECKING:
    from aliquot.coordinator.agents.authority import Generations


class Foretelling(Protocol):
    """What services ask of forecasts, which can be left out: see `aliquot.coordinator.forecasting`."""

    def answer(self, only: str | None, may: Callable[[str], bool]) -> pool_pb2.ForecastResponse:
        """Demand as it was and as it is expected to be: of one series or of all, of tenants that the caller may see."""

    def tell_start(self, lease_id: str, message: types_pb2.Explanation) -> None:
        """Add when a request that waits is expected to start, where that is known."""


@dataclass(frozen=True, slots=True)
class Led:
    """A coordinator that leads, as its services see it."""

    writer: Writer
    view: View
    clock: Clock
    metrics: Metrics
    journal: Journal
    waiters: Waiters
    keepalive: KeepAlive
    observed: ObservedUse
    activity: Activity
    forecasts: Foretelling | None
    ids: IdGenerator
    entropy: Callable[[int], bytes]
    version: str


@dataclass(frozen=True, slots=True)
class Introduction:
    """What those who join a pool, or log in, are told of it."""

    pool_id: str
    addresses: Callable[[], Awaitable[Sequence[str]]]
    """Where others reach the coordinators."""
    coordinators: Callable[[], Sequence[str]]
    """The same as of late, without waiting; nothing where there is only one."""
    authorities: Callable[[], bytes]
    """Whom they are to trust there (PEM); empty: not the pool's own authority."""
    authority: Callable[[], Generations]
    """The pool's own as it is now; asked only where keys are used."""


class Service(calls.Service):
    """Base of the services."""

    def __init__(self, led: Led) -> None:
        super().__init__(led.metrics)
        self._writer = led.writer
        self._view = led.view
        self._clock = led.clock
