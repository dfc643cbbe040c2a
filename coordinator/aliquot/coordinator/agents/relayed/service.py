"""RelayService: agents' sessions that come through a relay, handed to `sessions` like those that come by themselves.

Each stream within a carrying stream becomes a context with what `sessions` uses of gRPC's: read, write, abort, and who
the caller is. Nothing of a session is done here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from aliquot.common.errors import AliquotError, InvalidFieldError
from aliquot.coordinator.agents.identity import AuthContext, RelayRules
from aliquot.coordinator.agents.relayed.ending import Ending, Trailers
from aliquot.coordinator.agents.relayed.mux import PAYLOAD_BYTES_MAX, Mux, Stream, StreamOver
from aliquot.coordinator.agents.roster import SESSIONS_MAX
from aliquot.coordinator.agents.sessions import Sessions
from aliquot.coordinator.errors import Overloaded, ShuttingDown
from aliquot.coordinator.reading.metrics import Metrics
from aliquot.coordinator.wire import errors as rpc_errors
from aliquot.coordinator.wire.calls import Context
from aliquot.coordinator.wire.parts import AGENTS_PARTS_MAX, check_parts
from aliquot.coordinator.wire.refused_streams import read_before_refusing
from aliquot.v1 import relay_pb2

log = logging.getLogger(__name__)

RELAYS_MAX = 256
_FLUSH_S = 0.5
_ENDED_WELL = Ending()


class RelayedContext:
    """One agent's stream, as `sessions` sees it. The same as gRPC's own context, as far as it goes."""

    __slots__ = ("_auth_context", "_metadata", "_peer", "_stream")

    def __init__(self, stream: Stream, opened: relay_pb2.StreamOpened, auth_context: AuthContext) -> None:
        self._stream = stream
        self._auth_context = auth_context
        self._peer = opened.peer
        self._metadata = (("authorization", opened.authorization),) if opened.authorization else ()

    def auth_context(self) -> AuthContext:
        """Of the agent, by its certificate as we checked it."""
        return self._auth_context

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        """What of the agent's metadata travels."""
        return self._metadata

    def peer(self) -> str:
        """The agent's address as the relay says, for logs."""
        return self._peer

    async def read(self) -> Any:  # noqa: ANN401 - as gRPC has it: a message, or the mark of the end
        """The next message; EOF when the agent, or the relay, is gone."""
        payload = await self._stream.read()
        return grpc.aio.EOF if payload is None else payload

    async def write(self, message: bytes) -> None:
        """Wait for the agent's turn, and send."""
        if len(message) > PAYLOAD_BYTES_MAX:
            self._stream.end(Ending(grpc.StatusCode.RESOURCE_EXHAUSTED, f"a message of {len(message)} bytes"))
        try:
            await self._stream.send(message)
        except StreamOver:
            raise grpc.aio.UsageError("the agent's stream is over") from None

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Trailers = ()) -> NoReturn:
        """End the stream with an error."""
        self._stream.end(Ending(code, details, tuple(trailing_metadata)))
        raise grpc.aio.AbortError


