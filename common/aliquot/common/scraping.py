"""The HTTP side of every program: `/metrics` and probes, on a thread and a port of their own.

Metrics name tenants, nodes and leases. So where other machines can connect they are for who shows a token: one that
`metrics_token_file` names, as text or as `sha256:` and its hash in hexadecimal, or (at a coordinator that leads) one of
a role that may read them. Probes are for everybody. There is TLS where the program has a certificate.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, NamedTuple

from aliquot.common import tokens
from aliquot.common.errors import ConfigError
from aliquot.common.tls import OwnTls, ServerContext, ServerTls, is_local_address, stamp

log = logging.getLogger(__name__)

Allowed = Callable[[str], bool]
"""Whether whoever shows this token may read metrics. Called on any thread."""
_HASHED: Final = "sha256:"
_FILE_BYTES_MAX: Final = 4_096
_HEADER_CHARS_MAX: Final = tokens.CHARS_MAX + len(tokens.SCHEME)
_ACCEPT_CHARS_MAX: Final = 1_024
CONNECTIONS_MAX: Final = 64
PART: Final = 4
"""One address may have this part of all, unless it is this machine's."""
REQUEST_S: Final = 30.0
"""However slowly it is asked, or what is answered is taken: a thread each would be kept by whoever sends a byte now and
then."""
_TEXT: Final = "text/plain; charset=utf-8"


class Answer(NamedTuple):
    """One HTTP answer in plain text."""

    status: int
    text: str


class Page(NamedTuple):
    """All metrics, in a format that the scraper reads."""

    body: bytes
    content_type: str


Render = Callable[[str], Page]
"""Metrics for who accepts these types (the header `Accept`). Called on any thread."""


class TokenFile:
    """The tokens of a file, one a line; read again when it changes. One that can't be read lets nobody in."""

    def __init__(self, file: Path) -> None:
        """Raises ConfigError for one that can't be used now."""
        self._file = file
        self._seen = stamp(file)
        self._hashes = self._read()

    def __call__(self, token: str) -> bool:
        """See `Allowed`."""
        if (now := stamp(self._file)) != self._seen:
            self._seen = now
            try:
                self._hashes = self._read()
            except ConfigError as error:
                log.error("%s", error.explain())  # noqa: TRY400 - what it says is enough
                self._hashes = []
        shown = tokens.token_sha256(token)
        return any(hmac.compare_digest(shown, known) for known in self._hashes)

    def _read(self) -> list[bytes]:
        try:
            lines = self._file.read_bytes()[:_FILE_BYTES_MAX].decode("ascii", errors="replace").split()
        except OSError as error:
            raise ConfigError(
                f"{self._file}: {error.strerror}", hint="metrics_token_file names a file that holds a token"
            ) from error
        hashes = [_hash_of(line, self._file) for line in lines]
        if not hashes:
            raise ConfigError(f"{self._file} holds no token", hint="one a line, or sha256: and its hash")
        return hashes


def _hash_of(line: str, file: Path) -> bytes:
    if not line.startswith(_HASHED):
        return tokens.token_sha256(tokens.check_token(line, str(file)))
    try:
        found = bytes.fromhex(line.removeprefix(_HASHED))
    except ValueError:
        found = b""
    if len(found) != 32:
        raise ConfigError(f"{file}: what follows {_HASHED} is no SHA-256", hint="64 hexadecimal digits")
    return found


def allowed_by(host: str, token_file: Path | None, others: Allowed | None = None) -> Allowed | None:
    """Who may read metrics that are served there. None: everybody, as only this machine can ask, and no token is set.

    `others`: who may beside the holders of the file's tokens. Raises ConfigError.
    """
    of_file = None if token_file is None else TokenFile(token_file)
    if of_file is None and _only_here(host):
        return None
    if of_file is None and others is None:
        raise ConfigError(
            f"refusing to serve metrics on {host} to everybody: they name tenants, nodes and leases",
            hint="name a file that holds the scraper's token: metrics_token_file; or serve them on 127.0.0.1",
        )
    several = [each for each in (of_file, others) if each is not None]
    return lambda token: any(each(token) for each in several)


def _only_here(host: str) -> bool:
    """Whether only this machine can reach it."""
    return is_local_address(f"[{host}]" if ":" in host else host)


class ScrapeServer:
    """Serves until `close`. Port 0 takes a free one; see `port`."""

    def __init__(
        self,
        host: str,
        port: int,
        render: Render,
        *,
        probes: Mapping[str, Callable[[], Answer]],
        allowed: Allowed | None = None,
        tls: ServerTls | OwnTls | None = None,
    ) -> None:
        """`tls` is for others: on loopback all is in the clear. Raises OSError where it can't listen, and SecurityError
        for certificates that can't be used.
        """

        class Handler(BaseHTTPRequestHandler):
            timeout = 10  # seconds a scraper may take over its request, and over its handshake

            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path in probes:
                    answer = probes[path]()
                    self._send(answer.status, _TEXT, answer.text.encode() + b"\n")
                elif path != "/metrics":
                    self._send(404, _TEXT, f"try {', '.join(['/metrics', *probes])}\n".encode())
                elif allowed is None or allowed(_shown(self.headers.get("Authorization", ""))):
                    page = render(self.headers.get("Accept", "")[:_ACCEPT_CHARS_MAX])
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

        secured = None if tls is None or _only_here(host) else ServerContext(tls).context
        self._server = _Server((host, port), Handler, secured)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="scrape", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _shown(authorization: str) -> str:
    if len(authorization) > _HEADER_CHARS_MAX or not authorization.startswith(tokens.SCHEME):
        return ""
    return authorization.removeprefix(tokens.SCHEME).strip()


class _Server(ThreadingHTTPServer):
    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], tls: ssl.SSLContext | None
    ) -> None:
        self._tls = tls
        self._begun: dict[object, tuple[str, float]] = {}
        """From which address, and since when, by connection."""
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the base class's
        """See the base class. Whoever comes when there is no room is not answered."""
        host = str(client_address[0])
        theirs = sum(host == other for other, _ in list(self._begun.values()))
        most = CONNECTIONS_MAX if _only_here(host) else CONNECTIONS_MAX // PART
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
