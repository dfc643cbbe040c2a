"""Asks an OpenID provider to vouch for the person at this terminal: in a browser, or by a code on another device.

Nothing that the provider says is judged here: its ID token goes to the coordinator, which verifies it. What is held to
is that the answer belongs to this login (state, PKCE, nonce), and that secrets go over HTTPS or stay on this machine.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import queue
import secrets
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit

from aliquot.client import NotLoggedIn
from aliquot.client.access import LoginOffer
from aliquot.common.https import HttpError, check_url, exchange
from aliquot.common.names import plain_text

PATIENCE_S: Final = 300.0
_DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_INTERVAL_S: Final = 5.0
_SLOWER_S: Final = 5.0
_PAGE: Final = b"""<!doctype html><meta charset="utf-8"><title>aliquot</title><p>%s You can close this page.</p>"""
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Vouchers:
    """What the provider gave."""

    id_token: str
    nonce: str = ""


def in_browser(offer: LoginOffer, say: Say, *, browser: bool = True) -> Vouchers:
    """By the person's browser on this machine, which brings the answer to a port of loopback. Raises NotLoggedIn."""
    found = _discover(offer.issuer)
    state, nonce, verifier = (secrets.token_urlsafe(48) for _ in range(3))
    with _listening(state, offer.issuer) as (redirect, answers):
        asked = {
            "response_type": "code",
            "client_id": offer.client_id,
            "redirect_uri": redirect,
            "scope": " ".join(offer.scopes),
            "state": state,
            "nonce": nonce,
            "code_challenge": _unpadded(hashlib.sha256(verifier.encode()).digest()),
            "code_challenge_method": "S256",
        }
        page = _endpoint(found, "authorization_endpoint")
        url = f"{page}{'&' if '?' in page else '?'}{urlencode(asked)}"
        opened = browser and _has_screen() and webbrowser.open(url)
        say(f"{'your browser shows' if opened else 'open'} {url}")
        try:
            answer = answers.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise NotLoggedIn(
                f"nobody logged in at {offer.issuer} within {PATIENCE_S:g} s",
                hint="where the browser is on another machine: aliquot login --device",
            ) from None
    if "code" not in answer:
        raise _refusal(offer, answer)
    form = {
        "grant_type": "authorization_code",
        "code": answer["code"],
        "redirect_uri": redirect,
        "client_id": offer.client_id,
        "code_verifier": verifier,
    } | _secret(offer)
    answered = exchange(_endpoint(found, "token_endpoint"), form=form, timeout_s=30)
    if answered.status != 200:
        raise _refusal(offer, answered.document)
    return Vouchers(_id_token(answered.document), nonce)


def by_device(offer: LoginOffer, say: Say) -> Vouchers:
    """By a code that the person enters in a browser anywhere (RFC 8628). Raises NotLoggedIn."""
    found = _discover(offer.issuer)
    form = {"client_id": offer.client_id, "scope": " ".join(offer.scopes)} | _secret(offer)
    begun = exchange(_endpoint(found, "device_authorization_endpoint"), form=form, timeout_s=30)
    device = begun.document
    code, place = device.get("device_code"), device.get("verification_uri")
    if begun.status != 200 or not isinstance(code, str) or not isinstance(place, str):
        raise _refusal(offer, device)
    say(f"open {_plain(check_url(place))} and enter the code {_plain(device.get('user_code'))}")
    interval_s = max(1.0, _seconds(device.get("interval"), _INTERVAL_S))
    deadline = time.monotonic() + min(1800.0, _seconds(device.get("expires_in"), PATIENCE_S))
    asked = {"grant_type": _DEVICE_GRANT, "device_code": code, "client_id": offer.client_id} | _secret(offer)
    while time.monotonic() < deadline:
        time.sleep(interval_s)
        answer = exchange(_endpoint(found, "token_endpoint"), form=asked, timeout_s=30)
        if answer.status == 200:
            return Vouchers(_id_token(answer.document))
        error = answer.document.get("error")
        if error == "slow_down":
            interval_s += _SLOWER_S
        elif error != "authorization_pending":
            raise _refusal(offer, answer.document)
    raise NotLoggedIn(f"the code was not entered at {offer.issuer} in time", hint="aliquot login --device again")


def _secret(offer: LoginOffer) -> dict[str, str]:
    return {"client_secret": offer.client_secret} if offer.client_secret else {}


def _discover(issuer: str) -> Mapping[str, Any]:
    answer = exchange(issuer.rstrip("/") + "/.well-known/openid-configuration", timeout_s=30)
    if answer.status != 200 or answer.document.get("issuer") != issuer:
        raise HttpError(
            f"{issuer} is no OpenID provider: it answers with status {answer.status}, or as another",
            hint="the coordinator names it: access.oidc.issuer",
        )
    return answer.document


def _endpoint(found: Mapping[str, Any], name: str) -> str:
    url = found.get(name)
    if not isinstance(url, str):
        raise HttpError(f"the provider has no {name}", hint="use the other way: aliquot login --oidc, or --device")
    return check_url(url)


def _id_token(document: Mapping[str, Any]) -> str:
    token = document.get("id_token")
    if not isinstance(token, str):
        raise NotLoggedIn(
            "the provider gives no ID token", hint="access.oidc.scopes of the coordinator must have openid"
        )
    return token


def _refusal(offer: LoginOffer, document: Mapping[str, Any]) -> NotLoggedIn:
    word, text = _plain(document.get("error")), _plain(document.get("error_description"))
    return NotLoggedIn(
        f"{offer.issuer} refuses: {word or 'it does not say why'}" + (f" ({text})" if text else ""),
        hint=f"the provider must know the client {offer.client_id} as a public one, with redirects to http://127.0.0.1",
    )


@contextlib.contextmanager
def _listening(state: str, issuer: str) -> Iterator[tuple[str, queue.Queue[dict[str, str]]]]:
    """A port of loopback that takes the one answer with this state; whatever else comes is sent away."""
    answers: queue.Queue[dict[str, str]] = queue.Queue(maxsize=1)

    class Handler(BaseHTTPRequestHandler):
        timeout = 30  # browsers open connections that they don't use

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            said = {name: values[0] for name, values in parse_qs(parts.query, max_num_fields=20).items()}
            mine = parts.path == "/callback" and hmac.compare_digest(said.get("state", "").encode(), state.encode())
            if mine and said.get("iss", issuer) == issuer:
                with contextlib.suppress(queue.Full):
                    answers.put_nowait(said)
                    self._say(200, b"You are logged in." if "code" in said else b"The provider refused.")
                    return
            self._say(400, b"This is not the answer to a login that is under way.")

        def _say(self, status: int, text: bytes) -> None:
            body = _PAGE % text
            self.send_response(status)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """What is asked for has the code in it."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/callback", answers
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _has_screen() -> bool:
    if os.environ.get("SSH_CONNECTION"):
        return False
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _seconds(value: object, default: float) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < 86_400 else default


def _plain(value: object) -> str:
    return plain_text(value, 200) if isinstance(value, str) else ""


def _unpadded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
