"""The states of a reservation: one table of transitions, and what to do next.

    RUN --stop ordered--> STOP --processes gone, limit cleared--> ENDED (gone) --settled--> forgotten
    RUN --can't be set up-----------------------------------> ENDED (failed) --settled--> forgotten
    RUN or STOP --given up by the agent--> STOP --processes gone, limit cleared--> ENDED (failed)
    STOP --run ordered again (a reprieve)--> RUN, unless it was given up

`next_step` compares what is ordered with what is true, and names one action. It is asked again after each action and
after every restart, so no action in progress has to be remembered.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator

import msgspec

from aliquot.agent.core.model import Actual, Ending, Holder, Intent, Reservation, StopOrder

OVER_LIMIT = "OVER_LIMIT"
"""Why a slice failed whose lease would not keep to its limit. The coordinator knows this word: such a lease ends."""

RETRY_S = 2.0
"""When a step is tried again that came to nothing."""
LOOK_AGAIN_S = 60.0
"""How often slices are checked that seem to need nothing."""


class Event(enum.Enum):
    """What can happen to a reservation."""

    RUN_ORDERED = "run ordered"
    STOP_ORDERED = "stop ordered"
    SETUP_FAILED = "set-up failed"
    CLEARED = "processes gone and limit cleared"
    GIVEN_UP = "given up by the agent"


TRANSITIONS: dict[tuple[Intent, Event], Intent] = {
    (Intent.RUN, Event.RUN_ORDERED): Intent.RUN,
    (Intent.RUN, Event.STOP_ORDERED): Intent.STOP,
    (Intent.RUN, Event.SETUP_FAILED): Intent.ENDED,
    (Intent.STOP, Event.RUN_ORDERED): Intent.RUN,
    (Intent.STOP, Event.STOP_ORDERED): Intent.STOP,
    (Intent.STOP, Event.CLEARED): Intent.ENDED,
    (Intent.RUN, Event.GIVEN_UP): Intent.STOP,
    (Intent.STOP, Event.GIVEN_UP): Intent.STOP,
}
"""Pairs that are not here change nothing: an ended reservation stays ended, whatever arrives late."""


class SliceStatus(enum.IntEnum):
    """What is reported of a slice. Numbers equal those of the contract."""

    PENDING = 1
    ACTIVE = 2
    STOPPING = 3
    GONE = 4
    FAILED = 5


def status_of(reservation: Reservation, actual: Actual) -> SliceStatus:
    """The status to report: derived, never stored, so that it can't disagree with the record."""
    if reservation.intent is Intent.ENDED:
        return SliceStatus.FAILED if reservation.ending is Ending.FAILED else SliceStatus.GONE
    if reservation.intent is Intent.STOP:
        return SliceStatus.STOPPING
    return SliceStatus.ACTIVE if actual.limit_set and is_served(reservation, actual) else SliceStatus.PENDING


def is_served(reservation: Reservation, actual: Actual) -> bool:
    """Whether the process that is to serve it answers; True where none is to."""
    return bool(actual.endpoint) or not reservation.spec.serve


class Step(enum.Enum):
    """What to do next about a slice."""

    NOTHING = "nothing"
    SET_LIMIT = "set the limit"
    SERVE = "have its process started"
    ASK_TO_END = "send the stop signal"
    WAIT = "wait for the grace to pass"
    KILL = "send SIGKILL"
    CLEAR_LIMIT = "clear the limit"
    CONCLUDE = "record that it is gone"


def next_step(reservation: Reservation, actual: Actual, now_ms: int) -> Step:
    """What to do about a slice, given what is true of it. `now_ms` is the monotonic clock."""
    if reservation.intent is Intent.RUN:
        if not actual.limit_set:
            return Step.SET_LIMIT
        return Step.NOTHING if is_served(reservation, actual) else Step.SERVE
    if reservation.intent is Intent.ENDED:
        return Step.NOTHING
    if actual.live_processes is None:
        return Step.WAIT
    if actual.live_processes > 0:
        stop = reservation.stop
        if not actual.asked_to_end:
            return Step.ASK_TO_END
        if stop is not None and now_ms - stop.learned_ms < stop.grace_ms:
            return Step.WAIT
        return Step.KILL
    return Step.CLEAR_LIMIT if actual.limit_set else Step.CONCLUDE


def order_run(reservation: Reservation, leader_epoch: int) -> Reservation:
    """The reservation after the coordinator named it as running; unchanged when it has ended, or was given
    up: of that the coordinator has yet to hear.
    """
    if (reservation.intent, Event.RUN_ORDERED) not in TRANSITIONS or reservation.ending is Ending.FAILED:
        return reservation
    return msgspec.structs.replace(
        reservation, intent=Intent.RUN, stop=None, quarantined=False, leader_epoch=leader_epoch
    )


def order_stop(reservation: Reservation, stop: StopOrder, leader_epoch: int) -> Reservation:
    """The reservation after the coordinator ordered its end. A repeated order keeps the first one's clock,
    but may shorten the grace.
    """
    target = TRANSITIONS.get((reservation.intent, Event.STOP_ORDERED))
    if target is None:
        return reservation
    if reservation.stop is not None:
        stop = StopOrder(reservation.stop.learned_ms, min(stop.grace_ms, reservation.stop.grace_ms), stop.reason)
    if reservation.reason == OVER_LIMIT:  # its holder may give back at once what it is to answer for
        return msgspec.structs.replace(reservation, intent=target, stop=stop, leader_epoch=leader_epoch)
    return msgspec.structs.replace(
        reservation,
        intent=target,
        stop=stop,
        quarantined=False,
        leader_epoch=leader_epoch,
        ending=None,
        reason="",
        detail="",
    )


