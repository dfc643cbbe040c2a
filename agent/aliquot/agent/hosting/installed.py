"""Which services are installed. It loads what reads the metadata of distributions: an agent has it done `apart`."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, entry_points

from aliquot.agent.hosting.base import ENTRY_POINTS
from aliquot.common.programs import missing

_OWN = "aliquot"
_EXTRA = re.compile(r"[A-Za-z0-9._-]+")


def installed() -> list[str]:
    """Names of the services that are installed with what they need; none of them is imported."""
    return sorted({each.name for each in entry_points(group=ENTRY_POINTS) if _complete(each)})


def find(name: str) -> EntryPoint:
    """The service of a name. One that another distribution brings goes before our own. Raises `LookupError`."""
    found = [each for each in entry_points(group=ENTRY_POINTS) if each.name == name]
    others = [each for each in found if each.dist is None or each.dist.name != _OWN]
    if len(others or found) != 1:
        raise LookupError(f"{len(others or found)} entry points in {ENTRY_POINTS} are named {name}, and one is wanted")
    return (others or found)[0]


def _complete(entry: EntryPoint) -> bool:
    """Whether the distributions of the extras that an entry point names are there."""
    if entry.dist is None:
        return True
    # Not `entry.extras`: on Python 3.11 it takes a name with a hyphen for two.
    extras = _EXTRA.findall(entry.value.partition("[")[2])
    return not any(missing(extra, entry.dist.name) for extra in extras)
