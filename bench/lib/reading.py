"""Reads at a fixed rate, in a process of their own: who reads waits for no work of the benchmark's.

`python reading.py ADDRESS BARE RATE SECONDS` is told the ids of leases on stdin, a line each, and reads so many of them
a second at the address: over REST where it begins with `http://`, else over gRPC. In between it asks a server that does
nothing (`bare.py`) as often. That is what the machine and gRPC cost at the time: a machine that is busy makes both
wait. The last line is JSON: `took_ms` and `bare_ms`, each from when a read was due to its answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
from aliquot.client import AsyncPool
from tests.identity import ADMIN_TOKEN

CONNECTIONS = 8
Ask = Callable[[str], Awaitable[object]]


class Http:
    """One connection that is kept: as little work as a client can do."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, console: str) -> Http:
        """Connect."""
        host, _, port = console.removeprefix("http://").partition(":")
        return cls(*await asyncio.open_connection(host, int(port), limit=1 << 24))

    async def ask(self, path: str) -> bytes:
        """Send a request, and read the head of its answer."""
        head = f"GET /api/v1{path} HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\n"
        self._writer.write(f"{head}Authorization: Bearer {ADMIN_TOKEN}\r\n\r\n".encode())
        answer = await self.reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(answer.decode())
        return answer

    async def get(self, path: str) -> bytes:
        """The body of an answer that says its length."""
        head = (await self.ask(path)).lower()
        return await self.reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


async def at_a_rate(ask: Ask, ids: Sequence[str], rate: float, seconds: float, first_s: float = 0.0) -> list[float]:
    """Ask as each is due, whether the one before has been answered or not; how long each took, in milliseconds."""
    began, took_ms = time.perf_counter() + first_s, []

    async def one(number: int) -> None:
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await ask(ids[number % len(ids)])
        took_ms.append(1000 * (time.perf_counter() - due))

    await asyncio.gather(*(one(number) for number in range(round(rate * seconds))))
    return took_ms


@contextlib.asynccontextmanager
async def over_rest(console: str) -> AsyncIterator[Ask]:
    """Over connections that are kept."""
    free: asyncio.Queue[Http] = asyncio.Queue()
    for _ in range(CONNECTIONS):
        free.put_nowait(await Http.to(console))

    async def ask(lease_id: str) -> None:
        http = await free.get()
        await http.get(f"/leases/{lease_id}")
        free.put_nowait(http)

    yield ask
    while not free.empty():
        free.get_nowait().close()


@contextlib.asynccontextmanager
async def over_grpc(address: str) -> AsyncIterator[Ask]:
    """By the SDK."""
    async with AsyncPool(address, token=ADMIN_TOKEN) as pool:
        yield pool.get


async def read(address: str, bare: str, rate: float, seconds: float, ids: Sequence[str]) -> dict[str, list[float]]:
    """See the module's docstring."""
    over = over_rest if address.startswith("http://") else over_grpc
    async with over(address) as ask, over_grpc(bare) as ask_bare:
        for each in (ask, ask_bare):
            await each(ids[0])
        gc.freeze()
        took_ms, bare_ms = await asyncio.gather(
            at_a_rate(ask, ids, rate, seconds), at_a_rate(ask_bare, ids, rate, seconds, first_s=0.5 / rate)
        )
    return {"took_ms": took_ms, "bare_ms": bare_ms}


def main() -> None:
    """Run it."""
    address, bare, rate, seconds = sys.argv[1:]
    print(json.dumps(asyncio.run(read(address, bare, float(rate), float(seconds), sys.stdin.read().split()))))


if __name__ == "__main__":
    main()
