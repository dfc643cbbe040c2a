"""The watchdog's decisions: which slices are over their limit, and which processes get SIGTERM or SIGKILL. Pure.

The rules, as README and the audit log state them:

- A slice is over its limit when the *known* memory of its processes on its device exceeds it. Unknown memory
  counts as nothing here: it is never a reason to end a process.
- At 95 % of its limit a slice is warned about once; again only after it fell below 90 %.
- Over the limit, victims are chosen from that slice's processes on that device only, the largest first (of
  equals, the youngest), until what is left fits: as few processes as possible. They get SIGTERM in the very
  poll that saw it.
- After the grace (the lease's own, at most the configured one) a victim that is alive gets SIGKILL, if the
  slice is still over its limit. If it is not, the victims are reprieved. A slice that is over its limit again within
  one grace period goes on with the old clock, so that nothing is gained by going up and down around the limit.
- A process of a lease on a device where its lease has no slice is a *stray*: it is over a limit of zero. It
  gets SIGTERM when two polls in a row saw known memory of it there, then SIGKILL after the grace.
- Foreign processes, and processes that can't be identified by pid and start time, are never chosen.
- Slices of the tier `driver` are judged as well. It denies by itself, but not what a process took before it was
  attached, and a limit that fails must not go unnoticed: see `Watchdog.breaches`.
- Whole devices and MIG instances have nobody to protect.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from aliquot.agent.core.accounting import DeviceUsage, ProcessUse, SliceUsage
from aliquot.agent.core.model import Holder, ProcessKey
from aliquot.common.quantity import human_bytes
from aliquot.common.tiers import Tier

WATCHED_TIERS = frozenset({Tier.WATCHDOG, Tier.PRELOAD, Tier.MPS, Tier.DRIVER})
"""Tiers with the watchdog behind them: all but those that have a device, or a partition of the hardware, to themselves.
"""
HARD_TIERS = frozenset({Tier.DRIVER})
"""Of these, those under which nobody should ever be seen over the limit."""

WARN_PERMILLE = 950
CALM_PERMILLE = 900
STRAY_POLLS = 2


@dataclass(frozen=True, slots=True)
class Rules:
    """What an administrator may set."""

    grace_max_ms: int = 5_000
    """Longest time between SIGTERM and SIGKILL for a process over its limit; a lease's own grace may be shorter."""
    stop_strays: bool = True
    """False: strays are reported only."""


class Act(enum.StrEnum):
    """What is done to a process or reported of a slice."""

    WARN = "warn"
    TERMINATE = "terminate"
    KILL = "kill"
    REPRIEVE = "reprieve"


@dataclass(frozen=True, slots=True)
class Decision:
    """One thing to do or say. `process` is None for what concerns the slice as a whole."""

    act: Act
    device_uuid: str
    holder: Holder
    why: str
    slice_id: str = ""
    """Empty for strays."""
    process: ProcessKey | None = None


@dataclass(frozen=True, slots=True)
class Offence:
    """An ongoing breach by one slice, or by one stray process."""

    asked: Mapping[ProcessKey, int] = field(default_factory=dict)
    """Who has been sent SIGTERM, and when."""
    fits_since_ms: int | None = None
    """Since when it has been within its limit again."""
    sightings: int = 0


@dataclass(frozen=True, slots=True)
class Watch:
    """What the watchdog remembers between two polls of a device."""

    offences: Mapping[str, Offence] = field(default_factory=dict)
    """By slice id."""
    strays: Mapping[ProcessKey, Offence] = field(default_factory=dict)
    warned: frozenset[str] = frozenset()


def needs_second_look(usage: DeviceUsage, tiers: Mapping[str, Tier]) -> bool:
    """Whether a slice seems over its limit by the sum of several processes. A driver reads them one after the other:
    memory that one gave back and another took meanwhile is counted twice. So the device must be read once more.
    """
    return any(
        piece.known_bytes > piece.reservation.spec.memory_bytes and len(piece.uses) > 1
        for piece in usage.slices
        if not piece.reservation.spec.whole_device and tiers.get(piece.reservation.slice_id) in WATCHED_TIERS
    )


def held_in_both(first: DeviceUsage, second: DeviceUsage) -> DeviceUsage:
    """What slices held in both of two reads: of each process that is in both, the smaller amount."""
    before = {use.process: use.memory_bytes for piece in first.slices for use in piece.uses if use.process is not None}

    def lesser(use: ProcessUse) -> ProcessUse:
        known = before[use.process] if use.process is not None else None
        if known is None or use.memory_bytes is None:
            return replace(use, memory_bytes=None)
        return replace(use, memory_bytes=min(known, use.memory_bytes))

    slices = tuple(
        replace(piece, uses=tuple(lesser(use) for use in piece.uses if use.process in before))
        for piece in second.slices
    )
    return replace(second, slices=slices)


