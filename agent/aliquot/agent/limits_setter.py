"""Sets, reads back and clears the limits of slices, by the strongest tier that works."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from aliquot.agent.core.accounting import SliceUsage
from aliquot.agent.core.model import Actual, Holder, Reservation
from aliquot.agent.core.pacing import Pace, Use, keep_pace
from aliquot.agent.devices.base import DeviceError
from aliquot.agent.devices.guard import DeviceGuard
from aliquot.agent.enforce.assembly import asks_nobody, check_processes, keeps_account, release
from aliquot.agent.enforce.base import EnforcementError, Enforcer, Limited
from aliquot.agent.enforce.chooser import Chooser, TierUnavailable
from aliquot.agent.enforce.pacing import library_of, share_note
from aliquot.agent.processes.containment import Containment
from aliquot.agent.processes.signals import Target
from aliquot.agent.state import DeviceState, NodeState
from aliquot.common.quantity import human_bytes
from aliquot.common.tiers import Tier

log = logging.getLogger(__name__)

_FORGETTING = "forgetting"
"""The lane of the guard."""
MPS_TIMEOUT_S = 60.0
"""A few questions to a control program, which each have their own bound."""


class LimitResult(msgspec.Struct, frozen=True):
    """The tier, when the limit is in force; else a stable reason and a sentence for people."""

    tier: Tier | None = None
    tier_notes: tuple[str, ...] = ()
    reason: str = ""
    detail: str = ""


class LimitSetter(msgspec.Struct, eq=False):
    """Applies tiers to slices. All calls into a driver go through the guard."""

    state: NodeState
    chooser: Chooser
    guard: DeviceGuard
    containment: Containment
    _paces: dict[str, tuple[int, Mapping[str, Pace]]] = {}
    """By device: when they were set, by the monotonic clock, and those of its slices."""

    def limited(self, record: Reservation) -> Limited | None:
        """The slice as tiers see it; None while its device is not there."""
        device = self.state.devices.get(record.spec.device_uuid)
        if device is None:
            return None
        holder = record.spec.holder
        attached = tuple(self.containment.cgroups_attached(holder))
        return Limited(record.spec, device.info, self.containment.cgroup_of(holder), attached)

    def held(self, record: Reservation) -> tuple[Limited, Enforcer] | None:
        """A slice and what holds it; None: nothing does (yet), or its device is gone."""
        limited, tier = self.limited(record), self.state.actual_of(record.slice_id).tier
        enforcer = self.chooser.of(tier) if tier is not None else None
        return None if limited is None or enforcer is None else (limited, enforcer)

    async def set(self, record: Reservation) -> LimitResult:
        """Set a slice's limit by the strongest tier that holds when read back."""
        limited = self.limited(record)
        if limited is None:
            return LimitResult(reason="DEVICE_UNKNOWN", detail=f"this node has no device {record.spec.device_uuid} now")
        notes: list[str] = []
        weaker_than: Tier | None = None
        while True:
            try:
                choice = self.chooser.choose(limited, weaker_than=weaker_than)
            except TierUnavailable as error:
                detail = error.message if not notes else f"{error.message}; {'; '.join(notes)}"
                return LimitResult(reason=error.reason, detail=detail)
            tier = choice.enforcer.tier
            try:
                lane, timeout_s = _lane(choice.enforcer, limited.device.uuid)
                if await self.guard.run(lane, partial(_apply, choice.enforcer, limited), timeout_s):
                    said = share_note(choice.enforcer, limited)
                    return LimitResult(tier, (*notes, *choice.notes, *([said] if said else [])))
                problem = "the limit was set, but is not there when read back"
            except (EnforcementError, DeviceError) as error:
                problem = error.message
            log.warning("slice %s: %s does not hold it: %s", record.slice_id, tier.word, problem)
            notes.append(f"{tier.word}: {problem}")
            weaker_than = tier

    def checks(self, records: Sequence[Reservation]) -> tuple[dict[str, list[Check]], list[Reservation]]:
        """How the limits of these slices are read back, by the lane that does it; and those that are known to be lost
        without asking anybody: their device or their tier is gone, or what the agent knows itself says so.
        """
        checks: dict[str, list[Check]] = {}
        at_once: list[Check] = []
        lost: list[Reservation] = []
        for record in records:
            held = self.held(record)
            if held is None:
                lost.append(record)
            else:
                limited, enforcer = held
                lane, timeout_s = _lane(enforcer, record.spec.device_uuid)
                check = Check(record, enforcer, limited, self._pids_of(record), timeout_s)
                (at_once if asks_nobody(enforcer) else checks.setdefault(lane, [])).append(check)
        return checks, [*lost, *_not_in_force(at_once)]

    async def broken(self, lane: str, checks: Sequence[Check]) -> list[Reservation]:
        """Those slices whose limit is not there any more, as the enforcing part says: in one call. A device that does
        not answer can't say so.
        """
        with contextlib.suppress(DeviceError):
            return await self.guard.run(lane, partial(_not_in_force, checks), checks[0].timeout_s)
        return []

    def _pids_of(self, record: Reservation) -> frozenset[int]:
        device = self.state.devices.get(record.spec.device_uuid)
        if device is None or device.usage is None:
            return frozenset()
        slice_id = record.spec.slice_id
        for piece in device.usage.slices:
            if piece.reservation.spec.slice_id == slice_id:
                return frozenset([use.pid for use in piece.uses if use.process is not None])
        return frozenset()

    async def clear(self, record: Reservation, actual: Actual) -> bool:
        """Take a slice's limit away. False: not now, try again."""
        limited = self.limited(record)
        enforcer = self.chooser.of(actual.tier) if actual.tier is not None else None
        if limited is None or enforcer is None:
            return True  # a limit on a device that is gone is gone with it
        try:
            lane, timeout_s = _lane(enforcer, limited.device.uuid)
            await self.guard.run(lane, lambda: enforcer.clear(limited), timeout_s)
        except (EnforcementError, DeviceError) as error:
            log.warning("the limit of slice %s can't be cleared yet: %s", record.slice_id, error.message)
            return False
        return True

    async def forget(self, holder: Holder) -> None:
        """Have every tier keep nothing of a holder that has no slice here any more."""
        with contextlib.suppress(DeviceError):
            await self.guard.run(_FORGETTING, partial(_forget, self.chooser.all(), holder), MPS_TIMEOUT_S)

    def observe(self, usage: SliceUsage) -> None:
        """Tell the tier that holds a slice what the driver sees of it: after each poll."""
        record = usage.reservation
        if (held := self.held(record)) is None:
            return
        limited, enforcer = held
        excess_bytes = enforcer.observe(limited, usage.observed_bytes) if keeps_account(enforcer) else 0
        if excess_bytes:
            log.info("slice %s holds %s beyond its own account", record.slice_id, human_bytes(excess_bytes))

    def release(self, target: Target) -> None:
        """Before a process is killed: see `assembly.release`."""
        release(self.chooser.of(Tier.MPS), target.holder, target.process.pid)

    def keep_pace(self, device: DeviceState, now_ms: int) -> None:
        """Hold a device's slices to their parts of its time, by what each has used of late: after each look at that."""
        pieces = device.usage.slices if device.usage is not None else ()
        set_ms, before = self._paces.pop(device.info.uuid, (now_ms, {}))
        percent = device.process_percent or {}  # where the driver does not tell, nobody is held back
        uses = {
            piece.reservation.slice_id: Use(
                piece.reservation.spec.share_milli, 10 * sum(percent.get(use.pid, 0) for use in piece.uses)
            )
            for piece in pieces
        }
        others_milli = 10 * sum(percent.values()) - sum(use.used_milli for use in uses.values())
        paces = keep_pace(before, uses, max(0, others_milli), now_ms - set_ms, now_ms)
        for piece in pieces:
            pace = paces[piece.reservation.slice_id]
            if pace != before.get(piece.reservation.slice_id):
                self._set_pace(piece.reservation, pace)
        self._paces[device.info.uuid] = now_ms, paces

    def _set_pace(self, record: Reservation, pace: Pace) -> None:
        if (held := self.held(record)) is None:
            return
        limited, enforcer = held
        try:
            if (library := library_of(enforcer, limited)) is not None:
                library.set_pace(limited, pace)
        except (OSError, EnforcementError) as error:
            log.warning("slice %s can't be told its pace: %s", record.slice_id, error)

    def tiers_of(self, device_uuid: str) -> tuple[Tier, ...]:
        """The tiers that can be had on a device now, weakest first."""
        device = self.state.devices.get(device_uuid)
        return () if device is None else self.chooser.offered(device.info)


