"""Single calls over the simulated network: what launchers and administrators make, and what becomes of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from aliquot.common.tokens import bearer
from tests.simulation.sim.loop import US_PER_MS, US_PER_S, SimLoop

if TYPE_CHECKING:
    from tests.simulation.sim.network import Network, Server


Metadata = tuple[tuple[str, str], ...]


def shown(token: str) -> Metadata:
    """The metadata of a call with this token; without any where it is empty."""
    return (bearer(token),) if token else ()


class CallFailed(Exception):
    """A call was answered with an error, or not at all."""

    def __init__(self, code: grpc.StatusCode, details: str, metadata: Any = ()) -> None:
        super().__init__(f"{code.name}: {details}")
        self.code = code
        self.details = details
        self.metadata = metadata


class Status:
    """The end of a stream or call, as the server says it."""

    __slots__ = ("code", "details", "metadata")

    def __init__(self, code: grpc.StatusCode, details: str, metadata: Any = ()) -> None:
        self.code, self.details, self.metadata = code, details, metadata


class CallContext:
    """What a servicer's method gets as its context."""

    def __init__(self, deadline_us: int, loop: SimLoop, client: str, token: str, request: bytes) -> None:
        self._deadline_us = deadline_us
        self._loop = loop
        self._client = client
        self.token = token
        self._request = request
        self.status: Status | None = None

    def peer(self) -> str:
        """Where the call comes from."""
        return self._client

    def invocation_metadata(self) -> Metadata:
        """What came with the call."""
        return shown(self.token)

    async def read(self) -> bytes:
        """The only message."""
        return self._request

    def time_remaining(self) -> float | None:
        """Seconds until the caller gives up."""
        return (self._deadline_us - self._loop.now_us) / US_PER_S

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Any = ()) -> None:
        """End the call with an error."""
        self.status = Status(code, details, trailing_metadata)
        raise grpc.aio.AbortError


class Call:
    """One single call under way."""

    def __init__(
        self,
        network: Network,
        *,
        client: str,
        address: str,
        method: str,
        request: bytes,
        token: str,
        timeout_s: float,
        future: asyncio.Future[bytes],
    ) -> None:
        self.network = network
        self.client, self.address = client, address
        self.method, self.request, self.token = method, request, token
        self.timeout_s = timeout_s
        self.future = future
        self.tasks: list[asyncio.Task[None]] = []

    def send(self) -> None:
        """The request leaves."""
        network = self.network
        lost = network.random.randrange(1000) < network.lossy_permille
        if not lost and not network.is_cut(self.client, self.address):
            network.later(network.delay_us(self.client, self.address), self._arrive)
        if network.random.randrange(1000) < network.twice_permille:
            network.later(network.delay_us(self.client, self.address) + 20 * US_PER_MS, self._arrive)

    def _arrive(self) -> None:
        network = self.network
        network.events += 1
        server = network.servers.get(self.address)
        if server is None or not server.process.alive:
            self._answer(Status(grpc.StatusCode.UNAVAILABLE, "connection refused"))
            return
        deadline_us = network.loop.now_us + int(self.timeout_s * US_PER_S)
        context = CallContext(deadline_us, network.loop, self.client, self.token, self.request)
        task = network.loop.start(server.process, self._serve(server, context), f"{self.method} of {self.client}")
        self.tasks.append(task)
        server.process.on_exit.append(self._server_died)

    async def _serve(self, server: Server, context: CallContext) -> None:
        network = self.network
        result: bytes | Status | None = None
        network.calls += 1
        number = network.calls
        network.on_call(number, server.process, self.method, self.request, begins=True)
        network.on_enters(number, self)
        try:
            result = await server.dispatch(self.method, self.request, context)
        except grpc.aio.AbortError:
            result = context.status or Status(grpc.StatusCode.INTERNAL, "aborted without a status")
        finally:
            network.on_call(number, server.process, self.method, self.request, begins=False)
            network.on_leaves(number, self, result)
            if server.process.alive and self._server_died in server.process.on_exit:
                server.process.on_exit.remove(self._server_died)
        network.on_answer(self.address, self.method, self.request, result)
        self._answer(result)

    def _server_died(self) -> None:
        self._answer(Status(grpc.StatusCode.UNAVAILABLE, "the server died"))

    def _answer(self, result: bytes | Status) -> None:
        network = self.network
        lost = network.random.randrange(1000) < network.lossy_permille
        if not lost and not network.is_cut(self.address, self.client):
            network.later(network.delay_us(self.address, self.client), self._done, result)

    def _done(self, result: bytes | Status) -> None:
        self.network.events += 1
        if self.future.done():
            return
        if isinstance(result, Status):
            self.future.set_exception(CallFailed(result.code, result.details, result.metadata))
        else:
            self.future.set_result(result)

    def give_up(self) -> None:
        """The caller does not wait any more: gRPC cancels the handler."""
        for task in self.tasks:
            if not task.done():
                self.network.later(self.network.delay_us(self.client, self.address), task.cancel)
