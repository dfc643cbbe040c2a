"""An application over HTTP, until this process is told to stop: one line on stdout says where."""

from __future__ import annotations

import socket
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from aliquot.common.errors import ConfigError
from aliquot.common.notify import notify
from aliquot.common.runtime import allow_many_connections, say_ready
from aliquot.console.connections import Entrance, protocol
from aliquot.console.origin import in_authority

STALLED_MS = 30_000


def serve_app(
    app: ASGIApp,
    listen: tuple[str, int],
    *,
    certificate_file: Path | None = None,
    key_file: Path | None = None,
    drain_ms: int = 5_000,
) -> None:
    """Until SIGTERM or SIGINT. `listen`: an address and a port, 0 for a free one. Raises ConfigError."""
    config = uvicorn.Config(
        app,
        ssl_certfile=certificate_file,
        ssl_keyfile=key_file,
        log_config=None,
        access_log=False,
        server_header=False,
        # With the C parser and uvloop where they are installed: half the time of a request.
        http=protocol(Entrance()),
        loop="auto",
        # A thousand callers may come at once; those that send nothing are given up.
        backlog=1024,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=max(1, drain_ms // 1000),
    )
    allow_many_connections()
    with _listen(*listen) as listener:
        host, port = listener.getsockname()[:2]
        address = f"{in_authority(host)}:{port}"
        scheme = "https" if config.is_ssl else "http"
        say_ready(address=f"{scheme}://{address}")
        notify("READY=1", f"STATUS=serving {address}")
        uvicorn.Server(config).run([listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # Connections inherit it: who takes nothing of what was sent for so long is gone, or as good as gone.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_MS)
    try:
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise ConfigError(f"can't listen on {host}:{port}: {error.strerror}", hint="give another --port") from error
    return listener
