"""The part of a Kubernetes API server that Leases need, over real HTTP: get, create, and replace at the resource
version that was read. Nothing else is refused or allowed as a real one would.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_GROUP = "/apis/coordination.k8s.io/v1/namespaces/"


class LeasesApi(ThreadingHTTPServer):
    """`leases` by namespace and name. It answers nothing while `hangs`, and refuses everything with `refuses`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.leases: dict[str, dict[str, Any]] = {}
        self.lock = threading.Lock()
        self.version = 100
        self.hangs = False
        self.refuses = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def kubeconfig(self, path: Path) -> Path:
        """A file by which `kubectl`, and the official client, find this server."""
        named = {
            "clusters": [{"name": "c", "cluster": {"server": self.url}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        }
        path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "x", **named}))
        return path

    def touch(self, key: str) -> None:
        """Somebody edits a label."""
        with self.lock:
            self.store(key, {**self.leases[key]})

    def store(self, key: str, lease: dict[str, Any]) -> dict[str, Any]:
        """With a new resource version; the lock is held."""
        self.version += 1
        lease["metadata"] = {**lease["metadata"], "resourceVersion": str(self.version)}
        self.leases[key] = lease
        return lease


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LeasesApi

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has there
        pass

    def do_GET(self) -> None:
        key = self._begin()
        with self.server.lock:
            lease = self.server.leases.get(key)
        self._answer(200, lease) if lease is not None else self._fail(404, "NotFound")

    def do_POST(self) -> None:
        folder, lease = self._begin(), self._body()
        key = f"{folder}/{lease['metadata']['name']}"
        with self.server.lock:
            taken = key in self.server.leases
            stored = None if taken else self.server.store(key, lease)
        self._answer(201, stored) if stored is not None else self._fail(409, "AlreadyExists")

    def do_PUT(self) -> None:
        key, lease = self._begin(), self._body()
        with self.server.lock:
            old = self.server.leases.get(key)
            wanted = lease["metadata"].get("resourceVersion")
            fits = old is not None and wanted in {None, old["metadata"]["resourceVersion"]}
            stored = self.server.store(key, lease) if fits else None
        if stored is not None:
            self._answer(200, stored)
        else:
            self._fail(404 if old is None else 409, "Conflict")

    def _begin(self) -> str:
        while self.server.hangs:
            time.sleep(0.02)
        namespace, _, rest = self.path.partition("?")[0].removeprefix(_GROUP).partition("/leases")
        return f"{namespace}{rest}"

    def _body(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        return body

    def _fail(self, code: int, reason: str) -> None:
        self._answer(code, {"kind": "Status", "status": "Failure", "reason": reason, "code": code})

    def _answer(self, code: int, document: dict[str, Any]) -> None:
        if self.server.refuses:
            code, document = self.server.refuses, {"kind": "Status", "code": self.server.refuses}
        data = json.dumps(document).encode()
        with contextlib.suppress(OSError):  # who asked may have lost patience
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)


@contextlib.contextmanager
def leases_api() -> Iterator[LeasesApi]:
    """One that serves, for as long as the context lasts."""
    server = LeasesApi()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.hangs = False
        server.shutdown()
        server.server_close()
        thread.join()
