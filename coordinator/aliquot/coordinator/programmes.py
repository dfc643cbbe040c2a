"""Work that takes longer than the event loop may wait, in a process of its own for each piece.

A programme is a module of ours that is run as `python -m`, reads its question from its standard input and writes its
answer to its standard output. Nothing of it stays in memory, it ends with its input where the coordinator is killed,
and one that fails or hangs costs its answer and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys

STORY_MAX = 2_000
"""Characters of a failed programme's last words that go to the log."""
ANSWER_MAX = 64 << 20
"""Bytes of an answer that are taken for one."""


class ProgrammeError(Exception):
    """A programme failed; its last words say why."""


async def run_programme(module: str, question: bytes, *arguments: str, within_s: float | None) -> bytes:
    """Its answer; it may take any time where `within_s` is None. Raises ProgrammeError."""
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, *arguments),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # Small matrices: more threads than one only take processors from others.
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )
    except OSError as error:
        raise ProgrammeError(str(error)) from error
    try:
        async with asyncio.timeout(within_s):
            out, story = await process.communicate(question)
    except TimeoutError as error:
        raise ProgrammeError(f"no result in {within_s:.0f} s") from error
    except (OSError, RuntimeError) as error:  # the latter is uvloop's word for a reader that has died
        raise ProgrammeError(f"it has died: {error}") from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        raise ProgrammeError(story.decode(errors="replace").strip()[-STORY_MAX:] or f"status {process.returncode}")
    if len(out) > ANSWER_MAX:
        raise ProgrammeError(f"an answer of {len(out)} bytes")
    return out
