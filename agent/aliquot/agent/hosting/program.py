"""The process that serves a lease: loads the service that it is told, and answers the agent's questions.

    python -m aliquot.agent.hosting.program NAME

It runs in the folder of the lease's member, where its socket is, as a process of the lease like any other. It outlives
the agent, and ends by SIGTERM.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import msgspec

from aliquot.agent.hosting.base import ENTRY_POINTS, MAX_PROBLEM_CHARS, SOCKET, Answer, Service, valid_endpoint

TELL_PROBLEM_S = 10.0
"""How long a service that could not start is still asked why."""


def main(arguments: list[str] | None = None) -> int:
    """0, or 1 where the service could not start."""
    (name,) = sys.argv[1:] if arguments is None else arguments
    Path(SOCKET).unlink(missing_ok=True)
    return asyncio.run(_serve(name))


async def _serve(name: str) -> int:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)
    answer = Answer()

    async def tell(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(msgspec.json.encode(answer) + b"\n")
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(tell, SOCKET)
    service: Service | None = None
    try:
        service = _load(name)()
        endpoint = await service.start()
        if not valid_endpoint(endpoint):
            raise ValueError(f"the service {name} gave no endpoint that can be told: {endpoint!r}")
        answer = Answer(endpoint=endpoint)
    except Exception as error:  # noqa: BLE001 - whatever it is, the agent is told
        answer = Answer(problem=f"{type(error).__name__}: {error}"[:MAX_PROBLEM_CHARS])
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TELL_PROBLEM_S):
                await ended.wait()
        return 1
    else:
        await ended.wait()
    finally:
        if service is not None:
            await service.stop()
        server.close()
    return 0


def _load(name: str) -> Callable[[], Service]:
    found = [each for each in entry_points(group=ENTRY_POINTS) if each.name == name]
    if len(found) != 1:
        raise LookupError(f"{len(found)} entry points in {ENTRY_POINTS} are named {name}, and one is wanted")
    loaded: Callable[[], Service] = found[0].load()
    return loaded


if __name__ == "__main__":
    sys.exit(main())
