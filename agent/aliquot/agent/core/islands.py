"""Which devices reach one another over links of their own, from who is linked to whom. Pure."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from typing import TypeVar

K = TypeVar("K", bound=Hashable)


def islands(links: Mapping[K, Collection[K]]) -> dict[K, int]:
    """Devices that reach one another, directly or not, get the same number, counted from 0 in the order given; a device
    that reaches no other gets none. What is no key is no device and joins all that are linked to it, as a switch does.
    """
    both: dict[K, set[K]] = {}
    for here, others in links.items():
        for there in others:
            both.setdefault(here, set()).add(there)
            both.setdefault(there, set()).add(here)
    found: dict[K, int] = {}
    seen: set[K] = set()
    for start in links:
        if start in seen:
            continue
        group, waiting = [], [start]
        while waiting:
            here = waiting.pop()
            if here not in seen:
                seen.add(here)
                group.append(here)
                waiting += both.get(here, ())
        devices = [each for each in group if each in links]
        if len(devices) > 1:
            number = len(set(found.values()))
            found |= dict.fromkeys(devices, number)
    return found
