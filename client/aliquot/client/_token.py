"""The token that goes with every call: where it comes from, where it may go, and when it is read anew."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import lru_cache

from aliquot.client import _errors as errors
from aliquot.common import tokens
from aliquot.common.errors import AliquotError, SecurityError
from aliquot.common.tls import is_local_address

Metadata = tuple[tuple[str, str], ...]
HOW_TO_LOG_IN = (
    "log in with the string that `aliquot access token NAME` prints for an administrator: `aliquot login STRING`; "
    "on the coordinator's machine, `aliquot access bootstrap` makes you one"
)

_is_local = lru_cache(maxsize=256)(is_local_address)


class Token:
    """A token that may be exchanged while a program runs: files of tokens are written anew before they expire.

    `load` reads it (empty: there is none); `origin` says for people where that is; `tls`: whether connections are
    encrypted.
    """

    def __init__(self, load: Callable[[], str], origin: str = "", *, tls: bool = False) -> None:
        self.origin = origin
        self._load = load
        self._tls = tls
        self._lock = threading.Lock()
        self._metadata = _metadata(load())
        self.generation = 0
        """Rises with each exchange."""

    def metadata(self, address: str) -> Metadata | None:
        """What goes with a call to this address. Raises `SecurityError` where others could read it on its way."""
        self.check(address)
        return self._metadata

    @property
    def text(self) -> str:
        """Itself; empty: there is none."""
        return self._metadata[0][1].removeprefix(tokens.SCHEME) if self._metadata is not None else ""

    @property
    def key(self) -> object:
        """Tells one token from another; None: there is none."""
        return self._metadata

    def check(self, address: str) -> None:
        """Raises `SecurityError` where others could read it on its way."""
        if self._metadata is not None and not self._tls and not _is_local(address):
            raise SecurityError(
                f"a token is not sent to {address} without TLS: whoever is on the way could use it",
                hint="log in with `aliquot login STRING`, which brings the pool's authority along, or name it: "
                "ALIQUOT_CLIENT_TLS_CA_FILE, or tls.ca_file in the configuration file",
            )

    def renewed(self, since: int) -> bool:
        """Whether another one is here than that of generation `since`, which was refused. Reads it again."""
        with self._lock:
            if self.generation != since:
                return True
            try:
                found = _metadata(self._load())
            except AliquotError:
                # Just being replaced, or taken away: then what the coordinator said is the better answer.
                return False
            if found is None or found == self._metadata:
                return False
            self._metadata = found
            self.generation += 1
            return True

    def advise(self, error: errors.PoolError) -> errors.PoolError:
        """Tell whose token was refused, and what gets another one."""
        if isinstance(error, errors.NotLoggedIn) and error.stated_reason != "LOGIN_REFUSED":
            if self._metadata is None:
                error.hint = HOW_TO_LOG_IN
            else:
                error.hint = f"the token is from {self.origin}; {error.hint or HOW_TO_LOG_IN}"
        return error


def _metadata(text: str) -> Metadata | None:
    return (tokens.bearer(text),) if text else None


NO_TOKEN = Token(str)