def judge(
    watch: Watch, usage: DeviceUsage, tiers: Mapping[str, Tier], rules: Rules, now_ms: int
) -> tuple[Watch, list[Decision]]:
    """Decide about one poll of one device. `tiers`: the tier that holds each slice now (absent: none is set yet)."""
    decisions: list[Decision] = []
    offences: dict[str, Offence] = {}
    warned: set[str] = set()
    for piece in usage.slices:
        spec = piece.reservation.spec
        if spec.whole_device or tiers.get(spec.slice_id) not in WATCHED_TIERS:
            continue
        offence = watch.offences.get(spec.slice_id)
        offence, said = _judge_slice(piece, offence, rules, now_ms)
        if offence is not None:
            offences[spec.slice_id] = offence
        if _near(piece, already=spec.slice_id in watch.warned):
            warned.add(spec.slice_id)
            if spec.slice_id not in watch.warned:
                known, limit = human_bytes(piece.known_bytes), human_bytes(spec.memory_bytes)
                why = f"lease {spec.lease_id} holds {known} of {limit}"
                said = [Decision(Act.WARN, spec.device_uuid, spec.holder, why, spec.slice_id), *said]
        decisions += said
    strays, said = _judge_strays(watch.strays, usage, rules, now_ms)
    return Watch(offences, strays, frozenset(warned)), decisions + said


def _near(piece: SliceUsage, *, already: bool) -> bool:
    permille = CALM_PERMILLE if already else WARN_PERMILLE
    return piece.known_bytes * 1000 >= piece.reservation.spec.memory_bytes * permille


def _judge_slice(
    piece: SliceUsage, offence: Offence | None, rules: Rules, now_ms: int
) -> tuple[Offence | None, list[Decision]]:
    spec = piece.reservation.spec
    over_bytes = piece.known_bytes - spec.memory_bytes
    if over_bytes <= 0:
        return _judge_fitting(piece, offence, rules, now_ms)
    grace_ms = min(spec.grace_ms, rules.grace_max_ms)
    asked = dict(offence.asked) if offence is not None else {}
    why = (
        f"lease {spec.lease_id} holds {human_bytes(piece.known_bytes)}, {human_bytes(over_bytes)} over its limit "
        f"of {human_bytes(spec.memory_bytes)}"
    )
    decisions = []
    # Processes that have SIGTERM are expected to end: others only get it if the rest would still be too much.
    excess = over_bytes - sum(use.memory_bytes or 0 for use in piece.uses if use.process in asked)
    for use in _victims(piece.uses, asked):
        if excess <= 0:
            break
        assert use.process is not None
        assert use.memory_bytes is not None
        asked[use.process] = now_ms
        excess -= use.memory_bytes
        decisions.append(Decision(Act.TERMINATE, spec.device_uuid, spec.holder, why, spec.slice_id, use.process))
    present = {use.process for use in piece.uses}
    for process, since_ms in asked.items():
        if process in present and since_ms != now_ms and now_ms - since_ms >= grace_ms:
            late = f"{why}, and outlived its grace of {grace_ms} ms"
            decisions.append(Decision(Act.KILL, spec.device_uuid, spec.holder, late, spec.slice_id, process))
    return Offence(asked), decisions


def _judge_fitting(
    piece: SliceUsage, offence: Offence | None, rules: Rules, now_ms: int
) -> tuple[Offence | None, list[Decision]]:
    if offence is None:
        return None, []
    spec = piece.reservation.spec
    present = {use.process for use in piece.uses}
    asked = {process: since for process, since in offence.asked.items() if process in present}
    if not asked:
        return None, []
    if offence.fits_since_ms is None:
        why = f"lease {spec.lease_id} is within its limit again"
        said = [Decision(Act.REPRIEVE, spec.device_uuid, spec.holder, why, spec.slice_id, process) for process in asked]
        return Offence(asked, fits_since_ms=now_ms), said
    if now_ms - offence.fits_since_ms >= min(spec.grace_ms, rules.grace_max_ms):
        return None, []
    return Offence(asked, fits_since_ms=offence.fits_since_ms), []


def _victims(uses: Iterable[ProcessUse], asked: Mapping[ProcessKey, int]) -> list[ProcessUse]:
    candidates = [
        use for use in uses if use.process is not None and use.process not in asked and (use.memory_bytes or 0) > 0
    ]
    return sorted(candidates, key=lambda use: (-(use.memory_bytes or 0), -_age(use), use.pid))


def _age(use: ProcessUse) -> int:
    return use.process.start_ticks if use.process is not None else 0


def _judge_strays(
    known: Mapping[ProcessKey, Offence], usage: DeviceUsage, rules: Rules, now_ms: int
) -> tuple[dict[ProcessKey, Offence], list[Decision]]:
    offences: dict[ProcessKey, Offence] = {}
    decisions: list[Decision] = []
    for use in _identified(usage.strays):
        process, holder = use.process, use.holders[0]
        assert process is not None
        before = known.get(process, Offence())
        held = human_bytes(use.memory_bytes or 0)
        why = f"lease {holder.lease_id} has no slice on this device, but holds {held} of it"
        asked = dict(before.asked)
        if before.sightings == 0:
            decisions.append(Decision(Act.WARN, usage.device_uuid, holder, why, process=process))
        elif rules.stop_strays and before.sightings + 1 >= STRAY_POLLS and process not in asked:
            asked[process] = now_ms
            decisions.append(Decision(Act.TERMINATE, usage.device_uuid, holder, why, process=process))
        elif process in asked and now_ms - asked[process] >= rules.grace_max_ms:
            decisions.append(Decision(Act.KILL, usage.device_uuid, holder, why, process=process))
        offences[process] = Offence(asked, sightings=before.sightings + 1)
    return offences, decisions


def _identified(uses: Sequence[ProcessUse]) -> list[ProcessUse]:
    return [use for use in uses if use.process is not None and (use.memory_bytes or 0) > 0]
