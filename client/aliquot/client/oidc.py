"""What everybody does who has an OpenID provider vouch for a person: the code flow with PKCE, but for the waiting.

Nothing that the provider says is judged here: its ID token goes to the coordinator, which verifies it. What is held to
is that the answer belongs to this login (state, PKCE, nonce), and that secrets go over HTTPS or stay on this machine.
Calls to the provider block; whoever has an event loop makes them in a thread.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from aliquot.client._errors import NotLoggedIn
from aliquot.client.access import LoginOffer
from aliquot.common.https import exchange
from aliquot.common.names import plain_text
from aliquot.common.urls import HttpError, check_url

__all__ = ["Attempt", "Provider", "Vouchers", "secret_of"]

_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Vouchers:
    """What the provider gave."""

    id_token: str = field(repr=False)
    nonce: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One login that is under way: what its answer must belong to. As secret as a password until it is over."""

    state: str = field(repr=False)
    nonce: str = field(repr=False)
    verifier: str = field(repr=False)

    @classmethod
    def new(cls) -> Attempt:
        """A fresh one."""
        return cls(*(secrets.token_urlsafe(48) for _ in range(3)))

    def is_mine(self, answer: Mapping[str, str], issuer: str) -> bool:
        """Whether a redirect with these parameters answers this login, and comes from this issuer."""
        same = hmac.compare_digest(answer.get("state", "").encode(), self.state.encode())
        return same and answer.get("iss", issuer) == issuer


@dataclass(frozen=True, slots=True)
class Provider:
    """An OpenID provider, as it describes itself."""

    offer: LoginOffer
    document: Mapping[str, Any]

    @classmethod
    def discover(cls, offer: LoginOffer) -> Provider:
        """Ask it. Raises HttpError."""
        issuer = offer.issuer
        answer = exchange(issuer.rstrip("/") + "/.well-known/openid-configuration", timeout_s=_TIMEOUT_S)
        if answer.status != 200 or answer.document.get("issuer") != issuer:
            raise HttpError(
                f"{issuer} is no OpenID provider: it answers with status {answer.status}, or as another",
                hint="the coordinator names it: access.oidc.issuer",
            )
        return cls(offer, answer.document)

    def endpoint(self, name: str) -> str:
        """The URL of one of its endpoints. Raises HttpError."""
        url = self.document.get(name)
        if not isinstance(url, str):
            raise HttpError(f"the provider has no {name}", hint="use the other way: aliquot login --oidc, or --device")
        return check_url(url)

    def page(self, attempt: Attempt, redirect: str) -> str:
        """Where the person's browser is sent, to come back to `redirect`."""
        asked = {
            "response_type": "code",
            "client_id": self.offer.client_id,
            "redirect_uri": redirect,
            "scope": " ".join(self.offer.scopes),
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": _unpadded(hashlib.sha256(attempt.verifier.encode()).digest()),
            "code_challenge_method": "S256",
        }
        url = self.endpoint("authorization_endpoint")
        return f"{url}{'&' if '?' in url else '?'}{urlencode(asked)}"

    def redeem(self, answer: Mapping[str, str], attempt: Attempt, redirect: str) -> Vouchers:
        """What the provider gives for the code in its redirect. Raises NotLoggedIn and HttpError."""
        if "code" not in answer:
            raise self.refusal(answer)
        form = {
            "grant_type": "authorization_code",
            "code": answer["code"],
            "redirect_uri": redirect,
            "client_id": self.offer.client_id,
            "code_verifier": attempt.verifier,
        } | secret_of(self.offer)
        answered = exchange(self.endpoint("token_endpoint"), form=form, timeout_s=_TIMEOUT_S)
        if answered.status != 200:
            raise self.refusal(answered.document)
        return Vouchers(id_token_in(answered.document), attempt.nonce)

    def refusal(self, document: Mapping[str, Any]) -> NotLoggedIn:
        """Its own words as an error."""
        word, text = plain(document.get("error")), plain(document.get("error_description"))
        return NotLoggedIn(
            f"{self.offer.issuer} refuses: {word or 'it does not say why'}" + (f" ({text})" if text else ""),
            hint=f"the provider must know the client {self.offer.client_id} as a public one, with redirects to "
            "http://127.0.0.1, and to /login/oidc/callback of a console",
        )


def secret_of(offer: LoginOffer) -> dict[str, str]:
    """What the provider wants beside the client's id."""
    return {"client_secret": offer.client_secret} if offer.client_secret else {}


def id_token_in(document: Mapping[str, Any]) -> str:
    """The ID token in an answer of the token endpoint. Raises NotLoggedIn."""
    token = document.get("id_token")
    if not isinstance(token, str):
        raise NotLoggedIn(
            "the provider gives no ID token", hint="access.oidc.scopes of the coordinator must have openid"
        )
    return token


def plain(value: object) -> str:
    """A word of the provider's, as it can be shown."""
    return plain_text(value, 200) if isinstance(value, str) else ""


def _unpadded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
