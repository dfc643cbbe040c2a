"""The watchdog's decisions: which leases are over their limit, and what is done about it. Pure.

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
  gets SIGTERM when two looks in a row saw known memory of it there, or one of them if its lease strayed before
  within the last minute; then SIGKILL after the grace.
- The **tenant** is answerable: the time that any of its leases was over any limit within the last minute is added up,
  whoever of their processes held the memory, on whichever device or node, also of leases given back since, and before
  this agent started: the coordinator tells each agent what the others saw. When it reaches
  `Rules.over_max_ms`, all processes of the lease that is over are killed. If others take too much after that within
  the minute, be it under another lease, that lease ends.
- Foreign processes, and processes that can't be identified by pid and start time, are never chosen.
- Slices of the tier `driver` are judged as well: it denies by itself, but not what a process took before it was
  attached, nor managed memory, and a limit that fails must not go unnoticed. Contexts may not be charged to
  it, so a slice is over it only beyond a context for each process, and only when two looks in a row say so.
- Whole devices and MIG instances have nobody to protect.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

import msgspec
from msgspec.structs import replace
from msgspec.structs import replace as changed

from aliquot.agent.core.accounting import DeviceUsage, ProcessUse, SliceUsage
from aliquot.agent.core.model import Holder, ProcessKey
from aliquot.agent.core.overtime import WINDOW_MS, Record, Seen
from aliquot.common.quantity import human_bytes
from aliquot.common.tiers import Tier

WATCHED_TIERS = frozenset({Tier.WATCHDOG, Tier.PRELOAD, Tier.MPS, Tier.DRIVER})
"""Tiers with the watchdog behind them: all but those that have a device, or a partition of the hardware, to themselves.
"""
HARD_TIERS = frozenset({Tier.DRIVER})
"""Of these, those under which nobody should ever be seen over the limit."""

WARN_PERMILLE = 950
CALM_PERMILLE = 900
LOOKS = 2
"""So many looks in a row must see a stray, or a slice over the limit of a tier that denies."""
KILL_AGAIN_MS = 1_000
"""How soon processes that were all killed are killed once more, if they still hold something."""
CONTEXT_MAX_BYTES = 1 << 30
"""No context of a device takes more."""


class Rules(msgspec.Struct, frozen=True):
    """What an administrator may set."""

    grace_max_ms: int = 5_000
    """Longest time between SIGTERM and SIGKILL for a process over its limit; a lease's own grace may be shorter."""
    stop_strays: bool = True
    """False: strays are reported only."""
    over_max_ms: int = 1_500
    """How long a lease may be over its limits within a minute before all its processes are killed."""

    @property
    def unseen_max_ms(self) -> int:
        """At most so much of the time before a first sight counts as over: what is left is for obeying SIGTERM."""
        return self.over_max_ms * 2 // 3


class Act(enum.StrEnum):
    """What is done to a process or reported of a slice."""

    WARN = "warn"
    TERMINATE = "terminate"
    KILL = "kill"
    REPRIEVE = "reprieve"
    KILL_ALL = "kill_all"
    """Every process of the lease."""
    END_LEASE = "end_lease"


class Decision(msgspec.Struct, frozen=True):
    """One thing to do or say. `process` is None for what concerns the slice as a whole."""

    act: Act
    device_uuid: str
    holder: Holder
    why: str
    slice_id: str = ""
    """Empty for strays."""
    process: ProcessKey | None = None


class Offence(msgspec.Struct, frozen=True):
    """An ongoing breach by one slice, or by one stray process."""

    asked: Mapping[ProcessKey, int] = {}
    """Who has been sent SIGTERM, and when."""
    fits_since_ms: int | None = None
    """Since when it has been within its limit again."""
    sightings: int = 0
    """Looks in a row that saw it."""
    since_ms: int = 0
    """Since when it may have lasted at the first of them."""
    why: str = ""
    """What is too much now; empty: nothing, or it is not sure yet."""


class DeviceWatch(msgspec.Struct, frozen=True):
    """What the watchdog remembers between two looks at a device."""

    looked_ms: int | None = None
    offences: Mapping[str, Offence] = {}
    """By slice id."""
    strays: Mapping[ProcessKey, Offence] = {}
    warned: frozenset[str] = frozenset()
    over: frozenset[str] = frozenset()
    """Tenants of which a lease was over a limit here."""


