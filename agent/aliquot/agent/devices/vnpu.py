"""How Ascend chips are divided: templates, and where their virtual NPUs lie. Behaves as MIG does.

DCMI has no list of its templates; this is the vendor's, by chip, as `npu-smi info -t template-info` and HAMi's table of
devices show it. It has no places either: a virtual NPU takes cores, not a span of them. Here a chip is a row of equal
units, and where one begins is in its number: the driver takes numbers from 100 + 16 times the chip's own, and keeps
them. One that was made elsewhere has the first place that is left for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from aliquot.agent.core.partitioning import Profile

FIRST_NUMBER = 100
NUMBERS_PER_CHIP = 16
MIB = 1 << 20


class Template(msgspec.Struct, frozen=True):
    """A way of dividing: its name, AI cores, memory in MB, and the units that it takes."""

    name: str
    cores: int
    memory_mb: int
    units: int


class Division(msgspec.Struct, frozen=True):
    """How one kind of chip is divided."""

    units: int
    templates: tuple[Template, ...]

    def profiles(self) -> tuple[Profile, ...]:
        """As cards that can be cut tell them; a template begins at multiples of its length."""
        return tuple(
            Profile(
                kind=number,
                profile_id=number,
                name=each.name,
                compute_slices=each.cores,
                memory_bytes=each.memory_mb * MIB,
                starts=tuple(range(0, self.units - each.units + 1, each.units)),
                length=each.units,
            )
            for number, each in enumerate(self.templates)
        )


def _eighths(*templates: tuple[str, int, int, int], units: int) -> Division:
    return Division(units, tuple(Template(*each) for each in templates))


DIVISIONS: Mapping[str, Division] = {
    "310P": _eighths(("vir01", 1, 3072, 1), ("vir02", 2, 6144, 2), ("vir04", 4, 12288, 4), units=7),
    "910A": _eighths(
        *(("vir02", 2, 2184, 1), ("vir04", 4, 4369, 2), ("vir08", 8, 8738, 4), ("vir16", 16, 17476, 8)), units=15
    ),
    "910B1": _eighths(
        *(("vir03_1c_8g", 3, 8192, 1), ("vir06_1c_16g", 6, 16384, 2), ("vir12_3c_32g", 12, 32768, 4)), units=8
    ),
    "910B2": _eighths(
        *(("vir03_1c_8g", 3, 8192, 1), ("vir06_1c_16g", 6, 16384, 2), ("vir12_3c_32g", 12, 32768, 4)), units=8
    ),
    "910B3": _eighths(("vir05_1c_16g", 5, 16384, 1), ("vir10_3c_32g", 10, 32768, 2), units=4),
    "910B4": _eighths(("vir05_1c_8g", 5, 8192, 1), ("vir10_3c_16g", 10, 16384, 2), units=4),
    "910B4-1": _eighths(("vir05_1c_16g", 5, 16384, 1), ("vir10_3c_32g", 10, 32768, 2), units=4),
}
"""By model."""


def number_of(physical_id: int, start: int) -> int:
    """Of the virtual NPU that begins there."""
    return FIRST_NUMBER + physical_id * NUMBERS_PER_CHIP + start


def places(physical_id: int, numbers: Sequence[tuple[int, str]], profiles: Sequence[Profile]) -> dict[int, int]:
    """By number, where each virtual NPU begins. `numbers`: (number, template) of all that are there. One for which no
    place is left is missing.
    """
    by_name = {profile.name: profile for profile in profiles}
    taken: set[int] = set()
    found: dict[int, int] = {}
    known = [(number, by_name[name]) for number, name in sorted(numbers) if name in by_name]

    def fits(start: int, profile: Profile) -> bool:
        return start in profile.starts and not taken & set(range(start, start + profile.length))

    def put(number: int, profile: Profile, start: int) -> None:
        found[number] = start
        taken.update(range(start, start + profile.length))

    for number, profile in known:
        start = (number - FIRST_NUMBER) - physical_id * NUMBERS_PER_CHIP
        if fits(start, profile):
            put(number, profile, start)
    for number, profile in known:
        start_left = next((start for start in profile.starts if fits(start, profile)), None)
        if number not in found and start_left is not None:
            put(number, profile, start_left)
    return found
