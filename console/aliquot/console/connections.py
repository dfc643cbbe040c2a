"""What a connection may cost before anybody is known by it: how many there are, and a head's time and length.

uvicorn bounds neither: a stranger who sends half a request line would keep a connection and what it buffers for ever.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from aliquot.common.tls import is_local_address
from aliquot.console.places import Places

if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as _Protocol
else:
    _Protocol = AutoHTTPProtocol

CONNECTIONS_MAX: Final = 4_096
PART: Final = 4
"""One address may have this part of all. This machine's own is a proxy's, or of somebody who is here anyway."""
HEAD_S: Final = 10.0
"""How long a request's line and headers may take, from the first byte, or from the beginning of a connection."""
HEAD_BYTES_MAX: Final = 32 * 1024
HELD_BYTES_MAX: Final = 64 * 1024
"""Of an answer, before it is sent."""


class Entrance(Places):
    """Counts the connections of one server."""

    def __init__(self, most: int = CONNECTIONS_MAX) -> None:
        super().__init__(most)

    def enter(self, address: str) -> bool:
        """One more, if there is room."""
        return self.take(address, self.most if is_local_address(address) else self.most // PART)


class _Gathering:
    """A transport that sends at the event loop's next step what is written until then. uvicorn writes an answer's head
    and its body one after the other: whoever waits would be woken by the first, for nothing.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._held: list[bytes] = []
        self._held_bytes = 0

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - the transport's own
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._held:
            asyncio.get_running_loop().call_soon(self._send)
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > HELD_BYTES_MAX:
            self._send()

    def close(self) -> None:
        self._send()
        self._transport.close()

    def _send(self) -> None:
        held, self._held, self._held_bytes = self._held, [], 0
        if held and not self._transport.is_closing():
            self._transport.writelines(held)


class Bounded(_Protocol):
    """Uvicorn's protocol, behind an entrance. Made by `protocol`."""

    entrance: Entrance
    head_s: float

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - uvicorn's own
        super().__init__(*args, **kwargs)
        self._address = ""
        self._late: asyncio.TimerHandle | None = None
        self._head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        address = str((transport.get_extra_info("peername") or ("",))[0])
        super().connection_made(cast("Any", _Gathering(transport)))
        if not self.entrance.enter(address):
            transport.abort()
            return
        self._address = address
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._end_head()
        if self._address:
            self.entrance.leave(self._address)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        before = cast("Any", self.cycle)
        if before is not None and not before.response_complete:
            super().data_received(data)  # a body, or the next request before this one is answered
            return
        self._head_bytes += len(data)
        super().data_received(data)
        if cast("Any", self.cycle) is not before:
            self._end_head()
        elif self._head_bytes > HEAD_BYTES_MAX:
            self._refuse(b"431 Request Header Fields Too Large")
        elif self._late is None:
            self._begin_head()

    def _begin_head(self) -> None:
        self._late = asyncio.get_running_loop().call_later(self.head_s, self._refuse, b"408 Request Timeout")

    def _end_head(self) -> None:
        self._head_bytes = 0
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _refuse(self, status: bytes) -> None:
        self._end_head()
        if not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 %b\r\nconnection: close\r\ncontent-length: 0\r\n\r\n" % status)
            self.transport.close()


def protocol(entrance: Entrance, head_s: float = HEAD_S) -> type[asyncio.Protocol]:
    """What uvicorn makes of each connection, which all go through this entrance."""
    return cast("type[asyncio.Protocol]", type("Protocol", (Bounded,), {"entrance": entrance, "head_s": head_s}))
