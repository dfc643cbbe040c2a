"""The process that serves a lease: loads the service that it is told, and answers the agent's questions.

    python -m aliquot.agent.hosting.program [--ahead] NAME

It runs in the folder of the lease's member, where its socket is, as a process of the lease like any other. It outlives
the agent, and ends by SIGTERM. With `--ahead` it first prepares what the service can prepare for any lease, and waits
to be told by its standard input which has come: as the variables that it would have been started with.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from aliquot.agent.hosting.base import MAX_PROBLEM_CHARS, SOCKET, Answer, Service, valid_endpoint
from aliquot.agent.hosting.installed import find
from aliquot.common.text import one_line

TELL_PROBLEM_S = 10.0
"""How long a service that could not start is still asked why."""
_TELL_TIMEOUT_S = 1.0


def main(arguments: list[str] | None = None) -> int:
    """0, or 1 where the service could not start."""
    *options, name = sys.argv[1:] if arguments is None else arguments
    if options and not _wait_for_lease(name):
        return 0
    Path(SOCKET).unlink(missing_ok=True)
    return asyncio.run(_serve(name, _Teller()))


def _wait_for_lease(name: str) -> bool:
    """Prepare, then become a process of the lease that comes. False: the agent has ended before one came."""
    with contextlib.suppress(Exception):  # whatever it is, it is told when the service is to start
        service = _load(name)
        if hasattr(service, "prepare"):
            service.prepare()
    told = sys.stdin.readline()
    if not told:
        return False
    os.environ.clear()
    os.environ.update(msgspec.json.decode(told, type=dict[str, str]))
    tempfile.tempdir = None
    return True


class _Teller:
    """Answers the agent from a thread of its own, so that a service that computes does not look as if it hung."""

    def __init__(self) -> None:
        self.answer = Answer()
        self.figures: Callable[[], Mapping[str, int]] | None = None
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(SOCKET)
        self._listening.listen()
        threading.Thread(target=self._tell, name="teller", daemon=True).start()

    def _tell(self) -> None:
        while True:
            asking, _ = self._listening.accept()
            with asking, contextlib.suppress(OSError):
                asking.settimeout(_TELL_TIMEOUT_S)
                asking.sendall(msgspec.json.encode(self._now()) + b"\n")

    def _now(self) -> Answer:
        if self.figures is None or not self.answer.endpoint:
            return self.answer
        try:
            return replace(self.answer, figures=dict(self.figures()))
        except Exception:  # noqa: BLE001 - a service that can't count can serve all the same
            return self.answer


async def _serve(name: str, teller: _Teller) -> int:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    service: Service | None = None
    try:
        service = _load(name)()
        endpoint = await _until(ended, service.start())
        if endpoint is None:
            return 0
        if not valid_endpoint(endpoint):
            raise ValueError(f"the service {name} gave no endpoint that can be told: {endpoint!r}")
        teller.figures = getattr(service, "figures", None)
        teller.answer = Answer(endpoint=endpoint)
    except Exception as error:  # noqa: BLE001 - whatever it is, the agent is told
        teller.answer = Answer(problem=one_line(f"{type(error).__name__}: {error}", MAX_PROBLEM_CHARS))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TELL_PROBLEM_S):
                await ended.wait()
        return 1
    else:
        await ended.wait()
    finally:
        if service is not None:
            await service.stop()
    return 0


async def _until(ended: asyncio.Event, start: Coroutine[Any, Any, str]) -> str | None:
    """What a service answers that starts; None where it was told to end before it did."""
    starting, ending = asyncio.ensure_future(start), asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait({starting, ending}, return_when=asyncio.FIRST_COMPLETED)
        return await starting if starting.done() else None
    finally:
        starting.cancel()
        ending.cancel()


def _load(name: str) -> Callable[[], Service]:
    loaded: Callable[[], Service] = find(name).load()
    return loaded


if __name__ == "__main__":
    sys.exit(main())
