"""The extender's server: what is wrong is told, and what was asked for is carried to its end."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import AsyncIterator
from typing import Any, cast

import aiohttp
import pytest

from aliquot.kube.core.extending import BindArgs, BindResult
from aliquot.kube.extender.http import verbs
from aliquot.kube.extender.scheduling import Extender
from aliquot.kube.serving import serve

BIND = b'{"PodName": "p", "PodNamespace": "default", "PodUID": "u", "Node": "n"}'


class Slow:
    """An extender whose bind waits until it may go on."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.bound: list[BindArgs] = []

    async def bind(self, args: BindArgs) -> BindResult:
        self.begun.set()
        await self.go_on.wait()
        self.bound.append(args)
        return BindResult()

    filter = prioritize = preempt = bind


@contextlib.asynccontextmanager
async def serving(slow: Slow) -> AsyncIterator[str]:
    end, port = await serve(verbs(cast(Extender, slow)), "127.0.0.1", 0, not_ready=lambda: "not yet")
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        await end()


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("POST", "/bind", b"nonsense", 400, "no question that /bind answers"),
        ("POST", "/bind", b"x" * ((8 << 20) + 1), 413, "exceeded"),
        ("POST", "/nothing", BIND, 404, ""),
        ("GET", "/bind", b"", 405, ""),
        ("GET", "/readyz", b"", 503, "not yet"),
        ("GET", "/healthz", b"", 200, "ok"),
    ],
)
async def test_what_is_wrong_is_told(method: str, path: str, body: bytes, status: int, says: str) -> None:
    async with (
        serving(Slow()) as url,
        aiohttp.ClientSession() as session,
        session.request(method, url + path, data=io.BytesIO(body) if body else None) as answer,
    ):
        assert answer.status == status
        assert says in await answer.text()


async def test_a_bind_is_carried_to_its_end_also_when_its_caller_leaves() -> None:
    slow: Any = Slow()
    async with serving(slow) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"POST /bind HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(BIND), BIND))
        await slow.begun.wait()
        writer.close()
        await writer.wait_closed()
        del reader
        await asyncio.sleep(0)
        slow.go_on.set()
    assert [args.uid for args in slow.bound] == ["u"]
