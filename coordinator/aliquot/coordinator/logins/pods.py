"""Pods' service accounts: Kubernetes says whose a projected token is (TokenReview), by our own pod's credentials.

A verdict is kept for a minute at most, so that a pod that is deleted can't open sessions for long. What is not, by its
own words, a service account's token for us is not asked about: strangers must not make us storm the API server.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import ssl
from typing import Any, Final

from joserfc import jws
from joserfc.errors import JoseError

from aliquot.common.clock import Clock
from aliquot.common.errors import AliquotError, ConfigError
from aliquot.common.https import Answer, exchange
from aliquot.common.latest import Latest
from aliquot.common.names import plain_text
from aliquot.common.urls import HttpError
from aliquot.coordinator.core.books.access import PODS
from aliquot.coordinator.errors import LoginRefused, LoginRuleMissing, Overloaded, ProviderUnavailable
from aliquot.coordinator.logins.config import PodSettings, Vouched

BY: Final = "kubernetes:serviceaccounts"
VERDICT_MS: Final = 60_000
VERDICTS_MAX: Final = 10_000
ASKING_MAX: Final = 8
WAITING_MAX: Final = 256
TOKEN_CHARS_MAX: Final = 16 * 1024
_ACCOUNT: Final = "system:serviceaccount:"
_NODE: Final = "authentication.kubernetes.io/node-name"
"""Among what Kubernetes says of a token beside the account, from 1.30 on."""
_REVIEWS: Final = "/apis/authentication.k8s.io/v1/tokenreviews"
_HINT: Final = "project one with the audience that the coordinator names: docs/access.md, Pods"


class PodLogins:
    """What one cluster says. On the event loop."""

    def __init__(self, settings: PodSettings, clock: Clock) -> None:
        self.settings = settings
        self._clock = clock
        self._url = _api(settings) + _REVIEWS
        self._verdicts: Latest[bytes, tuple[int, tuple[str, str]]] = Latest(VERDICTS_MAX)
        """SHA-256 of a token -> when Kubernetes was asked; the account (empty: it doesn't count), its pod's node."""
        self._asking = asyncio.Semaphore(ASKING_MAX)
        self._waiting = 0

    async def vouch(self, text: str) -> Vouched:
        """Whose token this is. Raises LoginRefused, LoginRuleMissing, ProviderUnavailable, Overloaded."""
        namespace, name, _, expires_ms = await self._shown(text)
        grants = self.settings.grants_of(namespace, name)
        if not grants:
            raise LoginRuleMissing(
                f"no rule of this pool lets the service account {name} of namespace {namespace} in",
                hint="an administrator adds a rule to access.pods.rules",
            )
        return Vouched(BY, f"{PODS}{namespace}/{name}", grants, expires_ms)

    async def node_of(self, text: str) -> Vouched:
        """Which node the pod of this token may bring in. Raises what `vouch` raises."""
        namespace, name, node, expires_ms = await self._shown(text)
        if f"{namespace}/{name}" not in self.settings.nodes:
            raise LoginRuleMissing(
                f"the service account {name} of namespace {namespace} may bring no node into this pool",
                hint="an administrator adds it to access.pods.nodes",
            )
        if not node:
            raise LoginRefused("Kubernetes does not say on which node this token's pod runs", hint=_HINT)
        return Vouched(BY, f"{PODS}{namespace}/{name}", (), expires_ms, node)

    async def _shown(self, text: str) -> tuple[str, str, str, int]:
        """Namespace and name of its account, its pod's node, and when it ends."""
        expires_ms = self._expiry_ms(text)
        if expires_ms <= self._clock.now_ms():
            raise LoginRefused("the service account's token has expired", hint="read its file again")
        account, node = await self._account(text)
        namespace, _, name = account.removeprefix(_ACCOUNT).partition(":")
        if not account.startswith(_ACCOUNT) or not namespace or not name:
            raise LoginRefused("Kubernetes does not take this for a service account's token", hint=_HINT)
        return namespace, name, node, expires_ms

    def _expiry_ms(self, text: str) -> int:
        """When it ends by its own words, which count once Kubernetes has said that it is genuine."""
        try:
            claims = json.loads(jws.extract_compact(text[: TOKEN_CHARS_MAX + 1].encode()).payload)
            audience, expiry = claims["aud"], claims["exp"]
            ours = self.settings.audience in (audience if isinstance(audience, list) else [audience])
            if len(text) <= TOKEN_CHARS_MAX and ours and str(claims["sub"]).startswith(_ACCOUNT):
                return int(expiry) * 1000
        except (JoseError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            pass
        raise LoginRefused(f"this is no service account's token for the audience {self.settings.audience}", hint=_HINT)

    async def _account(self, text: str) -> tuple[str, str]:
        key = hashlib.sha256(text.encode()).digest()
        known = self._verdicts.get(key)
        if known is not None and self._clock.monotonic_ms() - known[0] < VERDICT_MS:
            return known[1]
        if self._waiting >= WAITING_MAX:
            raise Overloaded("too many pods log in at once", retry_after_ms=1_000)
        self._waiting += 1
        try:
            async with self._asking:
                asked_ms = self._clock.monotonic_ms()
                account = self._read(await self._ask(text))
        finally:
            self._waiting -= 1
        self._verdicts[key] = asked_ms, account
        return account

    async def _ask(self, text: str) -> Answer:
        try:
            return await asyncio.to_thread(self._review, text)
        except (HttpError, OSError) as error:
            said = error.message if isinstance(error, AliquotError) else str(error)
            raise ProviderUnavailable(f"Kubernetes can't be asked: {said}", hint="try again in a while") from error

    def _review(self, text: str) -> Answer:
        """In a thread. Our own token is exchanged by Kubernetes, so it is read each time."""
        settings = self.settings
        context = ssl.create_default_context(cafile=settings.ca_file) if self._url.startswith("https") else None
        review = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": text, "audiences": [settings.audience]},
        }
        own = settings.token_file.read_text().strip()
        return exchange(self._url, document=review, token=own, context=context)

    def _read(self, answer: Answer) -> tuple[str, str]:
        """The account, empty where the token does not count, and the node of its pod, where Kubernetes says it."""
        status: Any = answer.document.get("status")
        if answer.status not in (200, 201) or not isinstance(status, dict):
            said = plain_text(str(answer.document.get("message", "")), 200)
            raise ProviderUnavailable(
                f"Kubernetes answers with status {answer.status}: {said}",
                hint="the coordinator's service account needs the cluster role system:auth-delegator",
            )
        audiences, user = status.get("audiences"), status.get("user")
        if status.get("authenticated") is not True or not isinstance(user, dict):
            return "", ""
        if not isinstance(audiences, list) or self.settings.audience not in audiences:
            return "", ""  # API servers that know no audiences vouch for tokens that are meant for others
        nodes = (user.get("extra") or {}).get(_NODE) or [""]
        return str(user.get("username", "")), str(nodes[0])


def _api(settings: PodSettings) -> str:
    if settings.api:
        return settings.api.rstrip("/")
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError(
            "access.pods has rules, but this is no pod of Kubernetes", hint="set access.pods.api, or take the rules out"
        )
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
