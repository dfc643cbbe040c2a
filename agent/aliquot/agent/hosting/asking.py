"""Asks the process of a member how it is, by the socket in the member's folder."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from aliquot.agent.core.figures import FIGURES
from aliquot.agent.hosting.base import MAX_PROBLEM_CHARS, SOCKET, Answer, valid_endpoint
from aliquot.common.text import one_line

ASK_TIMEOUT_S = 5.0
_MAX_ANSWER_BYTES = 8 << 10
_FIGURE_END = 1 << 63
_CREDENTIALS = struct.Struct("3i")
_ANSWER = msgspec.json.Decoder(Answer)


async def ask(folder: Path, belongs: Callable[[int], bool]) -> Answer | None:
    """What it says of itself, fit to be passed on; None: it says nothing, or who answers is somebody else, as
    `belongs` says of the pid.
    """
    try:
        # A path of a socket has little more than a hundred characters; one below an open folder is short.
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{descriptor}/{SOCKET}")
            try:
                if not belongs(_pid_of(writer.get_extra_info("socket"))):
                    return None
                answer = _ANSWER.decode(await reader.read(_MAX_ANSWER_BYTES))
            finally:
                writer.close()
    except (OSError, TimeoutError, msgspec.DecodeError):
        return None
    finally:
        os.close(descriptor)
    if answer.endpoint and not valid_endpoint(answer.endpoint):
        return None
    figures = {key: value for key, value in answer.figures.items() if key in FIGURES and 0 <= value < _FIGURE_END}
    return replace(answer, problem=one_line(answer.problem, MAX_PROBLEM_CHARS), figures=figures)


def _pid_of(connection: socket.socket) -> int:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(raw)[0]
    return pid
