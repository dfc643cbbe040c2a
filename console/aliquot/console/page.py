"""The page's files, as `npm run build` made them and the wheel brings them: read once, and served from memory."""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

FOLDER: Final = Path(__file__).with_name("static")
INDEX: Final = "index.html"
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; "
    b"manifest-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_FOR_EVER: Final = b"public, max-age=31536000, immutable"
_ASK_AGAIN: Final = b"no-cache"
_PACKED: Final = frozenset({".woff2", ".png", ".jpg", ".webp"})
_API_PREFIXES: Final = ("/api/", "/login/oidc")
_API_PATHS: Final = frozenset({"/api", "/healthz", "/readyz"})
"""`/health` and `/ready`, too, but for browsers: probes don't ask for pages."""
_ABSENT: Final = b"""<!doctype html><html lang="en"><meta charset="utf-8"><title>aliquot</title>
<h1>This console has no page</h1>
<p>It was installed without the files that npm builds, and serves REST alone: <a href="/api/v1/openapi.json">its
document</a>. The wheels that are published have the page; in a checkout <code>make page</code> builds it.</p></html>"""


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    packed: bytes | None
    kind: bytes
    etag: bytes
    cache: bytes


class Page:
    """Answers for the page's files, and with the page itself for each address within it; passes the rest on."""

    def __init__(self, app: ASGIApp, folder: Path = FOLDER) -> None:
        self._app = app
        self._files = {name: _read(folder / name, name) for name in _names(folder)}
        self._index = self._files.get(INDEX)
        self._absent = _File(_ABSENT, None, b"text/html; charset=utf-8", b'"absent"', _ASK_AGAIN)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        found = self._find(scope) if scope["type"] == "http" else None
        if found is None:
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        told = [
            (b"content-type", found.kind),
            (b"etag", found.etag),
            (b"cache-control", found.cache),
            (b"content-security-policy", _POLICY),
            (b"cross-origin-opener-policy", b"same-origin"),
            (b"vary", b"accept-encoding"),
        ]
        if found.etag in headers.get(b"if-none-match", b""):
            await _answer(send, 304, told, b"")
            return
        body = found.body
        if found.packed is not None and b"gzip" in headers.get(b"accept-encoding", b""):
            body = found.packed
            told.append((b"content-encoding", b"gzip"))
        told.append((b"content-length", str(len(body)).encode()))
        status = 200 if self._index is not None or found is not self._absent else 404
        await _answer(send, status, told, b"" if scope["method"] == "HEAD" else body)

    def _find(self, scope: Scope) -> _File | None:
        path: str = scope["path"]
        if scope["method"] not in {"GET", "HEAD"} or path in _API_PATHS or path.startswith(_API_PREFIXES):
            return None
        name = path.lstrip("/")
        if name in self._files and name != INDEX:
            return self._files[name]
        # An address within the page, which finds its way by itself. Of a program that asks for no page it is none.
        accepted = b",".join(value for header, value in scope["headers"] if header == b"accept")
        if path == "/" or (b"text/html" in accepted and "." not in path.rpartition("/")[2]):
            return self._index or self._absent
        return None


def _names(folder: Path) -> Iterable[str]:
    if not (folder / INDEX).is_file():
        return ()
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _read(path: Path, name: str) -> _File:
    body = path.read_bytes()
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    if kind.startswith("text/") or kind in {"application/javascript", "application/json"}:
        kind += "; charset=utf-8"
    packed = None if path.suffix in _PACKED else gzip.compress(body, 9, mtime=0)
    etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'.encode()
    # What npm names by its content never changes.
    return _File(body, packed, kind.encode(), etag, _FOR_EVER if name.startswith("assets/") else _ASK_AGAIN)


async def _answer(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
