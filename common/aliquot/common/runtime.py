"""What every program of ours needs of its interpreter, and says when it works."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from typing import Any

VERSION = "0.1.0"
"""As pyproject.toml says. What is installed could be asked, but asking takes a program 2 MB."""


def listening(host: str, port: int) -> socket.socket:
    """A TCP socket that listens there; at `::` for both families, where the system can. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=family, backlog=1024, dualstack_ipv6=both)


def event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Uvloop's where it is installed: gRPC makes some twenty callbacks per call, and there they cost half as much."""
    try:
        factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        return None
    return factory


async def until_signalled(work: Coroutine[Any, Any, None]) -> None:
    """Run it until it ends, or SIGTERM or SIGINT comes: then it is cancelled, and cleans up. Raises what it raises."""
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()


def say_ready(**facts: object) -> None:
    """The line that whoever started this waits for: `ready {…}`."""
    sys.stdout.write(f"ready {json.dumps(facts)}\n")
    sys.stdout.flush()


def allow_many_connections() -> None:
    """Raise the limit of open files, usually 1,024: each agent, launcher or browser is a connection."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource  # noqa: PLC0415 - is not on every system

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
