"""An OpenID provider's public keys: fetched off the event loop, kept, and fetched again at a key that is new.

Logins go on from what is kept while the provider is down, for a day: a key that was withdrawn because it leaked must
not be believed for ever. Strangers can name keys that don't exist, so they can't make us ask more often than every ten
seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey

from aliquot.common.clock import Clock
from aliquot.common.errors import AliquotError
from aliquot.common.https import Answer
from aliquot.common.urls import check_url
from aliquot.coordinator.errors import ProviderUnavailable

log = logging.getLogger(__name__)

Fetch = Callable[[str], Awaitable[Answer]]
FRESH_MS: Final = 10 * 60_000
BELIEVED_MS: Final = 24 * 3_600_000
ASKED_AGAIN_MS: Final = 10_000
KEYS_MAX: Final = 100
ANSWER_S: Final = 8.0
_HINT: Final = "try again when it is back; sessions that are open go on"
_DISCOVERY: Final = "/.well-known/openid-configuration"
PublicKey = RSAKey | ECKey | OKPKey


class Provider:
    """One issuer's keys. On the event loop."""

    def __init__(self, issuer: str, fetch: Fetch, clock: Clock, tell: Callable[[str], None]) -> None:
        """`tell` is told why the keys can't be had, and with nothing that they can."""
        self.issuer = issuer
        self._tell = tell
        self._fetch = fetch
        self._clock = clock
        self._keys: tuple[PublicKey, ...] = ()
        self._fetched_ms: int | None = None
        self._asked_ms: int | None = None
        self._failure = ""
        self._asking: asyncio.Task[None] | None = None

    async def keys(self, key_id: str) -> tuple[PublicKey, ...]:
        """Those with this id, or all where a token names none; none if the issuer has no such key.

        Raises ProviderUnavailable where nothing is known of it.
        """
        found = self._found(key_id)
        if found:
            if self._age_ms(self._fetched_ms) > FRESH_MS and self._may_ask():
                self._ask()  # the login does not wait for it
            return found
        if self._asking is not None or self._may_ask():
            asking = self._ask()
            await asyncio.wait([asking])
            found = self._found(key_id)
        if not found and (self._failure or self._fetched_ms is None):
            raise ProviderUnavailable(
                f"the keys of {self.issuer} can't be had: {self._failure or 'it was asked just now'}", hint=_HINT
            )
        return found

    async def again(self) -> bool:
        """Ask for the keys once more, if that may be; whether they were."""
        if self._asking is None and not self._may_ask():
            return False
        await asyncio.wait([self._ask()])
        return not self._failure

    def _found(self, key_id: str) -> tuple[PublicKey, ...]:
        if self._age_ms(self._fetched_ms) > BELIEVED_MS:
            return ()
        return tuple(key for key in self._keys if not key_id or key.kid == key_id)

    def _age_ms(self, since_ms: int | None) -> float:
        return float("inf") if since_ms is None else self._clock.monotonic_ms() - since_ms

    def _may_ask(self) -> bool:
        return self._age_ms(self._asked_ms) >= ASKED_AGAIN_MS

    def _ask(self) -> asyncio.Task[None]:
        """The one question that is under way."""
        if self._asking is None:
            self._asked_ms = self._clock.monotonic_ms()
            self._asking = asyncio.create_task(self._refresh(), name="keys of the OpenID provider")
            self._asking.add_done_callback(self._asked)
        return self._asking

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._asking = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a defect while reading the keys of %s", self.issuer, exc_info=error)

    async def _refresh(self) -> None:
        self._failure = "it was asked just now"
        try:
            async with asyncio.timeout(ANSWER_S):
                self._keys = _read_keys((await self._get(await self._keys_url())).get("keys"))
        except TimeoutError:
            self._failure = f"no answer within {ANSWER_S:g} s"
        except AliquotError as error:
            self._failure = error.message
        else:
            self._failure = ""
            self._fetched_ms = self._clock.monotonic_ms()
        self._tell(self._failure and f"the keys of {self.issuer} can't be had: {self._failure}")

    async def _keys_url(self) -> str:
        found = await self._get(self.issuer.rstrip("/") + _DISCOVERY)
        if found.get("issuer") != self.issuer:
            raise ProviderUnavailable(f"it says that it is {str(found.get('issuer'))[:200]!r}, not {self.issuer}")
        return check_url(str(found.get("jwks_uri")))

    async def _get(self, url: str) -> Mapping[str, Any]:
        answer = await self._fetch(url)
        if answer.status != 200:
            raise ProviderUnavailable(f"{url} answers with status {answer.status}")
        return answer.document


def _read_keys(found: object) -> tuple[PublicKey, ...]:
    """Keys for signatures, of the kinds that we take. Others are for others."""
    if not isinstance(found, list) or len(found) > KEYS_MAX:
        raise ProviderUnavailable("its list of keys can't be read")
    keys: list[PublicKey] = []
    for entry in found:
        if not isinstance(entry, dict) or entry.get("kty") == "oct" or entry.get("use", "sig") != "sig":
            continue
        try:
            keys += (key for key in KeySet.import_key_set({"keys": [entry]}) if isinstance(key, PublicKey))
        except (JoseError, ValueError, TypeError, KeyError):
            log.info("a key that can't be read, among those of an OpenID provider")
    return tuple(keys)
