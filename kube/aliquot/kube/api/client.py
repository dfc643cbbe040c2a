"""Calls to the API server: each has a deadline, follows Retry-After, and tells refusals from outages.

A right that our account lacks is logged once, as an error that names it; again when it was there meanwhile.

A watch is a call too: it has a read time-out, so that a connection that is half open ends (the server sends a bookmark
about once a minute, and ends the watch itself after `timeoutSeconds`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Mapping
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import aiohttp
import msgspec

from aliquot.kube.api import resources
from aliquot.kube.api.cluster import Cluster
from aliquot.kube.api.errors import KubeForbidden, KubeNotFound, KubeUnavailable, refused

log = logging.getLogger(__name__)

R = TypeVar("R")

_TIMEOUT_S: Final = 10.0
_LATER: Final = frozenset({429, 500, 502, 503, 504})
_RETRIES: Final = 4
_LINE_BYTES_MAX: Final = 8 << 20
"""The largest object that a watch may carry; etcd refuses more than 1.5 MiB."""
MERGE: Final = "application/merge-patch+json"
STRATEGIC: Final = "application/strategic-merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"
FIELD_MANAGER: Final = "aliquot"


class _Status(msgspec.Struct):
    """What an API server says beside the code."""

    reason: str = ""
    message: str = ""


class KubeClient:
    """One API server, for one event loop. Close it, or use it in an `async with` block."""

    def __init__(self, cluster: Cluster, *, timeout_s: float = _TIMEOUT_S) -> None:
        self.cluster = cluster
        self.timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None
        self._lacking: set[tuple[str, str]] = set()
        """Methods and kinds of objects that were refused for want of a right: told once, until one is allowed."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Drop the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> bytes:
        """Raises KubeError."""
        return await self.call("GET", path, params=params)

    async def find(self, path: str, shape: type[R], params: Mapping[str, str] | None = None) -> R | None:
        """What is there, read as this shape; None: there is no such object, or no such kind. Raises KubeError."""
        try:
            return msgspec.json.decode(await self.get(path, params), type=shape)
        except KubeNotFound:
            return None

    async def post(self, path: str, document: object, *, dry_run: bool = False) -> bytes:
        """Create, or see whether it would be. Raises KubeError; KubeConflict where it exists."""
        return await self.call("POST", path, document=document, params={"dryRun": "All"} if dry_run else None)

    async def put(self, path: str, document: object) -> bytes:
        """Replace, at the resource version in it. Raises KubeError."""
        return await self.call("PUT", path, document=document)

    async def patch(self, path: str, document: object, kind: str = MERGE, *, force: bool = False) -> bytes:
        """Merge, or apply. Raises KubeError."""
        params = {"fieldManager": FIELD_MANAGER}
        if force:
            params["force"] = "true"
        return await self.call("PATCH", path, document=document, content=kind, params=params)

    async def delete(self, path: str, document: object = None) -> bytes:
        """Raises KubeError."""
        return await self.call("DELETE", path, document=document)

    async def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        document: object = None,
        content: str = "application/json",
        timeout_s: float | None = None,
        retry: bool | None = None,
    ) -> bytes:
        """One call, within `timeout_s` in all. What only reads is tried again after a time-out or an outage.

        A "later" (429) has changed nothing and is always tried again. Raises KubeUnavailable or KubeRefused.
        """
        retry = method == "GET" if retry is None else retry
        body = None if document is None else msgspec.json.encode(document)
        deadline = asyncio.get_running_loop().time() + (timeout_s or self.timeout_s)
        for attempt in range(_RETRIES + 1):
            try:
                async with asyncio.timeout_at(deadline):
                    return await self._once(method, path, params, body, content)
            except KubeUnavailable as error:
                pause_s = error.retry_after_s if error.retry_after_s is not None else 0.1 * 2**attempt
                again = retry or error.retry_after_s is not None
                if not again or attempt == _RETRIES or asyncio.get_running_loop().time() + pause_s >= deadline:
                    raise
                await asyncio.sleep(pause_s)
            except TimeoutError as error:
                raise KubeUnavailable(
                    f"{method} {path}: no answer within {timeout_s or self.timeout_s:g} s",
                    hint="it goes on by itself when the API answers",
                ) from error
        raise AssertionError("the last attempt returns or raises")

    async def _once(
        self, method: str, path: str, params: Mapping[str, str] | None, body: bytes | None, content: str
    ) -> bytes:
        headers = self._headers()
        if body is not None:
            headers["Content-Type"] = content
        try:
            async with self._open().request(
                method,
                self.cluster.url + path,
                params=params,
                data=body,
                headers=headers,
                ssl=self._tls(),
                allow_redirects=False,
            ) as response:
                answer = await response.read()
                self._check(response, answer, method, path)
                return answer
        except (aiohttp.ClientError, OSError) as error:
            raise KubeUnavailable(f"{method} {path}: {str(error) or type(error).__name__}") from error

    async def lines(
        self, path: str, params: Mapping[str, str], *, read_timeout_s: float
    ) -> AsyncGenerator[bytes, None]:
        """A watch's lines. Ends when the server ends it. Raises KubeError; KubeUnavailable after silence."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self.timeout_s, sock_read=read_timeout_s)
        what = f"WATCH {path}"
        try:
            async with self._open().get(
                self.cluster.url + path,
                params=params,
                headers=self._headers(),
                timeout=timeout,
                ssl=self._tls(),
                allow_redirects=False,
            ) as response:
                self._check(response, b"" if response.status == 200 else await response.read(), "WATCH", path)
                rest = b""
                async for chunk in response.content.iter_any():
                    found = (rest + chunk).split(b"\n") if rest else chunk.split(b"\n")
                    rest = found.pop()
                    if len(rest) > _LINE_BYTES_MAX:
                        raise KubeUnavailable(f"{what}: a line of more than {_LINE_BYTES_MAX} bytes")
                    for line in found:
                        if line:
                            yield line
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise KubeUnavailable(f"{what}: {str(error) or type(error).__name__}") from error

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Calls have deadlines of their own, and API servers set no cookies: neither is paid for at each pod.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=64, keepalive_timeout=75),
                timeout=aiohttp.ClientTimeout(),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/json", "User-Agent": "aliquot-kube"}
        token = self.cluster.token()
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _tls(self) -> Any:  # noqa: ANN401 - the library takes a context or a flag
        return self.cluster.tls if self.cluster.tls is not None else True

    def _check(self, response: aiohttp.ClientResponse, answer: bytes, method: str, path: str) -> None:
        if response.status < 300:
            if self._lacking:
                self._allowed(method, resources.kind_in(path))
            return
        what = f"{method} {path}"
        said = _Status()
        with contextlib.suppress(msgspec.MsgspecError):
            said = msgspec.json.decode(answer, type=_Status)
        if response.status in _LATER:
            raise KubeUnavailable(
                f"{what}: {response.status} {said.message or said.reason}", retry_after_s=_retry_after_s(response)
            )
        error = refused(response.status, said.reason, said.message, what)
        if isinstance(error, KubeForbidden) and error.lacks_right:
            self._forbidden(error, method, resources.kind_in(path))
        raise error

    def _forbidden(self, error: KubeForbidden, method: str, kind: str) -> None:
        if (method, kind) not in self._lacking:
            self._lacking.add((method, kind))
            log.error("%s", error.explain())

    def _allowed(self, method: str, kind: str) -> None:
        if (method, kind) in self._lacking:
            self._lacking.discard((method, kind))
            log.info("%s of %s is allowed now", method, kind)


def _retry_after_s(response: aiohttp.ClientResponse) -> float | None:
    text = response.headers.get("Retry-After", "")
    if text.isdecimal():
        return min(float(text), 60.0)
    return 1.0 if response.status == 429 else None
