"""An HTTP server on a thread of its own, for as long as a test needs it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class QuietHandler(BaseHTTPRequestHandler):
    """Logs nothing."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Nothing."""

    def answer(self, status: int, body: bytes) -> None:
        """Send this and no more."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def serving(server: ThreadingHTTPServer, release: Callable[[], object]) -> Iterator[None]:
    """Serves meanwhile; `release` lets go of requests that are held up, at the end."""
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield
    finally:
        release()
        server.shutdown()
        server.server_close()
        thread.join()