class Watch(msgspec.Struct, frozen=True):
    """What the watchdog remembers of a node."""

    devices: Mapping[str, DeviceWatch] = {}
    records: Mapping[str, Record] = {}
    """By tenant: those of which a lease was over a limit within the last minute, also one that was given back since. A
    tenant that takes lease after lease, and exceeds each for a moment, gains nothing by that.
    """
    strayed_ms: Mapping[str, int] = {}
    """When processes of leases were last seen on devices where they have no slice, within the last minute."""

    def of(self, device_uuid: str) -> DeviceWatch:
        """What is remembered of one device."""
        return self.devices.get(device_uuid, DeviceWatch())

    def quiet(self, device_uuid: str) -> bool:
        """Whether nothing at all is held against anybody on this device: asked at every poll, so without a copy."""
        device = self.devices.get(device_uuid)
        return not self.records and (device is None or not (device.offences or device.strays))

    def suspects(self, device_uuid: str, tenants: Iterable[str]) -> bool:
        """Whether a device, on which these tenants have slices, is to be looked at more often."""
        device = self.of(device_uuid)
        strays = any(stray.why for stray in device.strays.values())
        return bool(device.offences) or strays or any(tenant in self.records for tenant in tenants)

    def told(self, tenant: str, elsewhere: Seen) -> Watch:
        """What was seen of a tenant on other nodes, or here before this agent began."""
        record = changed(self.records.get(tenant, Record()), elsewhere=elsewhere)
        return Watch(self.devices, {**self.records, tenant: record}, self.strayed_ms)

    def without(self, device_uuid: str) -> Watch:
        """When a device has gone."""
        devices = {uuid: device for uuid, device in self.devices.items() if uuid != device_uuid}
        return Watch(devices, self.records, self.strayed_ms)


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
    """What slices held in both of two looks: of each process that is in both, the smaller amount. What else a slice
    held in each of them counts too, as nobody's, as far as the memory in use at the second look leaves no other
    explanation: workers that come and go all the time hold as much as one that stays.
    """
    before = {use.process: use.memory_bytes for piece in first.slices for use in piece.uses if use.process is not None}
    known_before = {piece.reservation.slice_id: piece.known_bytes for piece in first.slices}
    unexplained = _unexplained_bytes(first, second)

    def lesser(use: ProcessUse) -> ProcessUse:
        known = before[use.process] if use.process is not None else None
        if known is None or use.memory_bytes is None:
            return replace(use, memory_bytes=None)
        return replace(use, memory_bytes=min(known, use.memory_bytes))

    def both(piece: SliceUsage) -> SliceUsage:
        uses = tuple(lesser(use) for use in piece.uses if use.process in before)
        slice_id = piece.reservation.slice_id
        least = min(known_before.get(slice_id, 0), piece.known_bytes, unexplained.get(slice_id, 0))
        passing = least - sum(use.memory_bytes or 0 for use in uses)
        if passing > 0:
            uses = (*uses, ProcessUse(0, None, passing, (piece.reservation.spec.holder,)))
        return replace(piece, uses=uses)

    return replace(second, slices=tuple(both(piece) for piece in second.slices))


def _unexplained_bytes(first: DeviceUsage, second: DeviceUsage) -> dict[str, int]:
    """Of each slice: the memory in use at the second look that nobody else can have held. Nothing where the memory
    of anybody on the device is unknown.
    """
    most: dict[tuple[str, int], int] = {}
    for usage in (first, second):
        named = [("", use) for use in (*usage.strays, *usage.foreign)]
        named += [(piece.reservation.slice_id, use) for piece in usage.slices for use in piece.uses]
        for slice_id, use in named:
            if use.memory_bytes is None:
                return {}
            most[slice_id, use.pid] = max(most.get((slice_id, use.pid), 0), use.memory_bytes)
    used_bytes = second.used_bytes
    if used_bytes is None:
        return {}
    return {
        piece.reservation.slice_id: used_bytes
        - sum(held for (slice_id, _), held in most.items() if slice_id != piece.reservation.slice_id)
        for piece in second.slices
    }


