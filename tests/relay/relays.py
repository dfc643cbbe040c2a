"""A real relay in processes of its own, and what it says of itself."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass

_READY_WITHIN_S = 60


@dataclass
class Relay:
    """One that serves."""

    process: asyncio.subprocess.Process
    address: str
    metrics: list[str]
    pids: list[int]

    async def value(self, name: str) -> float:
        """A metric, summed over labels and processes that answer."""
        total = 0.0
        for address in self.metrics:
            with contextlib.suppress(OSError):
                text = await asyncio.to_thread(get, f"http://{address}/metrics")
                lines = [line for line in text.splitlines() if line.startswith(name)]
                total += sum(float(line.rpartition(" ")[2]) for line in lines)
        return total

    async def connected(self) -> bool:
        """Whether every process of it reaches a coordinator, by its own account."""
        return await self.value("aliquot_relay_upstream") == len(self.pids)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


async def start(*arguments: str) -> Relay | str:
    """Start one and wait until it listens; what it said where it does not."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "aliquot.relay",
        *("--listen", "127.0.0.1:0", "--metrics-port", "0", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(_READY_WITHIN_S):
        line = await process.stdout.readline()
    if line.startswith(b"ready "):
        ready = json.loads(line.removeprefix(b"ready "))
        return Relay(process, ready["address"], ready["metrics"], ready["processes"])
    _, said = await process.communicate()
    assert process.returncode == 1
    return said.decode()


@contextlib.asynccontextmanager
async def relaying(*arguments: str) -> AsyncIterator[Relay]:
    """One that must come up; ended at the end."""
    relay = await start("--log-level", "error", "--drain", "200ms", *arguments)
    assert isinstance(relay, Relay), relay
    try:
        yield relay
    finally:
        if relay.process.returncode is None:
            relay.process.terminate()
        async with asyncio.timeout(60):
            await relay.process.communicate()
