"""A real coordinator in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

from tests.identity import ADMIN_TOKEN_VARIABLE

_READY_WITHIN_S = 60
PROGRAM = ("-m", "aliquot.coordinator")
UNKNOWN_BEFORE = (ADMIN_TOKEN_VARIABLE,)
"""Settings that versions before there were identities refuse to start with."""


@dataclass
class Ended:
    """A process that did not come up, or is over."""

    code: int
    said: str


@dataclass
class Running:
    """A process that serves."""

    process: asyncio.subprocess.Process
    address: str
    metrics: str

    async def end(self) -> Ended:
        """Wait for its end."""
        _, said = await self.process.communicate()
        assert self.process.returncode is not None
        return Ended(self.process.returncode, said.decode())


def _inherited(older: bool) -> dict[str, str]:
    if not older:
        return dict(os.environ)
    return {name: value for name, value in os.environ.items() if name not in UNKNOWN_BEFORE}


async def start(
    *arguments: str, env: Mapping[str, str] | None = None, older: bool = False, program: Sequence[str] = PROGRAM
) -> Running | Ended:
    """Start one and wait until it serves, or has ended. `older`: of a version that knows no keys of agents."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *program,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**_inherited(older), **(env or {})},
    )
    assert process.stdout is not None
    async with asyncio.timeout(_READY_WITHIN_S):
        line = await process.stdout.readline()
    if line.startswith(b"ready "):
        ready = json.loads(line.removeprefix(b"ready "))
        return Running(process, ready["address"], ready["metrics"])
    _, said = await process.communicate()
    assert process.returncode is not None
    return Ended(process.returncode, said.decode())


@contextlib.asynccontextmanager
async def serving(
    *arguments: str, env: Mapping[str, str] | None = None, program: Sequence[str] = PROGRAM
) -> AsyncIterator[Running]:
    """One that must come up; ended at the end."""
    started = await start("--listen", "127.0.0.1:0", "--metrics-port", "0", *arguments, env=env, program=program)
    assert isinstance(started, Running), started
    try:
        yield started
    finally:
        if started.process.returncode is None:
            started.process.terminate()
            async with asyncio.timeout(60):
                await started.process.communicate()
