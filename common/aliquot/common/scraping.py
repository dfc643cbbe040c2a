"""The HTTP side of every program: `/metrics` and probes, on a thread and a port of their own.

Metrics name tenants, nodes and leases. So where other machines can connect they are for who shows a token: one that
`metrics_token_file` names, as text or as `sha256:` and its hash in hexadecimal, or (at a coordinator that leads) one of
a role that may read them. Probes are for everybody. There is TLS where the program has a certificate.
"""

from __future__ import annotations

import hmac
import logging
import select
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from aliquot.common import tokens
from aliquot.common.errors import ConfigError
from aliquot.common.runtime import listening
from aliquot.common.tls import OwnTls, ServerContext, ServerTls, in_authority, is_local_address, stamp

log = logging.getLogger(__name__)

Allowed = Callable[[str], bool]
"""Whether whoever shows this token may read metrics. Called on any thread."""
_HASHED: Final = "sha256:"
_FILE_BYTES_MAX: Final = 4_096
_LOOK_S: Final = 0.5
"""How often the server's thread looks whether it is to end."""


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
    if of_file is None and only_here(host):
        return None
    if of_file is None and others is None:
        raise ConfigError(
            f"refusing to serve metrics on {host} to everybody: they name tenants, nodes and leases",
            hint="name a file that holds the scraper's token: metrics_token_file; or serve them on 127.0.0.1",
        )
    several = [each for each in (of_file, others) if each is not None]
    return lambda token: any(each(token) for each in several)


def only_here(host: str) -> bool:
    """Whether only this machine can reach it."""
    return is_local_address(in_authority(host))


class ScrapeServer:
    """Serves until `close`. Port 0 takes a free one; see `port`. What speaks HTTP takes 2 MB more: the first to ask has
    it loaded, on the server's thread.
    """

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
        self.render, self.probes, self.allowed = render, probes, allowed
        self.secured = None if tls is None or only_here(host) else ServerContext(tls).context
        self._listening = listening(host, port)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="scrape", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._listening.getsockname()[1])

    def close(self) -> None:
        """Stop serving."""
        self._closed.set()
        self._thread.join()
        self._listening.close()

    def _serve(self) -> None:
        while not select.select([self._listening], [], [], _LOOK_S)[0]:
            if self._closed.is_set():
                return
        from aliquot.common.scrape_http import HttpServer  # noqa: PLC0415 - see above

        server = HttpServer(self, self._listening)
        server.timeout = _LOOK_S
        while not self._closed.is_set():
            server.handle_request()
            server.service_actions()