def judge(
    watch: Watch,
    usage: DeviceUsage,
    tiers: Mapping[str, Tier],
    rules: Rules,
    now_ms: int,
    tenant_of: Callable[[str], str] = str,
) -> tuple[Watch, list[Decision]]:
    """Decide about one look at one device. `tiers`: the tier that holds each slice now (absent: none is set yet).
    `tenant_of` names the tenant of a lease; one without any answers for itself.
    """
    before = watch.of(usage.device_uuid)
    looked_ms = before.looked_ms if before.looked_ms is not None else now_ms
    since_ms = max(looked_ms, now_ms - rules.unseen_max_ms)
    decisions: list[Decision] = []
    offences: dict[str, Offence] = {}
    warned: set[str] = set()
    over: dict[str, list[_Excess]] = {}
    for piece in usage.slices:
        spec = piece.reservation.spec
        tier = tiers.get(spec.slice_id)
        if spec.whole_device or tier not in WATCHED_TIERS:
            continue
        offence, said = _judge_slice(piece, tier, before.offences.get(spec.slice_id), rules, since_ms, now_ms)
        if offence is not None:
            offences[spec.slice_id] = offence
            if offence.why:
                excess = _Excess(spec.holder, spec.slice_id, offence.why, piece.uses, offence.since_ms)
                over.setdefault(spec.lease_id, []).append(excess)
        if _near(piece, already=spec.slice_id in before.warned):
            warned.add(spec.slice_id)
            if spec.slice_id not in before.warned:
                known, limit = human_bytes(piece.known_bytes), human_bytes(spec.memory_bytes)
                why = f"lease {spec.lease_id} holds {known} of {limit}"
                said = [Decision(Act.WARN, spec.device_uuid, spec.holder, why, spec.slice_id), *said]
        decisions += said
    strayed_ms = {lease: at for lease, at in watch.strayed_ms.items() if now_ms - at < WINDOW_MS}
    strays, said = _judge_strays(before.strays, strayed_ms, usage, rules, since_ms, now_ms)
    decisions += said
    for use in _identified(usage.strays):
        holder = use.holders[0]
        offence = strays.get(use.process) if use.process is not None else None
        if offence is not None and offence.why:
            over.setdefault(holder.lease_id, []).append(_Excess(holder, "", offence.why, (use,), offence.since_ms))
        if rules.stop_strays:
            strayed_ms[holder.lease_id] = now_ms
    records = {lease: kept for lease, known in watch.records.items() if (kept := known.within(now_ms)) is not None}
    owners = {lease_id: tenant_of(lease_id) or lease_id for lease_id in over}
    since = dict.fromkeys(before.over, looked_ms)
    for lease_id, excesses in over.items():
        begun_ms = min(excess.since_ms for excess in excesses)
        if owners[lease_id] not in before.over:
            since[owners[lease_id]] = min(since.get(owners[lease_id], begun_ms), begun_ms)
    for owner, begun_ms in since.items():
        records[owner] = records.get(owner, Record()).add(begun_ms, now_ms)
    for lease_id, excesses in over.items():
        owner = owners[lease_id]
        records[owner], said = _judge_lease(records[owner], usage.device_uuid, excesses, rules, now_ms)
        decisions += said
    seen = DeviceWatch(now_ms, offences, strays, frozenset(warned), frozenset(owners.values()))
    return Watch({**watch.devices, usage.device_uuid: seen}, records, strayed_ms), decisions


class _Excess(msgspec.Struct, frozen=True):
    """What a lease holds too much of, in one place."""

    holder: Holder
    slice_id: str
    why: str
    uses: tuple[ProcessUse, ...]
    since_ms: int


def _judge_lease(
    record: Record, device_uuid: str, excesses: Sequence[_Excess], rules: Rules, now_ms: int
) -> tuple[Record, list[Decision]]:
    """Beyond what was done to single processes."""
    if record.over_ms < rules.over_max_ms:
        return record, []
    first = excesses[0]
    present = frozenset(
        use.process for use in chain.from_iterable(excess.uses for excess in excesses) if use.process is not None
    )
    seconds = WINDOW_MS // 1000
    why = f"{first.why}, and its tenant was over the limits of leases for {record.over_ms} ms within {seconds} s"
    if present and present <= record.killed and now_ms - (record.here.killed_ms or 0) < KILL_AGAIN_MS:
        return record, []
    act = Act.KILL_ALL
    if record.punished and not present <= record.killed:
        act, why = Act.END_LEASE, f"{why}, also after all its processes had been killed"
    decided = Decision(act, device_uuid, first.holder, why, first.slice_id)
    return (record.note_killed(present, now_ms) if act is Act.KILL_ALL else record), [decided]


