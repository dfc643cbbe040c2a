"""The console's program.

    aliquot-console --coordinator coord-a:7070,coord-b:7070

When it serves it prints one line, `ready {"address": …}`. It keeps nothing: run as many as you like, kill any of them.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys

import uvicorn

from aliquot.client import AsyncPool
from aliquot.common import logging as common_logging
from aliquot.common.errors import AliquotError, ConfigError
from aliquot.common.notify import notify
from aliquot.common.services import WORD, install_service
from aliquot.common.tls import ClientTls
from aliquot.console.app import make_app, version
from aliquot.console.connections import Entrance, protocol
from aliquot.console.origin import in_authority
from aliquot.console.settings import Settings, parse_settings

STALLED_MS = 30_000
RETRIES_S = 10.0
"""How long a call to the coordinator may take, retries included: a person waits."""


def serve(settings: Settings) -> None:
    """Until SIGTERM or SIGINT. Raises ConfigError."""

    def connect(token: str) -> AsyncPool:
        ca_file = settings.tls.coordinator_ca_file
        return AsyncPool(
            settings.coordinator or None,
            token=token,
            tls=ClientTls(ca_file) if ca_file is not None else None,
            timeout_s=RETRIES_S,
            agent_sockets=(),
        )

    config = uvicorn.Config(
        make_app(settings, connect),
        ssl_certfile=settings.tls.certificate_file,
        ssl_keyfile=settings.tls.key_file,
        log_config=None,
        access_log=False,
        server_header=False,
        # With the C parser and uvloop where they are installed: half the time of a request.
        http=protocol(Entrance()),
        loop="auto",
        # A thousand callers may come at once; those that send nothing are given up.
        backlog=1024,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=max(1, settings.drain // 1000),
    )
    _allow_many_connections()
    with _listen(settings) as listener:
        host, port = listener.getsockname()[:2]
        address = f"{in_authority(host)}:{port}"
        scheme = "https" if config.is_ssl else "http"
        sys.stdout.write(f"ready {json.dumps({'address': f'{scheme}://{address}'})}\n")
        sys.stdout.flush()
        notify("READY=1", f"STATUS=serving {address}")
        uvicorn.Server(config).run([listener])


def _allow_many_connections() -> None:
    """Raise the limit of open files, usually 1,024."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # noqa: PLC0415 - is not on every system

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        # Connections inherit it: who takes nothing of what was sent for so long is gone, or as good as gone.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_MS)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"can't listen on {settings.host}:{settings.port}: {error.strerror}", hint="give another --port"
        ) from error
    return listener


def main(argv: list[str] | None = None) -> int:
    """The program."""
    words = sys.argv[1:] if argv is None else argv
    try:
        if words[:1] == [WORD]:
            return install_service("aliquot-console", words[1:])
        settings = parse_settings(argv, version())
        common_logging.configure(settings.log_level, json=settings.log_json)
        serve(settings)
    except AliquotError as error:
        sys.stderr.write(error.explain() + "\n")
        return 1
    return 0
