"""What needs large libraries and is done seldom is done by a process of its own, with which they go: a node signs once
a session and reads a certificate once in weeks, but what does that would take each agent 12 MB for as long as it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec

from aliquot.agent.processes.apart_program import answer
from aliquot.common.errors import SecurityError

TIMEOUT_S = 5.0

Apart: TypeAlias = Callable[..., Awaitable[Any]]
"""See `apart`."""


async def apart(place: str, *arguments: object) -> Any:  # noqa: ANN401 - each function has a type of its own
    """What a function of ours returns that is at `module:function`: both ways as msgpack has it, tuples as lists.

    Raises `SecurityError` for what it refuses, and `OSError` where it can't be run or does not answer.
    """
    command = (sys.executable, "-m", answer.__module__, place)
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            said, _ = await process.communicate(msgspec.msgpack.encode(arguments))
    except TimeoutError:
        raise TimeoutError(f"{place} took longer than {TIMEOUT_S:g} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    if process.returncode:
        raise OSError(f"{place} has ended with {process.returncode}")
    return _understood(said)


async def here(place: str, *arguments: object) -> Any:  # noqa: ANN401 - as above
    """The same in this process: where it ends soon, or nothing may happen elsewhere. Raises `SecurityError`."""
    return _understood(answer(place, msgspec.msgpack.encode(arguments)))


def _understood(said: bytes) -> Any:  # noqa: ANN401 - as above
    result, problem, hint = msgspec.msgpack.decode(said)
    if problem:
        raise SecurityError(problem, hint=hint)
    return result