def _near(piece: SliceUsage, *, already: bool) -> bool:
    permille = CALM_PERMILLE if already else WARN_PERMILLE
    return piece.known_bytes * 1000 >= piece.reservation.spec.memory_bytes * permille


def _judge_slice(
    piece: SliceUsage, tier: Tier, offence: Offence | None, rules: Rules, since_ms: int, now_ms: int
) -> tuple[Offence | None, list[Decision]]:
    spec = piece.reservation.spec
    slack_bytes = len(piece.uses) * CONTEXT_MAX_BYTES if tier in HARD_TIERS else 0
    over_bytes = piece.known_bytes - spec.memory_bytes
    if over_bytes <= slack_bytes:
        return _judge_fitting(piece, offence, rules, now_ms)
    asked = dict(offence.asked) if offence is not None else {}
    sightings = offence.sightings + 1 if offence is not None else 1
    if offence is not None and offence.sightings:
        since_ms = offence.since_ms
    if tier in HARD_TIERS and sightings < LOOKS:
        return Offence(asked, sightings=sightings, since_ms=since_ms), []
    grace_ms = min(spec.grace_ms, rules.grace_max_ms)
    why = (
        f"lease {spec.lease_id} holds {human_bytes(piece.known_bytes)}, {human_bytes(over_bytes)} over its limit "
        f"of {human_bytes(spec.memory_bytes)}"
    )
    decisions = []
    # Only what processes hold that can be named is theirs to answer for. Those that have SIGTERM are expected to end:
    # others only get it if the rest would still be too much.
    nobodys = sum(use.memory_bytes or 0 for use in piece.uses if use.pid == 0)
    excess = over_bytes - nobodys - sum(use.memory_bytes or 0 for use in piece.uses if use.process in asked)
    for use in _victims(piece.uses, asked):
        if excess <= 0:
            break
        assert use.process is not None
        assert use.memory_bytes is not None
        asked[use.process] = now_ms
        excess -= use.memory_bytes
        decisions.append(Decision(Act.TERMINATE, spec.device_uuid, spec.holder, why, spec.slice_id, use.process))
    present = {use.process for use in piece.uses}
    for process, asked_ms in asked.items():
        if process in present and asked_ms != now_ms and now_ms - asked_ms >= grace_ms:
            late = f"{why}, and outlived its grace of {grace_ms} ms"
            decisions.append(Decision(Act.KILL, spec.device_uuid, spec.holder, late, spec.slice_id, process))
    return Offence(asked, sightings=sightings, since_ms=since_ms, why=why), decisions


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
    known: Mapping[ProcessKey, Offence],
    strayed_ms: Mapping[str, int],
    usage: DeviceUsage,
    rules: Rules,
    since_ms: int,
    now_ms: int,
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
        sure = before.sightings + 1 >= LOOKS or holder.lease_id in strayed_ms
        if not sure or (not rules.stop_strays and before.sightings == 0):
            decisions.append(Decision(Act.WARN, usage.device_uuid, holder, why, process=process))
        elif rules.stop_strays and process not in asked:
            asked[process] = now_ms
            decisions.append(Decision(Act.TERMINATE, usage.device_uuid, holder, why, process=process))
        elif process in asked and now_ms - asked[process] >= rules.grace_max_ms:
            decisions.append(Decision(Act.KILL, usage.device_uuid, holder, why, process=process))
        answerable = why if sure and rules.stop_strays else ""
        begun_ms = before.since_ms if before.sightings else since_ms
        offences[process] = Offence(asked, sightings=before.sightings + 1, since_ms=begun_ms, why=answerable)
    return offences, decisions


def _identified(uses: Sequence[ProcessUse]) -> list[ProcessUse]:
    return [use for use in uses if use.process is not None and (use.memory_bytes or 0) > 0]
