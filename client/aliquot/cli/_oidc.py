"""Asks an OpenID provider to vouch for the person at this terminal: in a browser, or by a code on another device.

What both ways share with the console stands in `aliquot.client.oidc`.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import parse_qs, urlsplit

from aliquot.client import NotLoggedIn
from aliquot.client.access import LoginOffer
from aliquot.client.oidc import Attempt, Provider, Vouchers, id_token_in, plain, secret_of
from aliquot.common.https import exchange
from aliquot.common.urls import check_url

PATIENCE_S: Final = 300.0
_DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
_INTERVAL_S: Final = 5.0
_SLOWER_S: Final = 5.0
_PAGE: Final = b"""<!doctype html><meta charset="utf-8"><title>aliquot</title><p>%s You can close this page.</p>"""
Say = Callable[[str], None]


def in_browser(offer: LoginOffer, say: Say, *, browser: bool = True) -> Vouchers:
    """By the person's browser on this machine, which brings the answer to a port of loopback. Raises NotLoggedIn."""
    provider, attempt = Provider.discover(offer), Attempt.new()
    with _listening(attempt, offer.issuer) as (redirect, answers):
        url = provider.page(attempt, redirect)
        opened = browser and has_screen() and webbrowser.open(url)
        say(f"{'your browser shows' if opened else 'open'} {url}")
        try:
            answer = answers.get(timeout=PATIENCE_S)
        except queue.Empty:
            raise NotLoggedIn(
                f"nobody logged in at {offer.issuer} within {PATIENCE_S:g} s",
                hint="where the browser is on another machine: aliquot login --device",
            ) from None
    return provider.redeem(answer, attempt, redirect)


def by_device(offer: LoginOffer, say: Say) -> Vouchers:
    """By a code that the person enters in a browser anywhere (RFC 8628). Raises NotLoggedIn."""
    provider = Provider.discover(offer)
    form = {"client_id": offer.client_id, "scope": " ".join(offer.scopes)} | secret_of(offer)
    begun = exchange(provider.endpoint("device_authorization_endpoint"), form=form, timeout_s=30)
    device = begun.document
    code, place = device.get("device_code"), device.get("verification_uri")
    if begun.status != 200 or not isinstance(code, str) or not isinstance(place, str):
        raise provider.refusal(device)
    say(f"open {plain(check_url(place))} and enter the code {plain(device.get('user_code'))}")
    interval_s = max(1.0, _seconds(device.get("interval"), _INTERVAL_S))
    deadline = time.monotonic() + min(1800.0, _seconds(device.get("expires_in"), PATIENCE_S))
    asked = {"grant_type": _DEVICE_GRANT, "device_code": code, "client_id": offer.client_id} | secret_of(offer)
    while time.monotonic() < deadline:
        time.sleep(interval_s)
        answer = exchange(provider.endpoint("token_endpoint"), form=asked, timeout_s=30)
        if answer.status == 200:
            return Vouchers(id_token_in(answer.document))
        error = answer.document.get("error")
        if error == "slow_down":
            interval_s += _SLOWER_S
        elif error != "authorization_pending":
            raise provider.refusal(answer.document)
    raise NotLoggedIn(f"the code was not entered at {offer.issuer} in time", hint="aliquot login --device again")


@contextlib.contextmanager
def _listening(attempt: Attempt, issuer: str) -> Iterator[tuple[str, queue.Queue[dict[str, str]]]]:
    """A port of loopback that takes the one answer with this state; whatever else comes is sent away."""
    answers: queue.Queue[dict[str, str]] = queue.Queue(maxsize=1)

    class Handler(BaseHTTPRequestHandler):
        timeout = 30  # browsers open connections that they don't use

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            said = {name: values[0] for name, values in parse_qs(parts.query, max_num_fields=20).items()}
            if parts.path == "/callback" and attempt.is_mine(said, issuer):
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


def has_screen() -> bool:
    """Whether a browser could be shown to this person."""
    if os.environ.get("SSH_CONNECTION"):
        return False
    return sys.platform == "darwin" or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _seconds(value: object, default: float) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < 86_400 else default