def fail(reservation: Reservation, reason: str, detail: str) -> Reservation:
    """The reservation after its limit could not be set: nothing is held for it."""
    target = TRANSITIONS.get((reservation.intent, Event.SETUP_FAILED))
    if target is None:
        return reservation
    return msgspec.structs.replace(reservation, intent=target, ending=Ending.FAILED, reason=reason, detail=detail)


def give_up(reservation: Reservation, stop: StopOrder, reason: str, detail: str) -> Reservation:
    """The reservation after it could not be served, or would not keep to its limit: it fails once its processes, if
    it has any, are gone.
    """
    target = TRANSITIONS.get((reservation.intent, Event.GIVEN_UP))
    if target is None or reservation.ending is Ending.FAILED:
        return reservation
    return msgspec.structs.replace(
        reservation, intent=target, stop=stop, ending=Ending.FAILED, reason=reason, detail=detail
    )


def conclude(reservation: Reservation) -> Reservation:
    """The reservation after its processes are gone and its limit is cleared."""
    target = TRANSITIONS.get((reservation.intent, Event.CLEARED))
    if target is None:
        return reservation
    return msgspec.structs.replace(reservation, intent=target, ending=reservation.ending or Ending.GONE)


class DeviceLoad(msgspec.Struct, frozen=True):
    """What reservations hold of one device."""

    share_milli: int = 0
    memory_bytes: int = 0
    slices: int = 0


class Book:
    """All reservations of this node, by slice id. Quarantined ones count like any other.

    What holds a part of a device is found by device and by lease without a look at the others: each poll asks.
    """

    __slots__ = ("_by_device", "_by_lease", "_holders", "_records")

    def __init__(self, records: Iterable[Reservation] = ()) -> None:
        self._records: dict[str, Reservation] = {}
        self._by_device: dict[str, dict[str, Reservation]] = {}
        self._by_lease: dict[str, dict[str, Reservation]] = {}
        self._holders: frozenset[Holder] | None = None
        for record in records:
            self.put(record)

    def __iter__(self) -> Iterator[Reservation]:
        return iter(tuple(self._records.values()))

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, slice_id: str) -> bool:
        return slice_id in self._records

    def get(self, slice_id: str) -> Reservation | None:
        """The record of this slice, if there is one."""
        return self._records.get(slice_id)

    def put(self, record: Reservation) -> None:
        """Add or replace a record."""
        spec, known = record.spec, self._records.get(record.spec.slice_id)
        if known is not None and known.spec is not spec and known.spec != spec:
            self._let_go(known)
        self._records[spec.slice_id] = record
        if record.holds:
            self._by_device.setdefault(spec.device_uuid, {})[spec.slice_id] = record
            self._by_lease.setdefault(spec.lease_id, {})[spec.slice_id] = record
            self._holders = None
        else:
            self._let_go(record)

    def forget(self, slice_id: str) -> None:
        """Drop a record, if there is one."""
        record = self._records.pop(slice_id, None)
        if record is not None:
            self._let_go(record)

    def _let_go(self, record: Reservation) -> None:
        """It does not hold a part of a device any more."""
        spec = record.spec
        for index, key in ((self._by_device, spec.device_uuid), (self._by_lease, spec.lease_id)):
            of_key = index.get(key)
            if of_key is not None and of_key.pop(spec.slice_id, None) is not None and not of_key:
                del index[key]
        self._holders = None

    def holding(self) -> list[Reservation]:
        """Records that take part of a device."""
        return [record for of_lease in self._by_lease.values() for record in of_lease.values()]

    def holders(self) -> frozenset[Holder]:
        """Whoever has a record that takes part of a device."""
        if self._holders is None:
            self._holders = frozenset(
                record.spec.holder for of_lease in self._by_lease.values() for record in of_lease.values()
            )
        return self._holders

    def on_device(self, device_uuid: str) -> list[Reservation]:
        """Records that take part of this device."""
        of_device = self._by_device.get(device_uuid)
        return list(of_device.values()) if of_device is not None else []

    def of_lease(self, lease_id: str) -> list[Reservation]:
        """Records of one lease that take part of a device, of any epoch."""
        of_lease = self._by_lease.get(lease_id)
        return list(of_lease.values()) if of_lease is not None else []

    def of_holder(self, holder: Holder) -> list[Reservation]:
        """Records of one member of one grant that take part of a device."""
        return [record for record in self.of_lease(holder.lease_id) if record.spec.holder == holder]

    def load_of(self, device_uuid: str) -> DeviceLoad:
        """What is reserved on a device."""
        records = self.on_device(device_uuid)
        there = {record.slice_id for record in records}
        specs = [record.spec for record in records]
        return DeviceLoad(
            sum(spec.share_milli for spec in specs if spec.lender not in there),
            sum(spec.memory_bytes for spec in specs if not (spec.lender_memory and spec.lender in there)),
            len(records),
        )

    def left_of(self, lender: Reservation) -> tuple[int, int]:
        """What others do not use of a slice yet: share in thousandths, and memory in bytes."""
        others = [r.spec for r in self.on_device(lender.spec.device_uuid) if r.spec.lender == lender.slice_id]
        share_milli = lender.spec.share_milli - sum(spec.share_milli for spec in others)
        return share_milli, lender.spec.memory_bytes - sum(s.memory_bytes for s in others if s.lender_memory)
