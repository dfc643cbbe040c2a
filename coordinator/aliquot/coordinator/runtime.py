"""What a coordinator's process needs of interpreter and system: version, event loop, open files."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import resource
from collections.abc import Callable
from importlib import metadata


def version() -> str:
    """Of the installed distribution."""
    try:
        return metadata.version("aliquot")
    except metadata.PackageNotFoundError:
        return "0"


def event_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Uvloop's where it is installed: gRPC makes some twenty callbacks per call, and there they cost half as much."""
    try:
        factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    except ImportError:
        return None
    return factory


def allow_many_connections() -> None:
    """Raise the limit of open files, usually 1,024: each agent and launcher is a connection."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
