"""An application over HTTP, until this process is told to stop: one line on stdout says where."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from aliquot.common.errors import ConfigError
from aliquot.common.notify import notify
from aliquot.common.runtime import allow_many_connections, event_loop_factory, listening, say_ready
from aliquot.common.tls import ServerContext, ServerTls, in_authority
from aliquot.console.connections import Entrance, protocol

STALLED_MS = 30_000
HANDSHAKE_S = 10.0
"""Of TLS; as at the coordinator's port."""


def serve_app(
    app: ASGIApp,
    listen: tuple[str, int],
    *,
    tls: ServerTls | None = None,
    drain_ms: int = 5_000,
    **said: str,
) -> None:
    """Until SIGTERM or SIGINT. `listen`: an address and a port, 0 for a free one; `said`: what else the line `ready`
    says. Raises AliquotError.
    """
    secured = None if tls is None else ServerContext(tls)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        # With the C parser where it is installed, as with uvloop: half the time of a request.
        http=protocol(Entrance()),
        # A thousand callers may come at once; those that send nothing are given up.
        backlog=1024,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=max(1, drain_ms // 1000),
    )
    config.load()
    config.ssl = None if secured is None else secured.context
    # Its warnings are of what strangers send: a line each, as many as they like.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    allow_many_connections()
    with _listen(*listen) as listener:
        host, port = listener.getsockname()[:2]
        address = f"{in_authority(host)}:{port}"
        scheme = "https" if secured else "http"
        say_ready(address=f"{scheme}://{address}", **said)
        notify("READY=1", f"STATUS=serving {address}")
        gc.freeze()  # looking for garbage among all that was loaded takes 70 ms, in which nobody is answered
        with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
            if secured:
                _bound_handshakes(runner.get_loop())
            with contextlib.suppress(KeyboardInterrupt):
                runner.run(uvicorn.Server(config).serve([listener]))


def _bound_handshakes(loop: asyncio.AbstractEventLoop) -> None:
    """Uvicorn has no setting for it, and by itself a connection over which nobody says anything is kept for a minute,
    before our entrance has heard of it.
    """
    loop.create_server = partial(loop.create_server, ssl_handshake_timeout=HANDSHAKE_S)  # type: ignore[method-assign]


def _listen(host: str, port: int) -> socket.socket:
    try:
        listener = listening(host, port)
    except OSError as error:
        raise ConfigError(f"can't listen on {host}:{port}: {error.strerror}", hint="give another --port") from error
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # Connections inherit it: who takes nothing of what was sent for so long is gone, or as good as gone.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_MS)
    return listener