def _lane(enforcer: Enforcer, device_uuid: str) -> tuple[str, float | None]:
    """Whose thread carries out a tier's work, and how long that may take (None: as long as any call into the driver).
    A daemon that is slow to start or to answer must neither hold up the polls of its device nor make it look hung.
    """
    return (f"mps {device_uuid}", MPS_TIMEOUT_S) if enforcer.tier is Tier.MPS else (device_uuid, None)


class Check(msgspec.Struct, frozen=True):
    """A limit to be read back, and who must be under it."""

    record: Reservation
    enforcer: Enforcer
    limited: Limited
    pids: frozenset[int]
    timeout_s: float | None = None


def _not_in_force(checks: Sequence[Check]) -> list[Reservation]:
    found = []
    for check in checks:
        try:
            if check.enforcer.read_back(check.limited):
                check_processes(check.enforcer, check.limited, check.pids)
            else:
                found.append(check.record)
        except EnforcementError as error:
            log.warning("the limit of slice %s can't be read back: %s", check.record.slice_id, error.message)
            found.append(check.record)
    return found


def _forget(enforcers: Sequence[Enforcer], holder: Holder) -> None:
    for enforcer in enforcers:
        try:
            enforcer.forget(holder)
        except EnforcementError as error:
            log.warning("tier %s still keeps something of %s: %s", enforcer.tier.word, holder, error.message)


def _apply(enforcer: Enforcer, limited: Limited) -> bool:
    enforcer.apply(limited)
    return enforcer.read_back(limited)
