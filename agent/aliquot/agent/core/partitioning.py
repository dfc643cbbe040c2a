"""How a device is to be cut (MIG): which profile a request needs, and which instances to make and to destroy.
Pure.

A device's memory is a row of slices; a profile takes so many in a row and may start only at certain ones.
Instances that are in use stay where they are; the idle ones may go. Placements are explicit, because the
order in which a driver would choose them decides what still fits afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Profile:
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


@dataclass(frozen=True, slots=True)
class Instance:
    """A part that exists."""

    instance_id: int
    profile_id: int
    start: int
    length: int
    in_use: bool


@dataclass(frozen=True, slots=True)
class Placement:
    """A part to be made."""

    profile: Profile
    start: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, in this order; `problem` is why it can't be done, and then nothing is."""

    destroy: tuple[Instance, ...] = ()
    create: tuple[Placement, ...] = ()
    problem: str = ""


def fitting_profile(
    profiles: Sequence[Profile], *, memory_bytes: int, share_milli: int, name: str = ""
) -> Profile | None:
    """The named profile, or the smallest with that much memory and that part of the compute slices."""
    if name:
        return next((profile for profile in profiles if profile.name == name), None)
    whole = max((profile.compute_slices for profile in profiles), default=0)
    enough = [
        profile
        for profile in profiles
        if profile.memory_bytes >= memory_bytes and profile.compute_slices * 1000 >= share_milli * whole
    ]
    return min(enough, key=lambda profile: (profile.length, profile.compute_slices, profile.profile_id), default=None)


def plan(profiles: Sequence[Profile], existing: Sequence[Instance], wanted: Sequence[Profile]) -> Plan:
    """Cut a device so that it has the wanted parts beside those in use. An idle part that already is what is
    wanted is kept; any other idle part goes.
    """
    kept = [instance for instance in existing if instance.in_use]
    idle = [instance for instance in existing if not instance.in_use]
    missing: list[Profile] = []
    for profile in wanted:
        ready = next((instance for instance in idle if instance.profile_id == profile.profile_id), None)
        if ready is None:
            missing.append(profile)
        else:
            idle.remove(ready)
            kept.append(ready)
    placed = _place(sorted(missing, key=lambda profile: -profile.length), _taken(kept))
    if placed is None:
        # Perhaps what was kept although nobody uses it is in the way.
        kept = [instance for instance in existing if instance.in_use]
        idle = [instance for instance in existing if not instance.in_use]
        placed = _place(sorted(wanted, key=lambda profile: -profile.length), _taken(kept))
    if placed is None:
        names = ", ".join(profile.name for profile in wanted)
        busy = ", ".join(f"{instance.length} from {instance.start}" for instance in kept) or "none"
        return Plan(problem=f"{names} can't be cut beside what is in use (memory slices in use: {busy})")
    return Plan(destroy=tuple(idle), create=tuple(placed))


def _taken(instances: Sequence[Instance]) -> frozenset[int]:
    return frozenset(
        slice_ for instance in instances for slice_ in range(instance.start, instance.start + instance.length)
    )


def _place(missing: Sequence[Profile], taken: frozenset[int]) -> list[Placement] | None:
    """Every part at a start of its own, by trying; there are at most eight slices."""
    if not missing:
        return []
    profile = missing[0]
    # From the end, so that large parts, which may start only in few places, find theirs free later.
    for start in sorted(profile.starts, reverse=True):
        needs = frozenset(range(start, start + profile.length))
        if needs & taken:
            continue
        rest = _place(missing[1:], taken | needs)
        if rest is not None:
            return [Placement(profile, start), *rest]
    return None
