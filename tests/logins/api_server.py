"""A Kubernetes API server that knows one thing: TokenReview of service accounts' tokens."""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from typing import Any

from tests.logins.serving import QuietHandler, serving


class ApiServer:
    """What it knows may be changed at any time."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.url = f"http://127.0.0.1:{server.server_port}"
        self.own_token = secrets.token_urlsafe()
        """Of who may ask for reviews."""
        self.known: dict[str, tuple[str, list[str]]] = {}
        self.nodes: dict[str, str] = {}
        """By token: on which node its pod runs."""
        self.knows_audiences = True
        self.asked = 0
        self.gate = threading.Event()
        self.gate.set()

    def token(self, namespace: str, account: str, *, known: bool = True, node: str = "", **claims: Any) -> str:
        """A projected token of a pod."""
        user = f"system:serviceaccount:{namespace}:{account}"
        whole: dict[str, Any] = {"sub": user, "aud": ["aliquot"], "exp": int(time.time()) + 3600} | claims
        found = {name: value for name, value in whole.items() if value is not None}
        parts = ({"alg": "RS256"}, found, secrets.token_hex())
        text = ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts)
        if known:
            self.known[text] = user, found["aud"]
            self.nodes[text] = node
        return text

    def review(self, authorization: str, path: str, document: Any) -> tuple[int, Any]:
        """The answer to a TokenReview."""
        if authorization != f"Bearer {self.own_token}":
            return 401, {"kind": "Status", "message": "Unauthorized"}
        if path != "/apis/authentication.k8s.io/v1/tokenreviews" or document["kind"] != "TokenReview":
            return 404, {"kind": "Status"}
        self.asked += 1
        user, audiences = self.known.get(document["spec"]["token"], ("", []))
        common = [audience for audience in audiences if audience in document["spec"]["audiences"]]
        if not user or not common:
            return 201, {"status": {"authenticated": False, "error": "not known"}}
        known: dict[str, Any] = {"username": user, "uid": "1", "groups": []}
        if self.nodes.get(document["spec"]["token"]):
            known["extra"] = {"authentication.kubernetes.io/node-name": [self.nodes[document["spec"]["token"]]]}
        status: dict[str, Any] = {"authenticated": True, "user": known}
        if self.knows_audiences:
            status["audiences"] = common
        return 201, {"status": status}


@contextlib.contextmanager
def api_server() -> Iterator[ApiServer]:
    """One that serves until the end."""
    found: list[ApiServer] = []

    class Handler(QuietHandler):
        def do_POST(self) -> None:  # noqa: N802 - the name that the library calls
            found[0].gate.wait(60)
            document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, answer = found[0].review(self.headers.get("Authorization", ""), self.path, document)
            body = json.dumps(answer).encode()
            self.answer(status, body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.append(ApiServer(server))
    with serving(server, found[0].gate.set):
        yield found[0]
