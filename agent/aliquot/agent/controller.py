"""Turns desired state into reservations, limits and ended processes: the shell around `core.desired` and
`core.reservations`.

Orders are written to disk before they are acted on. From there on `core.reservations.next_step` names one
action after the other, each of which may be repeated, so it does not matter where a crash falls: the next
start asks again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from msgspec.structs import replace

from aliquot.agent.attachments import Attachments
from aliquot.agent.bell import Bell
from aliquot.agent.checkpoint import Checkpoint
from aliquot.agent.containment import Containment
from aliquot.agent.core import reservations
from aliquot.agent.core.desired import Batch, Fence, Verdict, judge
from aliquot.agent.core.model import Actual, Ending, Intent, Reservation
from aliquot.agent.core.reports import ReportLine, report_of
from aliquot.agent.core.reservations import Step
from aliquot.agent.ending import Ender
from aliquot.agent.identity import Identity
from aliquot.agent.limits_setter import LimitSetter
from aliquot.agent.state import NodeState
from aliquot.common.clock import Clock

log = logging.getLogger(__name__)

MAX_ENDED = 10_000
"""Endings kept until they are settled; the oldest beyond that are forgotten, and asked about again by the
coordinator.
"""

RETRY_S = 2.0
VERIFY_S = 1.0
"""How often limits are read back."""
WATCH_S = 0.05
"""How soon processes that are being ended are looked at again, and how often to begin with."""
WATCH_MAX_S = 1.0
WATCH_PART = 4
"""Those that take their time are looked at less often: each look may cost one at all processes of the machine. Their
end is known of at most this part of the time later that it took.
"""


class Controller:
    """The only writer of reservations. Use from one event loop."""

    def __init__(
        self,
        *,
        state: NodeState,
        identity: Identity,
        checkpoint: Checkpoint,
        containment: Containment,
        attachments: Attachments,
        limits: LimitSetter,
        ender: Ender,
        clock: Clock,
    ) -> None:
        self._state = state
        self._identity = identity
        self._checkpoint = checkpoint
        self._containment = containment
        self._attachments = attachments
        self._limits = limits
        self._ender = ender
        self._clock = clock
        self._lock = asyncio.Lock()
        self._kicked = Bell()
        self._lived: set[str] = set()
        """Slices whose limit was set once, or may have been before this agent started: processes may run on
        them.
        """
        self.reports = ReportLine()
        self.on_report: Callable[[], None] = lambda: None
        """Called when there is something to send."""
        self.on_reserved: Callable[[str], None] = lambda device_uuid: None
        """Called with a device of which there is a new reservation."""
        self.on_unwritable: Callable[[str], None] = lambda reason: None
        """Called when new reservations can't be written down."""

    # ----------------------------------------------------------------------------------------------------
    # orders

    @property
    def leader_epoch(self) -> int:
        """The highest obeyed."""
        return self._identity.leader_epoch

    async def follow(self, leader_epoch: int) -> None:
        """A coordinator leads in this epoch: from now on no lower one is obeyed."""
        async with self._lock:
            await self._obey_leader(leader_epoch)

    async def obey(self, batch: Batch, session_epoch: int) -> Verdict:
        """Carry out one message of desired state: durable when this returns, acted on soon after."""
        async with self._lock:
            fence = Fence(self._identity.leader_epoch, session_epoch)
            now_ms = self._clock.monotonic_ms()
            verdict = judge(self._state.book, fence, batch, self._state.infos(), now_ms)
            for refusal in verdict.refusals:
                log.warning("refused %s: %s: %s", refusal.slice_id or "an order", refusal.reason, refusal.detail)
            await self._obey_leader(verdict.leader_epoch)
            known = {record.slice_id for record in self._state.book}
            records = await self._persist(verdict.records)
            for record in records:
                self._put(record)
            for slice_id in verdict.forgotten:
                self._state.book.forget(slice_id)
            for slice_id in verdict.quarantined:
                log.warning("slice %s is unknown to the coordinator: quarantined, it runs on under its limit", slice_id)
            # New slices are told of when their limit is set; what changes about known ones is news at once.
            told = [record for record in records if record.intent is not Intent.RUN or record.slice_id in known]
            repeated = [self._state.book.get(slice_id) for slice_id in verdict.repeats]
            self._report(*told, *(record for record in repeated if record is not None))
        self._kicked.ring()
        return verdict

    async def _obey_leader(self, leader_epoch: int) -> None:
        try:
            await asyncio.to_thread(self._identity.obey, leader_epoch)
        except OSError as error:
            # Refusing every order, stops included, would be worse than obeying an older leader after a crash.
            log.error("leader epoch %d could not be written down: %s", leader_epoch, error)  # noqa: TRY400

    async def _persist(self, records: tuple[Reservation, ...]) -> list[Reservation]:
        """Write what is held to disk. New slices that can't be written fail; orders about known ones are
        obeyed all the same, since a stop must not wait for a full disk.
        """
        held = [record for record in records if record.holds]
        try:
            await asyncio.to_thread(self._checkpoint.save, held)
        except OSError as error:
            log.error("%d reservations could not be written: %s", len(held), error)  # noqa: TRY400
            detail = f"{self._checkpoint.directory}: {error.strerror}"
            if any(record.slice_id not in self._state.book for record in held):
                # Or the emptiest node of the pool would go on failing one lease after the other.
                self.on_unwritable(f"reservations can't be written down: {detail}")
            return [
                record
                if not record.holds or record.slice_id in self._state.book
                else reservations.fail(record, "CHECKPOINT", detail)
                for record in records
            ]
        return list(records)

    def _put(self, record: Reservation) -> None:
        known = self._state.book.get(record.slice_id)
        if known is not None and known.intent is Intent.STOP and record.intent is Intent.RUN:
            log.info("slice %s is reprieved", record.slice_id)
            actual = self._state.actual_of(record.slice_id)
            self._state.actual[record.slice_id] = replace(actual, asked_to_end=False)
            self._ender.forget(record.slice_id)
        self._state.book.put(record)
        if known is None and record.holds:
            self.on_reserved(record.spec.device_uuid)
        if len(self._state.book) > MAX_ENDED:
            ended = [other.slice_id for other in self._state.book if not other.holds]
            for slice_id in ended[: max(0, len(ended) - MAX_ENDED)]:
                self._state.book.forget(slice_id)

    # ---------------------------------------------------------------------------------------------------
    # actions

    async def restore(self) -> None:
        """Take up the reservations on disk, and set their limits again."""
        records = await asyncio.to_thread(self._checkpoint.load)
        for record in records:
            self._state.book.put(record)
            self._lived.add(record.slice_id)
        self._state.happened.extend(self._checkpoint.notes)
        if records:
            log.info("%d reservations taken up from %s", len(records), self._checkpoint.directory)
        await self._settle()

    async def run(self) -> None:
        """Carry out what is to be done, for ever."""
        verify_at = 0.0
        while True:
            self._kicked.hush()
            wait_s = await self._settle()
            if time.monotonic() >= verify_at:
                await self.verify()
                verify_at = time.monotonic() + VERIFY_S
            if self._state.book.holders():  # else there is nothing to look after until an order comes
                wait_s = min(wait_s, verify_at - time.monotonic())
            await self._kicked.wait(wait_s)

    async def verify(self) -> None:
        """Look whether every limit is still in force; one that is not is told of, and set again."""
        holding = [record for record in self._state.book.holding() if record.intent is Intent.RUN]
        for record in await self._limits.broken([record for record in holding if self._is_set(record)]):
            async with self._lock:
                current = self._state.book.get(record.slice_id)
                if current is None or current.intent is not Intent.RUN or not self._is_set(current):
                    continue
                log.error("the limit of slice %s is not in force any more", record.slice_id)
                actual = self._state.actual_of(record.slice_id)
                self._state.actual[record.slice_id] = replace(actual, limit_set=False, tier=None)
                self._report(current)
                self._kicked.ring()

    def _is_set(self, record: Reservation) -> bool:
        return self._state.actual_of(record.slice_id).limit_set

    async def _settle(self) -> float:
        """Do all there is to do now. Returns after how many seconds to look again."""
        async with self._lock:
            again_s = 60.0
            for record in self._state.book:
                if self._at_rest(record):
                    continue
                try:
                    again_s = min(again_s, await self._advance(record))
                except Exception:  # what is wrong with one slice must not keep the others from being served
                    log.exception("slice %s can't be advanced", record.slice_id)
                    again_s = min(again_s, RETRY_S)
        return again_s

    def _at_rest(self, record: Reservation) -> bool:
        """Whether there is nothing to do about a slice, as about most of them most of the time."""
        if record.intent is Intent.STOP:
            return False  # its processes must be looked for first
        actual = self._state.actual_of(record.slice_id)
        return reservations.next_step(record, actual, self._clock.monotonic_ms()) is Step.NOTHING

    async def _advance(self, record: Reservation) -> float:
        """Take one slice as far as it goes. Returns after how many seconds to look at it again."""
        slice_id = record.slice_id
        while True:
            current = self._state.book.get(slice_id)
            if current is None:
                return 60.0
            actual = self._observed(current)
            step = reservations.next_step(current, actual, self._clock.monotonic_ms())
            if step is Step.NOTHING:
                return 60.0
            if step is Step.SET_LIMIT:
                if not await self._set_limit(current, actual):
                    return RETRY_S
            elif step is Step.CLEAR_LIMIT:
                if not await self._limits.clear(current, actual):
                    return RETRY_S
                self._state.actual[slice_id] = replace(actual, limit_set=False)
            elif step is Step.CONCLUDE:
                await self._conclude(current)
                return 60.0
            else:
                self._end_processes(current, step)
                return self._watch_s(current, step)

    def _observed(self, record: Reservation) -> Actual:
        """What is true of a slice now; its processes are only looked for while it is being stopped."""
        actual = self._state.actual_of(record.slice_id)
        if record.intent is Intent.STOP:
            live = self._ender.live(record)
            live_processes = None if live is None else len(live)
            if live_processes != actual.live_processes:
                actual = replace(actual, live_processes=live_processes)
                self._state.actual[record.slice_id] = actual
        return actual

    def _watch_s(self, record: Reservation, step: Step) -> float:
        """For how long processes that are being ended are left alone."""
        if record.stop is None:
            return WATCH_S
        ending_s = (self._clock.monotonic_ms() - record.stop.learned_ms) / 1000
        grace_s = record.stop.grace_ms / 1000
        if step is Step.KILL:
            return min(WATCH_MAX_S, max(WATCH_S, (ending_s - grace_s) / WATCH_PART))
        return min(WATCH_MAX_S, max(WATCH_S, ending_s / WATCH_PART), max(WATCH_S, grace_s - ending_s))

    def _end_processes(self, record: Reservation, step: Step) -> None:
        if step is Step.KILL:
            self._ender.kill(record)
            self._tell_stubborn(record)
            return
        # Asked once each, also those that were born after the first were asked.
        self._ender.ask(record)
        if step is Step.ASK_TO_END:
            actual = self._state.actual_of(record.slice_id)
            self._state.actual[record.slice_id] = replace(actual, asked_to_end=True)

    def _tell_stubborn(self, record: Reservation) -> None:
        subject = f"stubborn {record.slice_id}"
        text = self._ender.stubborn(record)
        if text and self._state.notes.get(subject) != text:
            self._state.notes[subject] = text
            log.error("slice %s: %s", record.slice_id, text)
            self.reports.add([report_of(record, self._state.actual_of(record.slice_id), detail=text)])
            self.on_report()

    async def _set_limit(self, record: Reservation, actual: Actual) -> bool:
        outcome = await self._limits.set(record)
        if outcome.actual is not None:
            self._state.actual[record.slice_id] = outcome.actual
            self._lived.add(record.slice_id)
            self._report(record)
            return True
        if record.slice_id in self._lived:
            # Its processes may be there, so it can't be said that nothing is held.
            if actual.tier_notes != (outcome.detail,):
                log.error("the limit of slice %s can't be set again: %s", record.slice_id, outcome.detail)
                self._state.actual[record.slice_id] = replace(actual, tier_notes=(outcome.detail,))
                self._report(record)
            return False
        await self._finish(reservations.fail(record, outcome.reason, outcome.detail))
        return True

    async def _conclude(self, record: Reservation) -> None:
        await self._finish(reservations.conclude(record))

    async def _finish(self, ended: Reservation) -> None:
        """Nothing is held any more: off the disk, then told."""
        try:
            await asyncio.to_thread(self._checkpoint.forget, [ended.slice_id])
        except OSError as error:
            # After a crash it would be taken up again and, being unknown to the coordinator, stopped again.
            log.error("the record of slice %s could not be removed: %s", ended.slice_id, error)  # noqa: TRY400
        self._put(ended)
        self._lived.discard(ended.slice_id)
        self._ender.forget(ended.slice_id)
        self._state.notes.pop(f"stubborn {ended.slice_id}", None)
        self._state.actual.pop(ended.slice_id, None)
        if not self._state.held(ended.spec.holder):
            self._containment.release(ended.spec.holder)
        if not self._state.book.of_lease(ended.spec.lease_id):
            self._attachments.forget(ended.spec.lease_id)
        if ended.ending is Ending.FAILED:
            log.error("slice %s failed: %s: %s", ended.slice_id, ended.reason, ended.detail)
        else:
            log.info("slice %s is gone", ended.slice_id)
        self._report(ended)

    def _report(self, *records: Reservation) -> None:
        if records:
            self.reports.add(report_of(record, self._state.actual_of(record.slice_id)) for record in records)
            self.on_report()
