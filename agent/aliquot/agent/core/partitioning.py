"""How a card is cut (MIG), and what to do so that it is cut as ordered. Pure.

A card's memory is a row of memory slices. An instance of a profile takes several in a row, and may begin only at some
of them. The coordinator decides which instances there are to be, and where. The agent creates and removes what differs,
and never touches an instance in use.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from aliquot.common.limits import WHOLE_SHARE_MILLI


class Profile(msgspec.Struct, frozen=True):
    """One way of cutting, as the driver tells it at run time."""

    kind: int
    """What the driver is asked by."""
    profile_id: int
    """What creation takes."""
    name: str
    """`1g.10gb`."""
    compute_slices: int
    memory_bytes: int
    starts: tuple[int, ...]
    length: int
    """In memory slices."""


class Instance(msgspec.Struct, frozen=True):
    """A part that exists."""

    instance_id: int
    profile_id: int
    start: int
    length: int
    in_use: bool


class Part(msgspec.Struct, frozen=True, order=True):
    """A part by what it is and where."""

    start: int
    profile: str
    """By name."""


def compute_in_all(profiles: Sequence[Profile]) -> int:
    """Slices of compute that a card has: those of the profile that takes all of it or, where there is none, as many as
    its parts would have together; 0 where none tells.
    """
    units = max((start + profile.length for profile in profiles for start in profile.starts), default=0)
    whole = max((profile.compute_slices for profile in profiles), default=0)
    if not units or any(profile.length == units for profile in profiles):
        return whole
    return max(whole, *(profile.compute_slices * units // profile.length for profile in profiles if profile.length))


class Card(msgspec.Struct, frozen=True):
    """A card in MIG mode."""

    uuid: str
    model: str
    profiles: tuple[Profile, ...]
    parts: tuple[tuple[Part, str], ...]
    """Each with the UUID of the device that it is; empty: it is none, having no compute instance."""

    @property
    def geometry(self) -> tuple[Part, ...]:
        """What parts there are, in order."""
        return tuple(sorted(part for part, _ in self.parts))

    def slices_of(self, profile: str) -> int:
        """Slices of compute that a profile has; 0: there is no such profile."""
        return next((each.compute_slices for each in self.profiles if each.name == profile), 0)

    def compute_milli(self, slices: int) -> int:
        """So many slices as thousandths of the card's compute, rounded down; all of it where that is not known."""
        most = compute_in_all(self.profiles)
        return slices * WHOLE_SHARE_MILLI // most if slices and most else WHOLE_SHARE_MILLI


class CutOrder(msgspec.Struct, frozen=True):
    """A card is to have exactly these parts."""

    number: int
    card_uuid: str
    parts: tuple[Part, ...]
    reason: str = ""


class CutResult(msgspec.Struct, frozen=True):
    """What became of the last order for a card."""

    number: int
    problem: str = ""
    """Why nothing was changed; empty: it was carried out."""
    parts: tuple[Part, ...] = ()
    """As the card is cut by us, to be restored after a restart of the machine; empty: not by us."""


class Placement(msgspec.Struct, frozen=True):
    """A part to be made."""

    profile: Profile
    start: int


class Recut(msgspec.Struct, frozen=True):
    """What to do, in this order; `problem` is why it can't be done, and then nothing is."""

    destroy: tuple[Instance, ...] = ()
    create: tuple[Placement, ...] = ()
    problem: str = ""


def difference(
    profiles: Sequence[Profile],
    existing: Sequence[Instance],
    wanted: Collection[Part],
    reserved_starts: Collection[int] = (),
) -> Recut:
    """What to do so that a card has exactly the wanted parts. What is as wanted stays; what is in use, or begins where
    something is reserved for a lease, is never destroyed.
    """
    by_name = {profile.name: profile for profile in profiles}
    names = {profile.profile_id: profile.name for profile in profiles}
    taken: set[int] = set()
    for part in wanted:
        profile = by_name.get(part.profile)
        if profile is None or part.start not in profile.starts:
            return Recut(problem=f"this card can have no {part.profile} from {part.start}")
        span = set(range(part.start, part.start + profile.length))
        if span & taken:
            return Recut(problem=f"{part.profile} from {part.start} overlaps another part that is wanted")
        taken |= span
    there = {Part(each.start, names.get(each.profile_id, "")): each for each in existing}
    destroy = [each for part, each in there.items() if part not in wanted]
    for each in destroy:
        if each.in_use or each.start in reserved_starts:
            name = names.get(each.profile_id, "a part")
            return Recut(problem=f"{name} from {each.start} is in use")
    create = [Placement(by_name[part.profile], part.start) for part in sorted(wanted) if part not in there]
    return Recut(tuple(destroy), tuple(create))
