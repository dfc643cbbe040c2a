"""ID tokens: whether an OpenID provider has said this, to us, lately; and which roles follow.

Signatures are joserfc's work. Only public-key algorithms are taken, whatever the token's header asks for.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
import warnings
from typing import Any, Final
from urllib.parse import urlsplit

from joserfc import jws, jwt
from joserfc.errors import BadSignatureError, ClaimError, ExpiredTokenError, JoseError, SecurityWarning

from aliquot.common.clock import Clock
from aliquot.common.duties import Tell
from aliquot.common.errors import ConfigError
from aliquot.common.https import Answer, exchange
from aliquot.common.names import plain_text
from aliquot.coordinator.errors import LoginRefused, LoginRuleMissing
from aliquot.coordinator.logins.config import OidcSettings, Vouched
from aliquot.coordinator.logins.provider import Provider, PublicKey

ALGORITHMS: Final = ("RS256", "ES256", "EdDSA", "Ed25519")
LEEWAY_S: Final = 60
"""Between the provider's clock and ours."""
TOKEN_CHARS_MAX: Final = 16 * 1024
GROUPS_MAX: Final = 1_000
_AGAIN: Final = "`aliquot login --oidc` gets another"
_EXPIRY_S_MAX: Final = 1 << 40


class OidcLogins:
    """What one provider says. On the event loop."""

    def __init__(self, settings: OidcSettings, clock: Clock, tell: Tell) -> None:
        self.settings = settings
        self._clock = clock
        context = _context(settings) if settings.issuer.startswith("https") else None
        fetch = functools.partial(_fetch, context=context)
        self._provider = Provider(settings.issuer, fetch, clock, functools.partial(tell, "openid-keys"))
        self._by = f"oidc:{urlsplit(settings.issuer).hostname}"

    async def vouch(self, text: str, nonce: str = "") -> Vouched:
        """Whom this ID token is about. Raises LoginRefused, LoginRuleMissing, ProviderUnavailable."""
        claims = await self._verified(text)
        self._check(claims, nonce)
        user, groups = self._user(claims), self._groups(claims)
        grants = self.settings.grants_of(user, groups)
        if not grants:
            seen = ", ".join(groups) or "none"
            raise LoginRuleMissing(
                f"no rule of this pool lets {plain_text(user, 128)} in; "
                f"groups seen in `{self.settings.groups_claim}`: {plain_text(seen, 512)}",
                hint="an administrator adds a rule to access.oidc.rules, or makes a token: aliquot access token NAME",
            )
        return Vouched(self._by, user, grants, int(claims["exp"] * 1000))

    async def _verified(self, text: str) -> dict[str, Any]:
        """The claims, if the provider has signed them."""
        if len(text) > TOKEN_CHARS_MAX:
            raise LoginRefused(f"an ID token has at most {TOKEN_CHARS_MAX} characters")
        try:
            header = jws.extract_compact(text.encode()).headers()
        except (JoseError, ValueError, TypeError, RecursionError):
            raise LoginRefused("this is no ID token: it can't be read") from None
        algorithm, key_id = header.get("alg"), header.get("kid", "")
        if algorithm not in ALGORITHMS:
            raise LoginRefused(
                f"the ID token is signed by {plain_text(str(algorithm), 32)!r}; {', '.join(ALGORITHMS)} count",
                hint="set the client's signature algorithm at the provider to RS256",
            )
        if not isinstance(key_id, str):
            raise LoginRefused("this is no ID token: its key's id can't be read")
        claims = _signed(text, await self._provider.keys(key_id), algorithm)
        if claims is None and not key_id and await self._provider.again():
            claims = _signed(text, await self._provider.keys(key_id), algorithm)
        if claims is None:
            named = f" {plain_text(key_id, 64)!r}" if key_id else ""
            raise LoginRefused(f"no key{named} of {self._provider.issuer} has signed this ID token", hint=_AGAIN)
        return claims

    def _check(self, claims: dict[str, Any], nonce: str) -> None:
        """Whether it is by the issuer, for us, and of now."""
        now_ms = self._clock.now_ms()
        wanted = self.settings.audience or self.settings.client_id
        expiry = claims.get("exp")
        if isinstance(expiry, bool) or not isinstance(expiry, int | float) or not 0 < expiry < _EXPIRY_S_MAX:
            raise LoginRefused("the ID token does not say when it ends", hint=_AGAIN)
        registry = jwt.JWTClaimsRegistry(
            now_ms // 1000,
            LEEWAY_S,
            iss={"essential": True, "value": self.settings.issuer},
            aud={"essential": True, "value": wanted},
            exp={"essential": True},
        )
        try:
            registry.validate(claims)
        except ExpiredTokenError:
            raise self._expired(expiry, now_ms) from None
        except ClaimError as error:
            raise LoginRefused(
                f"the ID token's claim `{error.claim}` is not what it must be here: {error.description or error.error}",
                hint=f"it must be by {self.settings.issuer} for {wanted}, and of now by the coordinator's clock "
                f"({LEEWAY_S} s are allowed)",
            ) from None
        if expiry * 1000 <= now_ms:
            raise self._expired(expiry, now_ms)
        if isinstance(claims["aud"], list) and claims.get("azp", self.settings.client_id) != self.settings.client_id:
            raise LoginRefused("the ID token was made for another client (`azp`)")
        if nonce and claims.get("nonce") != nonce:
            raise LoginRefused("the ID token belongs to another login (`nonce`)", hint=_AGAIN)

    def _expired(self, expiry: float, now_ms: int) -> LoginRefused:
        ago_s = now_ms // 1000 - int(expiry)
        return LoginRefused(f"the ID token expired {ago_s} s ago, by the coordinator's clock", hint=_AGAIN)

    def _user(self, claims: dict[str, Any]) -> str:
        claim = self.settings.username_claim
        user = claims.get(claim)
        if not isinstance(user, str) or not user:
            raise LoginRefused(
                f"the ID token has no claim `{claim}`", hint="access.oidc.scopes may miss the one that brings it"
            )
        if claim == "email" and claims.get("email_verified") is False:
            raise LoginRefused(f"{plain_text(user, 128)} is not verified at the provider")
        return user

    def _groups(self, claims: dict[str, Any]) -> list[str]:
        found = claims.get(self.settings.groups_claim, [])
        groups = [found] if isinstance(found, str) else found
        if not isinstance(groups, list) or len(groups) > GROUPS_MAX:
            raise LoginRefused(f"the ID token's claim `{self.settings.groups_claim}` is no list of groups")
        return [group for group in groups if isinstance(group, str) and group]


def _signed(text: str, keys: tuple[PublicKey, ...], algorithm: str) -> dict[str, Any] | None:
    """The claims, if one of these keys has signed them."""
    for key in keys:
        try:
            with warnings.catch_warnings():
                # The name EdDSA is deprecated; tokens have it nevertheless.
                warnings.simplefilter("ignore", SecurityWarning)
                return jwt.decode(text, key, algorithms=[algorithm]).claims
        except BadSignatureError:
            continue
        except (JoseError, ValueError, TypeError, RecursionError):
            continue  # a key of another kind, or claims that are none
    return None


def _context(settings: OidcSettings) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{settings.ca_file}: {error}", hint="access.oidc.ca_file names a PEM file") from error


async def _fetch(url: str, context: ssl.SSLContext | None) -> Answer:
    return await asyncio.to_thread(exchange, url, context=context if url.startswith("https") else None)
