"""Runs a command of the administrator's with a limit on its time; nothing of it is left when that is over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

import msgspec

OUTPUT_BYTES_MAX = 65_536
KILLED_WITHIN_S = 5.0


class Ended(msgspec.Struct, frozen=True):
    """How a command ended."""

    code: int | None
    """None: it could not be started, or took too long."""
    output: str
    """The beginning of what it wrote to either of its outputs, or why it could not be started."""

    @property
    def last_line(self) -> str:
        """Of what it said."""
        lines = self.output.strip().splitlines()
        return lines[-1].strip() if lines else ""


async def run_command(argv: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> Ended:
    """In a session of its own, which is killed as a whole when its time is over. Never raises but for cancellation."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(environment or {})},
        )
    except OSError as error:
        return Ended(None, f"{argv[0]} can't be run: {error}")
    try:
        async with asyncio.timeout(timeout_s):
            output = await _read(process)
            code = await process.wait()
        return Ended(code, output)
    except TimeoutError:
        return Ended(None, f"{argv[0]} took longer than {timeout_s:g} s")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILLED_WITHIN_S):
                await process.wait()


async def _read(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    kept = bytearray()
    while chunk := await process.stdout.read(8_192):
        kept += chunk[: OUTPUT_BYTES_MAX - len(kept)]
    return kept.decode(errors="replace")
