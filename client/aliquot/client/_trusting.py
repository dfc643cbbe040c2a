"""Takes up the next certificate authority of the pool, before the one that is trusted is retired.

Once an hour at most, after a call that worked, the coordinator is asked whom to trust, and told whom this program
trusts. What came with a login is kept in the credentials file; a file that the settings name is its owner's to replace.
A program that runs goes on with what it began with: coordinators show how later authorities follow from earlier ones.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from aliquot.client.credentials import CredentialsFile
from aliquot.common.errors import AliquotError
from aliquot.common.latest import Latest
from aliquot.common.tls import ClientTls, fingerprints

if TYPE_CHECKING:
    from aliquot.client.access import Authority

log = logging.getLogger("aliquot.client")

EVERY_S = 3600.0
TIMEOUT_S = 5.0
_ASKED_MAX = 1024
_asked_at: Latest[object, float] = Latest(_ASKED_MAX)
_asking = threading.Lock()


class Trusting:
    """Of one pool. Thread-safe."""

    def __init__(
        self,
        tls: ClientTls | None,
        addresses: Sequence[str],
        file: CredentialsFile | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        """`file`: whom `tls` trusts is kept there."""
        self._tls = tls
        self._addresses = tuple(addresses)
        self._file = file
        self._clock = clock
        self._wall_ms = wall_ms
        self._pem = tls.ca_pem if tls is not None else ""

    def due(self, token_key: object) -> bool:
        """Whether to ask now; if so, not again for an hour. `token_key`: what tells one caller from another."""
        tls = self._tls
        if tls is None or token_key is None or not (self._file is not None or tls.ca_file is not None):
            return False
        key, now_s = (self._addresses, token_key, self._pem, tls.ca_file), self._clock()
        with _asking:
            if now_s < _asked_at.get(key, -1.0):
                return False
            _asked_at[key] = now_s + EVERY_S
        if self._file is None:
            return True
        try:
            return self._file.asked(self._addresses, self._wall_ms(), int(EVERY_S * 1000))
        except AliquotError:
            return False  # it can't be read or written: whoever needs it will say so

    def _meet(self, coordinators: Sequence[str]) -> None:
        if self._file is not None and coordinators:
            with contextlib.suppress(AliquotError):  # who needs it will say so
                self._file.meet(self._addresses, coordinators)

    @property
    def trusts(self) -> tuple[bytes, ...]:
        """SHA-256 of each certificate that is trusted."""
        tls = self._tls
        if tls is not None and tls.ca_file is not None:
            try:
                return fingerprints(tls.ca_file.read_text(errors="replace"))
            except OSError:
                return ()
        return fingerprints(self._pem)

    def take(self, said: Authority) -> bool:
        """Keep whom to trust from now on. Says whether that is news, which the coordinator is to be told."""
        self._meet(said.coordinators)
        offered, held = fingerprints(said.authorities_pem), self.trusts
        if not said.shown or not offered or set(offered) == set(held) or not set(offered) & set(held):
            return False  # it is another authority's certificate that coordinators show here, or there is no change
        if self._file is None:
            if not set(offered) <= set(held):
                log.warning(
                    "the pool's authority is exchanged: put the next one into %s, too "
                    "(`aliquot access authority pem` prints both)",
                    self._tls.ca_file if self._tls is not None else "the file that is trusted",
                )
            return False
        try:
            kept = self._file.trust(self._addresses, self._pem, said.authorities_pem)
        except AliquotError as error:
            log.warning("whom to trust can't be kept: %s", error)
            return False
        self._pem = said.authorities_pem if kept else self._pem
        return kept
