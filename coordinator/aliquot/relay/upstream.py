"""The stream to the leading coordinator, opened again whenever it breaks. The leader is found as agents find it.

When the stream breaks, all agents' streams that it carries end, and agents are told when to come back: by then it is up
again, with the same leader or the next. Nothing is kept over a break; agents report everything anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from aliquot.common.addresses import Addresses
from aliquot.common.backoff import Backoff
from aliquot.common.errors import AliquotError
from aliquot.common.limits import KIB, MAX_MESSAGE_BYTES
from aliquot.common.reaching import Refusal, reach, refusal_of
from aliquot.common.tls import channel_credentials
from aliquot.common.tokens import bearer
from aliquot.coordinator.agents.relayed.mux import Mux
from aliquot.relay.config import Settings
from aliquot.relay.metrics import RelayMetrics
from aliquot.relay.refusing import no_leader

log = logging.getLogger(__name__)

GREETING_TIMEOUT_S = 10.0
_CHANNEL_OPTIONS = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_receive_message_length", 4 * MAX_MESSAGE_BYTES + 64 * KIB),
    ("grpc.enable_retries", 0),
    # A channel of its own for each try: a machine that was gone a moment ago is asked again at once.
    ("grpc.use_local_subchannel_pool", 1),
)
_ADVICE = {
    "NOT_ALLOWED": "the coordinator takes no relays, or not this one: set relays.enabled and relays.names there",
    "ROLE_MISSING": "its token is not a relay's: let it join again, `aliquot relay invite` prints the command",
    "TOKEN_UNKNOWN": "let it join again: `aliquot relay invite` prints the command",
    "TOKEN_EXPIRED": "let it join again: `aliquot relay invite` prints the command",
    "UNIMPLEMENTED": "the coordinator is older than relays are",
    "PROTOCOL_VERSION": "coordinator and relay are too far apart in version: update the older one",
}
_HOPELESS_WAIT_S = 5.0


class Broken(Exception):
    """The stream is over."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


class Upstream:
    """See the module's docstring. `changed` is called whenever there is a stream, or none any more."""

    def __init__(self, settings: Settings, metrics: RelayMetrics, changed: Callable[[], None], *, version: str) -> None:
        self._settings = settings
        self._metrics = metrics
        self._changed = changed
        self._version = version
        self._addresses = Addresses(settings.coordinator)
        self._backoff = Backoff(base_s=0.5, most_s=5.0)
        self.mux: Mux | None = None
        """While there is a stream."""
        self.leader = ""

    async def run(self) -> None:
        """Connect, carry, connect again, until cancelled."""
        while True:
            address = self._addresses.take()
            wait_s = 0.0
            try:
                await self._carry(address)
            except Broken as broken:
                wait_s = self._broke(address, broken.refusal)
            except AliquotError as error:
                log.error("%s: %s", address, error.explain())  # noqa: TRY400 - what it says is enough
                wait_s = _HOPELESS_WAIT_S
            except Exception:  # a defect here must not end the relay: the next stream may do
                log.exception("the stream to %s failed", address)
            if wait_s or not self._addresses.referred:
                await asyncio.sleep(self._backoff.next_s(wait_s))
                self._addresses.waited()

    def _broke(self, address: str, refusal: Refusal) -> float:
        self._addresses.leader_is(refusal.leader)
        advice = _ADVICE.get(refusal.reason or refusal.code.name, "")
        if advice:
            log.error("coordinator %s refuses this relay: %s: %s", address, refusal, advice)
            return _HOPELESS_WAIT_S
        log.warning("no stream to coordinator %s: %s", address, refusal)
        return 0.0 if self._addresses.referred else refusal.wait_s

    async def _carry(self, address: str) -> None:
        """One stream from beginning to end; always raises."""
        async with self._channel(address) as channel:
            try:
                await reach(channel)
            except TimeoutError:
                raise Broken(Refusal(grpc.StatusCode.UNAVAILABLE, "nothing is heard")) from None
            token = self._settings.token()
            metadata = (bearer(token),) if token else None
            call: Any = channel.stream_stream("/aliquot.v1.RelayService/Carry")(metadata=metadata)
            mux = Mux(
                call.write,
                linger_ms=self._settings.linger,
                buffered_bytes_max=self._settings.limits.buffered_mib << 20,
            )
            try:
                await self._greet(call, mux)
                self._addresses.worked(address)
                self._backoff.succeeded()
                log.info("connected to coordinator %s", address)
                self.mux, self.leader = mux, address
                self._metrics.upstream_began(mux)
                self._changed()
                while isinstance(raw := await call.read(), bytes):
                    mux.receive(raw)
                raise Broken(refusal_of(await call.code(), await call.details(), await call.trailing_metadata()))
            except grpc.aio.AioRpcError as error:
                raise Broken(refusal_of(error.code(), error.details(), error.trailing_metadata())) from error
            except DecodeError as error:
                raise Broken(Refusal(grpc.StatusCode.INTERNAL, f"what it says can't be read: {error}")) from error
            finally:
                self.mux = None
                mux.close(no_leader(len(mux.streams)))
                self._metrics.upstream_ended(mux)
                self._changed()
                call.cancel()

    async def _greet(self, call: Any, mux: Mux) -> None:  # noqa: ANN401 - a call of grpc, whose stub says less
        mux.greet(self._version)
        try:
            async with asyncio.timeout(GREETING_TIMEOUT_S):
                raw = await call.read()
        except TimeoutError:
            raise Broken(Refusal(grpc.StatusCode.UNAVAILABLE, "it accepts, and says nothing")) from None
        if not isinstance(raw, bytes):
            raise Broken(refusal_of(await call.code(), await call.details(), await call.trailing_metadata()))
        mux.receive(raw)

    def _channel(self, address: str) -> grpc.aio.Channel:
        tls = self._settings.tls.client()
        if tls is None:
            return grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        return grpc.aio.secure_channel(address, channel_credentials(tls), options=_CHANNEL_OPTIONS)
