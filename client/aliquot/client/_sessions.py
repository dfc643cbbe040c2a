"""A pod's session: opened by its service account's token, and anew before it ends, so that long jobs never break.

Kubernetes writes the projected token's file anew before that expires, so it is read at each login. New sessions are
opened on a thread, at two thirds of the old one's life; where one is refused all the same, at once.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import grpc

from aliquot.client._access import ACCESS
from aliquot.client._channels import OPTIONS
from aliquot.client._grpc_status import to_failure
from aliquot.client._messages import read
from aliquot.client._retrying import Attempts, Context, Endpoints, RetryPolicy
from aliquot.client._token import Token
from aliquot.client.access import IssuedToken
from aliquot.common.backoff import Backoff
from aliquot.common.errors import AliquotError, ConfigError, SecurityError
from aliquot.common.tls import ClientTls, channel_credentials, is_local_address

log = logging.getLogger("aliquot.client")

RENEW_AT: Final = (0.6, 0.7)
"""Parts of a session's life between which the next one is opened: not by all pods of a job in the same moment."""
REST_S: Final = 1.0
"""Between two logins at least: a pool that refuses what it has just given is not asked again and again."""
_FILE_BYTES_MAX: Final = 16 * 1024
_LOGIN_S: Final = 20.0
_random = random.SystemRandom()


class PodSession:
    """See the module's docstring. Thread-safe."""

    def __init__(self, file: Path, addresses: Sequence[str], tls: ClientTls | None) -> None:
        self._file = file
        self._addresses = tuple(addresses)
        self._tls = tls
        self._lock = threading.Lock()
        self._text = ""
        self._since_s = 0.0
        self._backoff = Backoff(base_s=1.0, most_s=60.0)
        self._timer: threading.Timer | None = None
        self._token: weakref.ref[Token] | None = None

    def token(self, origin: str) -> Token:
        """Opens the session, for as long as what this returns is used. Raises `ConfigError` and `PoolError`."""
        made = Token(self.load, origin, tls=self._tls is not None)
        self._token = weakref.ref(made)
        return made

    def load(self) -> str:
        """The session's token; a new one, unless it has just been opened. Raises `ConfigError`, `SecurityError` and
        `PoolError`.
        """
        with self._lock:
            if not self._text or time.monotonic() - self._since_s >= REST_S:
                self._open()
            return self._text

    def _open(self) -> None:
        issued = _log_in(_read(self._file), self._addresses, self._tls)
        self._text, self._since_s = issued.token, time.monotonic()
        life_s = max(0.0, (issued.issued.expires_ms - issued.issued.created_ms) / 1000)
        self._backoff.succeeded()
        self._renew_in(life_s * _random.uniform(*RENEW_AT))

    def _renew_in(self, after_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        # The timer keeps nothing alive: who drops the pool drops this.
        self._timer = threading.Timer(after_s, _renew, [weakref.ref(self)])
        self._timer.daemon = True
        self._timer.start()

    def renew(self) -> None:
        """Open the next session, and have it used. What fails is tried again: the old one still counts for a while."""
        token = self._token() if self._token is not None else None
        if token is None:
            return
        with self._lock:
            try:
                self._open()
            except AliquotError as error:
                log.warning("the session can't be renewed yet: %s", error)
                self._renew_in(self._backoff.next_s())
                return
        token.renewed(token.generation)


def _renew(session: weakref.ref[PodSession]) -> None:
    if (found := session()) is not None:
        found.renew()


def _log_in(vouched: str, addresses: Sequence[str], tls: ClientTls | None) -> IssuedToken:
    """Opens a session, on this thread: it belongs to no pool, and to neither twin. Raises `PoolError`."""
    credentials = None if tls is None else channel_credentials(tls)
    method = ACCESS["Login"]
    request = method.request(service_account_token=vouched)
    attempts = Attempts(Context(Endpoints(addresses), RetryPolicy(), time.monotonic), method, _LOGIN_S)
    while True:
        address, within_s = attempts.next()
        if credentials is None and not is_local_address(address):
            raise SecurityError(
                f"a service account's token is not sent to {address} without TLS: whoever is on the way could use it",
                hint="name the pool's authority: ALIQUOT_CLIENT_TLS_CA_FILE, or tls.ca_file in the configuration file",
            )
        with (
            grpc.insecure_channel(address, OPTIONS)
            if credentials is None
            else grpc.secure_channel(address, credentials, OPTIONS)
        ) as channel:
            call = channel.unary_unary(method.path, method.request.SerializeToString, method.answer.FromString)
            try:
                return read(call(request, timeout=within_s), IssuedToken)
            except grpc.RpcError as error:
                pause_s = attempts.failed(to_failure(error, error.trailing_metadata(), address))
        time.sleep(pause_s)


def _read(file: Path) -> str:
    try:
        text = file.read_bytes()[: _FILE_BYTES_MAX + 1].decode("ascii").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{file}: {error}", hint="name the file of the pod's projected service account token, for our audience"
        ) from error
    if not text:
        raise ConfigError(f"{file} is empty", hint="name the file of the pod's projected service account token")
    return text