class RelayService:
    """See the module's docstring."""

    def __init__(
        self, sessions: Sessions, rules: RelayRules, metrics: Metrics, version: str, known: Callable[[], bool]
    ) -> None:
        """`known`: whether whoever calls now has shown a token that lets it carry."""
        self._known = known
        self._sessions = sessions
        self._rules = rules
        self._metrics = metrics
        self._version = version
        self._carriers: set[_Carrier] = set()
        self._closing = False

    def __len__(self) -> int:
        return len(self._carriers)

    @property
    def streams(self) -> int:
        """Agents' streams, over all relays."""
        return sum(len(carrier.mux.streams) for carrier in self._carriers)

    def handler(self) -> grpc.GenericRpcHandler:
        """The service's one method."""

        async def carry(_: Any, context: Context) -> None:  # noqa: ANN401 - the iterator, which is not used
            await self._carry(context)

        service = relay_pb2.DESCRIPTOR.services_by_name["RelayService"]
        return grpc.method_handlers_generic_handler(
            service.full_name, {"Carry": grpc.stream_stream_rpc_method_handler(carry)}
        )

    async def goodbye(self) -> None:
        """The sessions have been ended: end the relays' streams when they have told their agents."""
        self._closing = True
        await asyncio.gather(*(carrier.goodbye() for carrier in list(self._carriers)))

    async def _carry(self, context: Context) -> None:
        carrier: _Carrier | None = None
        try:
            try:
                self._admit(context)
            except AliquotError:
                await read_before_refusing(context)
                raise
            carrier = _Carrier(self, context)
            self._carriers.add(carrier)
            carrier.mux.greet(self._version)
            await carrier.listen()
            if self._closing:
                raise ShuttingDown("this coordinator is shutting down", hint="connect again in a moment")
        except (AliquotError, DecodeError) as error:
            shown = error if isinstance(error, AliquotError) else InvalidFieldError("message", "can't be decoded")
            self._metrics.refused[rpc_errors.reason_of(shown)] += 1
            log.warning("relay %s refused: %s", context.peer(), shown)
            await rpc_errors.abort(context, shown)
        finally:
            if carrier is not None:
                self._carriers.discard(carrier)
                carrier.close()

    def _admit(self, context: Context) -> None:
        if self._closing:
            raise ShuttingDown("this coordinator is shutting down", hint="connect again in a moment")
        if len(self._carriers) >= RELAYS_MAX:
            raise Overloaded(f"{RELAYS_MAX} relays are connected, which is the bound", retry_after_ms=10_000)
        self._rules.admit(context, known=self._known())

    def start_session(self, stream: Stream, opened: relay_pb2.StreamOpened) -> asyncio.Task[None]:
        """Serve one agent."""
        return asyncio.get_running_loop().create_task(self._serve(stream, opened))

    async def _serve(self, stream: Stream, opened: relay_pb2.StreamOpened) -> None:
        context: Any = RelayedContext(stream, opened, {})
        try:
            if self.streams > SESSIONS_MAX:
                raise Overloaded(f"{SESSIONS_MAX} agents are connected, which is the bound", retry_after_ms=10_000)
            context = RelayedContext(stream, opened, self._rules.auth_context(opened.certificate_pem))
            await self._sessions.serve(context)
        except AliquotError as error:
            self._metrics.refused[rpc_errors.reason_of(error)] += 1
            log.warning("agent at %s refused: %s", opened.peer, error)
            with contextlib.suppress(grpc.aio.AbortError):
                await rpc_errors.abort(context, error)
        except (grpc.aio.AbortError, grpc.aio.UsageError):
            pass  # it has been told
        except Exception:
            log.exception("the session of the agent at %s failed", opened.peer)
            stream.end(Ending(grpc.StatusCode.INTERNAL, "a defect of the coordinator; please report it with its log"))
        finally:
            stream.end(_ENDED_WELL)


class _Carrier:
    """One carrying stream."""

    def __init__(self, service: RelayService, context: Context) -> None:
        self._service = service
        self._context = context
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaving = asyncio.Event()
        self.mux = Mux(context.write, opened=self._opened)

    def _opened(self, stream: Stream, opened: relay_pb2.StreamOpened) -> None:
        task = self._service.start_session(stream, opened)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def listen(self) -> None:
        """Until the relay is gone, or we are leaving. Raises DecodeError, InvalidFieldError, ProtocolVersion."""
        reading = asyncio.get_running_loop().create_task(self._read())
        leaving = asyncio.get_running_loop().create_task(self._leaving.wait())
        try:
            done, _ = await asyncio.wait([reading, leaving], return_when=asyncio.FIRST_COMPLETED)
            if reading in done:
                reading.result()
        finally:
            leaving.cancel()
            reading.cancel()
            await asyncio.gather(leaving, reading, return_exceptions=True)

    async def _read(self) -> None:
        while isinstance(raw := await self._context.read(), bytes):
            check_parts(raw, relay_pb2.RelayBatch.DESCRIPTOR, AGENTS_PARTS_MAX)
            self.mux.receive(raw)

    async def goodbye(self) -> None:
        """Write what there is to say, and leave."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_S):
                await self.mux.flush()
        self._leaving.set()

    def close(self) -> None:
        """Every session within sees its end."""
        self.mux.close(Ending(grpc.StatusCode.UNAVAILABLE, "the relay is gone"))
