"""An OpenID provider on loopback whose keys, answers and moods a test chooses; it signs with a real JOSE library."""

from __future__ import annotations

import contextlib
import json
import threading
import time
import warnings
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from joserfc import jwt
from joserfc.errors import SecurityWarning
from joserfc.jwk import ECKey, OKPKey, RSAKey

from tests.logins.serving import QuietHandler, serving

CLIENT = "aliquot-cli"


def new_key(kid: str, algorithm: str = "RS256") -> Any:
    """A key for signatures by that algorithm."""
    if algorithm == "RS256":
        return RSAKey.generate_key(2048, {"kid": kid})
    if algorithm == "ES256":
        return ECKey.generate_key("P-256", {"kid": kid})
    return OKPKey.generate_key("Ed25519", {"kid": kid})


class Issuer:
    """What it serves may be changed at any time."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.url = f"http://127.0.0.1:{server.server_port}"
        self.keys: list[Any] = [new_key("k1")]
        self.status = 200
        self.gate = threading.Event()
        """Answers wait for it."""
        self.gate.set()
        self.asked: list[str] = []
        self.pending = 0
        """How often a device's code is still to be unknown."""
        self.expires_in = 600
        self.named: str | None = None

    def token(self, key: Any = None, *, alg: str = "RS256", header: Any = None, **claims: Any) -> str:
        """An ID token; claims that are None are left out."""
        now = int(time.time())
        key = key or self.keys[0]
        whole = {
            "iss": self.url,
            "aud": CLIENT,
            "sub": "1",
            "email": "ann@example.com",
            "groups": ["ml"],
            "iat": now,
            "exp": now + 3600,
        } | claims
        head = {"alg": alg, "kid": key.kid} | (header or {})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SecurityWarning)
            found = {name: value for name, value in whole.items() if value is not None}
            return jwt.encode({k: v for k, v in head.items() if v is not None}, found, key, algorithms=[alg])

    def answer(self, path: str, form: dict[str, str]) -> tuple[int, Any]:
        """What is said to a request."""
        if path == "/.well-known/openid-configuration":
            return 200, {
                "issuer": self.named or self.url,
                "jwks_uri": f"{self.url}/jwks",
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "device_authorization_endpoint": f"{self.url}/device",
            }
        if path == "/jwks":
            return 200, {"keys": [key.as_dict(private=False) for key in self.keys]}
        if path == "/device":
            return 200, {
                "device_code": "dc",
                "user_code": "ABCD-EFGH",
                "verification_uri": f"{self.url}/enter",
                "expires_in": self.expires_in,
                "interval": 0,
            }
        if path == "/token" and form.get("grant_type", "").endswith("device_code"):
            if self.pending:
                self.pending -= 1
                return 400, {"error": "authorization_pending"}
            return 200, {"id_token": self.token()}
        return 404, {}


@contextlib.contextmanager
def issuer() -> Iterator[Issuer]:
    """One that serves until the end."""
    found: list[Issuer] = []

    class Handler(QuietHandler):
        def do_GET(self) -> None:  # noqa: N802 - the name that the library calls
            self.do_POST()

        def do_POST(self) -> None:  # noqa: N802 - the name that the library calls
            me = found[0]
            me.asked.append(urlsplit(self.path).path)
            me.gate.wait(60)
            length = int(self.headers.get("Content-Length") or 0)
            form = {name: values[0] for name, values in parse_qs(self.rfile.read(length).decode()).items()}
            status, document = me.answer(urlsplit(self.path).path, form)
            body = json.dumps(document).encode()
            with contextlib.suppress(OSError):
                self.answer(status if me.status == 200 else me.status, body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.append(Issuer(server))
    with serving(server, found[0].gate.set):
        yield found[0]
