"""What frames are to mean: an engine, by the name of an entry point in the group aliquot.remote.engines.

An entry point names a function of a `Part` and of how to answer, which makes an `Engine`. It is loaded when the first
client asks for it: frameworks are big.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from aliquot.remote.core.channel import Engine
from aliquot.remote.server.doorkeeper import Part

ENTRY_POINTS = "aliquot.remote.engines"


def installed() -> list[str]:
    """Names of the engines that there are."""
    return sorted({each.name for each in entry_points(group=ENTRY_POINTS)})


def make(name: str, part: Part, answer: Callable[[bytes], None]) -> Engine:
    """An engine for a part. Raises `LookupError` with a sentence where there is none of that name."""
    found = [each for each in entry_points(group=ENTRY_POINTS) if each.name == name]
    if not found:
        raise LookupError(f"this server has no engine named {name[:100]!r}, but {', '.join(installed()) or 'none'}")
    made: Callable[[Part, Callable[[bytes], None]], Engine] = found[0].load()
    return made(part, answer)
