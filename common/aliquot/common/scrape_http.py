"""HTTP as a scraper asks by it. See `scraping`, whose thread loads this when somebody first asks."""

from __future__ import annotations

import contextlib
import logging
import socket
import ssl
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from aliquot.common import tokens
from aliquot.common.scraping import ScrapeServer, only_here

log = logging.getLogger(__name__)

_HEADER_CHARS_MAX: Final = tokens.CHARS_MAX + len(tokens.SCHEME)
_ACCEPT_CHARS_MAX: Final = 1_024
_TEXT: Final = "text/plain; charset=utf-8"
CONNECTIONS_MAX: Final = 64
PART: Final = 4
"""One address may have this part of all, unless it is this machine's."""
REQUEST_S: Final = 30.0
"""However slowly it is asked, or what is answered is taken: a thread each would be kept by whoever sends a byte now and
then."""


class HttpServer(ThreadingHTTPServer):
    """Serves what comes in at a socket that listens already."""

    daemon_threads = True

    def __init__(self, of: ScrapeServer, listening: socket.socket) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 10  # seconds a scraper may take over its request, and over its handshake

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path in of.probes:
                    answer = of.probes[path]()
                    self._send(answer.status, _TEXT, answer.text.encode() + b"\n")
                elif path != "/metrics":
                    self._send(404, _TEXT, f"try {', '.join(['/metrics', *of.probes])}\n".encode())
                elif of.allowed is None or of.allowed(_shown(self.headers.get("Authorization", ""))):
                    page = of.render(self.headers.get("Accept", "")[:_ACCEPT_CHARS_MAX])
                    self._send(200, page.content_type, page.body)
                else:
                    self._send(401, _TEXT, b"needs a token that may read metrics: Authorization: Bearer ...\n")

            def _send(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                if status == 401:
                    self.send_header("WWW-Authenticate", "Bearer")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
                """Log no scrapes."""

        self._tls = of.secured
        self._begun: dict[object, tuple[str, float]] = {}
        """From which address, and since when, by connection."""
        super().__init__(listening.getsockname(), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the base class's
        """See the base class. Whoever comes when there is no room is not answered."""
        host = str(client_address[0])
        theirs = sum(host == other for other, _ in list(self._begun.values()))
        most = CONNECTIONS_MAX if only_here(host) else CONNECTIONS_MAX // PART
        if len(self._begun) >= CONNECTIONS_MAX or theirs >= most:
            self.shutdown_request(request)
            return
        self._begun[request] = host, time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - the base class's
        """See the base class."""
        self._begun.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Twice a second: end what lasts too long. Its thread then reads the end."""
        late = time.monotonic() - REQUEST_S
        for request, (_, begun) in list(self._begun.items()):
            if begun < late:
                with contextlib.suppress(OSError):
                    # Beneath TLS, whose own state is the other thread's.
                    socket.socket.shutdown(request, socket.SHUT_RDWR)  # type: ignore[arg-type]

    def get_request(self) -> tuple[ssl.SSLSocket, object] | tuple[object, object]:  # type: ignore[override]
        """The handshake is made by the thread of the request, so that a slow one keeps nobody else waiting."""
        connection, peer = super().get_request()
        if self._tls is None:
            return connection, peer
        return self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), peer

    def handle_error(self, request: object, client_address: object) -> None:
        """A broken handshake, or a scraper that went away: of no interest to anybody else."""
        log.debug("a scrape by %s failed", client_address)


def _shown(authorization: str) -> str:
    if len(authorization) > _HEADER_CHARS_MAX or not authorization.startswith(tokens.SCHEME):
        return ""
    return authorization.removeprefix(tokens.SCHEME).strip()
