"""What the services of a coordinator that leads have in common: what they ask, and what they are counted by."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import grpc

from aliquot.common.clock import Clock
from aliquot.common.ids import IdGenerator
from aliquot.coordinator.parts import load
from aliquot.coordinator.reading.activity import Activity
from aliquot.coordinator.reading.metrics import Metrics
from aliquot.coordinator.reading.usage import ObservedUse
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.reading.waiting import Waiters
from aliquot.coordinator.rpc.gate import Services
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


def handlers_of(service: object) -> Sequence[grpc.GenericRpcHandler]:
    """Its methods, as the generated code beside its base adds them to a server."""
    base = next(each for each in type(service).__mro__ if each.__module__.endswith("_pb2_grpc"))
    services = Services()
    getattr(sys.modules[base.__module__], f"add_{base.__name__}_to_server")(service, services)
    return services.handlers


class LaterService(grpc.GenericRpcHandler):
    """A service that few ask for, in `parts` by its full name: loaded and made by its first call."""

    def __init__(self, name: str, *arguments: object) -> None:
        self._name, self._arguments = name, arguments
        self._handlers: Sequence[grpc.GenericRpcHandler] = ()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> calls.Handler | None:
        """See `grpc.GenericRpcHandler`."""
        if not handler_call_details.method.startswith(f"/{self._name}/"):  # whatever a stranger names as a method
            return None
        self._handlers = self._handlers or handlers_of(load(self._name)(*self._arguments))
        return next((found for each in self._handlers if (found := each.service(handler_call_details))), None)
