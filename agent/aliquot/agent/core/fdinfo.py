"""What the kernel says of one open DRM file in /proc/pid/fdinfo. Pure.

The format is the kernel's (Documentation/gpu/drm-usage-stats.rst): `key: value [unit]`; no unit means bytes, KiB is
1024 of them; keys that are not known are passed over. Regions of a card's own memory are called `vram…` (amdgpu, xe)
and `local…` (i915).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_OWN_MEMORY = ("vram", "local")


class Client(msgspec.Struct, frozen=True):
    """An open DRM file; the same one may be open in several processes, and several times."""

    driver: str
    pdev: str
    """Address on the bus; parts of one card have the same."""
    client_id: str
    memory_bytes: int | None
    """Of the card's own memory that is resident for it; None: the driver does not tell."""
    busy: Mapping[str, int] = {}
    """By engine: nanoseconds, or cycles where `total` has the engine, for which it worked."""
    total: Mapping[str, int] = {}
    """By engine: cycles that have passed."""
    engines: Mapping[str, int] = {}
    """How many engines of a name there are, where more than one."""


def parse(text: str) -> Client | None:
    """None for a file that is no DRM client's."""
    words: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("drm-"):
            key, colon, value = line.partition(":")
            if colon:
                words[key[4:]] = value.strip()
    if "client-id" not in words or "driver" not in words:
        return None
    resident: dict[str, int] = {}
    older: dict[str, int] = {}
    busy: dict[str, int] = {}
    total: dict[str, int] = {}
    engines: dict[str, int] = {}
    for key, value in words.items():
        if (number := _number(value)) is None:
            continue
        kind, _, name = key.partition("-")
        if kind == "resident":
            resident[name] = number
        elif kind == "memory":
            older[name] = number
        elif key.startswith("engine-capacity-"):
            engines[key[16:]] = number
        elif kind in ("engine", "cycles"):
            busy[name] = number
        elif key.startswith("total-cycles-"):
            total[key[13:]] = number
    return Client(
        words["driver"],
        words.get("pdev", ""),
        words["client-id"],
        _own_memory(resident, older),
        busy,
        total,
        engines,
    )


def _own_memory(resident: Mapping[str, int], older: Mapping[str, int]) -> int | None:
    """Resident where the driver tells that, else by its older name; none at all is not the same as not told."""
    known = resident or older
    return sum(size for region, size in known.items() if region.startswith(_OWN_MEMORY)) if known else None


def _number(value: str) -> int | None:
    number, _, unit = value.partition(" ")
    if not number.isdecimal():
        return None
    return int(number) * _UNITS[unit] if unit in _UNITS else int(number)


def percent(before: Client, now: Client, elapsed_ns: int) -> int:
    """How much of its card's busiest engine a client used between two looks, 0 to 100. Counters may step back, and that
    counts as nothing.
    """
    most = 0
    for engine, used in now.busy.items():
        worked = max(0, used - before.busy.get(engine, used))
        passed = now.total[engine] - before.total.get(engine, 0) if engine in now.total else elapsed_ns
        if engine in now.total and engine not in before.total:
            continue
        if passed > 0:
            most = max(most, worked * 100 // (passed * max(1, now.engines.get(engine, 1))))
    return min(100, most)
