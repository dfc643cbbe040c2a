"""Turns desired state into reservations, limits and ended processes: the shell around `core.desired` and
`core.reservations`.

Orders are written to disk before they are carried out. Then `core.reservations.next_step` names one action at a time.
Each action may be repeated, so a crash at any moment does no harm: after the restart `next_step` is asked again.

Each slice has a task of its own while there is something to wait for, so that a driver that does not answer delays only
the slices that need it. After each wait a task reads the reservation again: an order may have changed it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from aliquot.agent.bookkeeping import Bookkeeper, Polling
from aliquot.agent.core import reservations
from aliquot.agent.core.desired import Batch, Fence, Verdict, judge
from aliquot.agent.core.model import Actual, Ending, Intent, Reservation, StopOrder
from aliquot.agent.core.reservations import LOOK_AGAIN_S, RETRY_S, Step
from aliquot.agent.hosting.base import Host
from aliquot.agent.parts import Following, Ground, Holding
from aliquot.agent.processes.ending import Ender
from aliquot.agent.serving import Serving
from aliquot.agent.verification import Verifier

log = logging.getLogger(__name__)

RESTORE_S = 10.0
"""How long the start waits for limits to be set again; a device that is slower must not keep the others waiting."""
VERIFY_S = 1.0
"""How often limits are read back."""
WATCH_S = 0.05
"""The shortest time between two checks of processes that are being ended."""
WATCH_MAX_S = 1.0
WATCH_PART = 4
"""Slow ones are checked less often, since a check may read all processes of the machine: at intervals of this part of
the time that they have taken so far.
"""

WAITING_STEPS = frozenset({Step.SET_LIMIT, Step.SERVE, Step.CLEAR_LIMIT, Step.CONCLUDE})
"""Those that wait for a driver, a disk or a process."""


class Controller:
    """The only writer of reservations. Use from one event loop."""

    def __init__(self, ground: Ground, following: Following, holding: Holding, host: Host, poller: Polling) -> None:
        self._state, self._identity, self._checkpoint = ground.state, ground.identity, ground.checkpoint
        self._containment, self._attachments = following.containment, following.attachments
        self._limits = holding.limits
        state, world, mailbox = ground.state, ground.world, holding.mailbox
        self._ender = Ender(state, self._containment, holding.signaller, world.processes, world.monotonic_s)
        self._books = books = Bookkeeper(
            state=state, checkpoint=ground.checkpoint, ender=self._ender, poller=poller, mailbox=mailbox
        )
        self._world = world
        self._clock = world.clock
        self._wakeup = holding.condemned
        """Set by whoever condemns a lease, too."""
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """By slice id: those that a task works on now."""
        self._revoking: asyncio.Task[None] | None = None
        self._due_s: dict[str, float] = {}
        """When slices are to be looked at again, by the monotonic clock; those that are not here: at once."""
        self._serving = Serving(state, books, host, mailbox, world, look_again=self._look_again)
        self._verifier = Verifier(state, self._limits, host, limit_lost=self._limit_lost, not_served=self._serving.lost)
        self._lived: set[str] = set()
        """Slices whose limit was set once, perhaps before this agent started: processes may run on them."""

    # ----------------------------------------------------------------------------------------------------
    # orders

    @property
    def leader_epoch(self) -> int:
        """The highest obeyed."""
        return self._identity.leader_epoch

    async def follow(self, leader_epoch: int) -> None:
        """A coordinator leads in this epoch: from now on no lower one is obeyed."""
        async with self._books.writing:
            await self._obey_leader(leader_epoch)

    async def obey(self, batch: Batch, session_epoch: int) -> Verdict:
        """Carry out one message of desired state: durable when this returns, acted on soon after."""
        async with self._books.writing:
            fence = Fence(self._identity.leader_epoch, session_epoch)
            now_ms = self._clock.monotonic_ms()
            verdict = judge(self._state.book, fence, batch, self._state.infos(), now_ms)
            for refusal in verdict.refusals:
                log.warning("refused %s: %s: %s", refusal.slice_id or "an order", refusal.reason, refusal.detail)
            await self._obey_leader(verdict.leader_epoch)
            known = {record.slice_id for record in self._state.book}
            records = await self._books.persist(verdict.records)
            for record in records:
                self._books.put(record)
            for slice_id in verdict.forgotten:
                self._state.book.forget(slice_id)
            for slice_id in verdict.quarantined:
                log.warning("slice %s is unknown to the coordinator: quarantined, it runs on under its limit", slice_id)
            # New slices are reported when their limit is set; changes of known ones at once.
            told = [record for record in records if record.intent is not Intent.RUN or record.slice_id in known]
            repeated = [self._state.book.get(slice_id) for slice_id in verdict.repeats]
            self._books.report(*told, *(record for record in repeated if record is not None))
        self._look_again()
        return verdict

    async def _obey_leader(self, leader_epoch: int) -> None:
        try:
            await asyncio.to_thread(self._identity.obey, leader_epoch)
        except OSError as error:
            # To refuse every order, also to stop, would be worse than to obey a deposed leader after a crash.
            log.error("leader epoch %d could not be written down: %s", leader_epoch, error)  # noqa: TRY400

    # ---------------------------------------------------------------------------------------------------
    # actions

    async def restore(self) -> None:
        """Load the reservations from disk, and set their limits again."""
        records = await asyncio.to_thread(self._checkpoint.load)
        for record in records:
            self._state.book.put(record)
            self._lived.add(record.slice_id)
        await self._serving.restore(records)
        self._state.happened.extend(self._checkpoint.notes)
        if records:
            log.info("%d reservations restored from %s", len(records), self._checkpoint.directory)
        self._start_due()
        if self._tasks:
            await asyncio.wait(self._tasks.values(), timeout=RESTORE_S)

    async def run(self) -> None:
        """Carry out what is to be done, for ever."""
        verify_at = 0.0
        try:
            while True:
                self._wakeup.clear()
                if self._state.condemned and (self._revoking is None or self._revoking.done()):
                    self._revoking = asyncio.create_task(self._revoke(), name="revoke")
                wait_s = self._start_due()
                if self._world.monotonic_s() >= verify_at:
                    self._verifier.begin()
                    verify_at = self._world.monotonic_s() + VERIFY_S
                if self._state.book.holders():  # else there is nothing to look after until an order comes
                    wait_s = min(wait_s, verify_at - self._world.monotonic_s())
                await self._wakeup.wait(wait_s)
        finally:
            self._verifier.cancel()
            self._serving.cancel()
            for task in self._tasks.values():
                task.cancel()
            if self._revoking is not None:
                self._revoking.cancel()

    async def _revoke(self) -> None:
        """End all that condemned leases have here, for good, whatever the coordinator may still order."""
        async with self._books.writing:
            now_ms, changed = self._clock.monotonic_ms(), []
            for lease_id, why in self._state.condemned.items():
                for record in self._state.book.of_lease(lease_id):
                    revoked = reservations.give_up(record, StopOrder(now_ms, 0, why), reservations.OVER_LIMIT, why)
                    changed += [revoked] if revoked != record else []
            self._state.condemned.clear()
            records = await self._books.persist(tuple(changed))
            for record in records:
                self._books.put(record)
            self._books.report(*records)
        self._look_again()

    def _limit_lost(self, record: Reservation) -> None:
        log.error("the limit of slice %s is not in force any more", record.slice_id)
        self._books.note(record.slice_id, limit_set=False, tier=None)
        self._books.report(record)
        self._look_again()

    def set_again(self, records: Sequence[Reservation]) -> None:
        """Set the limits of slices once more: a cgroup has come to their member, which may need one of its own."""
        for record in records:
            self._books.note(record.slice_id, limit_set=False)
        self._look_again()

    def _look_again(self) -> None:
        """Something has changed: check every slice that may need something now."""
        self._due_s.clear()
        self._wakeup.set()

    def _start_due(self) -> float:
        """Start whatever slices need now. Returns after how many seconds to check again."""
        again_s = LOOK_AGAIN_S
        for record in self._state.book.holding():
            slice_id = record.slice_id
            if slice_id in self._tasks:
                continue
            if self._at_rest(record):
                self._due_s.pop(slice_id, None)
                continue
            wait_s = self._due_s.get(slice_id, 0.0) - self._world.monotonic_s()
            if wait_s <= 0:
                wait_s = self._start(record)
            again_s = min(again_s, wait_s)
        return again_s

    def _start(self, record: Reservation) -> float:
        """Do at once what needs no waiting; start a task for what does. Returns after how many seconds to check the
        slice again.
        """
        try:
            step = reservations.next_step(record, self._observed(record), self._clock.monotonic_ms())
            if step in WAITING_STEPS:
                task = asyncio.create_task(self._work_on(record.slice_id), name=f"slice {record.slice_id}")
                self._tasks[record.slice_id] = task
                return LOOK_AGAIN_S
            again_s = self._end_processes(record, step)
        except Exception:  # a defect with one slice must not hold up the others
            log.exception("processes of slice %s can't be ended", record.slice_id)
            again_s = RETRY_S
        self._due_s[record.slice_id] = self._world.monotonic_s() + again_s
        return again_s

    def _at_rest(self, record: Reservation) -> bool:
        """Whether a slice needs nothing, as most of them most of the time."""
        if record.intent is Intent.STOP:
            return False  # its processes must be looked for first
        actual = self._state.actual_of(record.slice_id)
        return reservations.next_step(record, actual, self._clock.monotonic_ms()) is Step.NOTHING

    async def _work_on(self, slice_id: str) -> None:
        """Do all that one slice needs now."""
        again_s = RETRY_S
        try:
            again_s = await self._advance(slice_id)
        except Exception:  # a defect with one slice must not hold up the others
            log.exception("slice %s can't be advanced", slice_id)
        finally:
            del self._tasks[slice_id]
        self._due_s[slice_id] = self._world.monotonic_s() + again_s
        self._wakeup.set()

    async def _advance(self, slice_id: str) -> float:
        """Returns after how many seconds to check the slice again."""
        while True:
            current = self._state.book.get(slice_id)
            if current is None:
                return LOOK_AGAIN_S
            step = reservations.next_step(current, self._observed(current), self._clock.monotonic_ms())
            if step is Step.NOTHING:
                return LOOK_AGAIN_S
            if step is Step.SET_LIMIT:
                done = await self._set_limit(current)
            elif step is Step.SERVE:
                wait_s = self._serving.wait_s(current)
                if wait_s > 0:
                    return wait_s
                await self._serving.start(current)
                done = True
            elif step is Step.CLEAR_LIMIT:
                done = await self._clear_limit(current)
            elif step is Step.CONCLUDE:
                done = await self._finish(slice_id, self._concluded)
            else:
                return self._end_processes(current, step)
            # When an order came during the wait, the record is another one: go on at once.
            if not done and self._state.book.get(slice_id) is current:
                return RETRY_S

    def _observed(self, record: Reservation) -> Actual:
        """What is true of a slice now. Its processes are only searched for while it is being stopped."""
        actual = self._state.actual_of(record.slice_id)
        if record.intent is Intent.STOP:
            live = self._ender.live(record)
            live_processes = None if live is None else len(live)
            if live_processes != actual.live_processes:
                self._books.note(record.slice_id, live_processes=live_processes)
        return self._state.actual_of(record.slice_id)

    def _watch_s(self, record: Reservation, step: Step) -> float:
        """How long to wait before processes that are being ended are checked again."""
        if record.stop is None:
            return WATCH_S
        ending_s = (self._clock.monotonic_ms() - record.stop.learned_ms) / 1000
        grace_s = record.stop.grace_ms / 1000
        if step is Step.KILL:
            return min(WATCH_MAX_S, max(WATCH_S, (ending_s - grace_s) / WATCH_PART))
        return min(WATCH_MAX_S, max(WATCH_S, ending_s / WATCH_PART), max(WATCH_S, grace_s - ending_s))

    def _end_processes(self, record: Reservation, step: Step) -> float:
        """Signal what has to go. Returns after how many seconds to check again."""
        if step is Step.KILL:
            self._ender.kill(record)
            self._report_survivors(record)
            return self._watch_s(record, step)
        # Each process once, also those that were born after the first SIGTERM.
        self._ender.ask(record)
        if step is Step.ASK_TO_END:
            self._books.note(record.slice_id, asked_to_end=True)
        return self._watch_s(record, step)

    def _report_survivors(self, record: Reservation) -> None:
        subject = f"survivors {record.slice_id}"
        text = self._ender.survivors(record)
        if text and self._state.notes.get(subject) != text:
            self._state.note(subject, text)
            log.error("slice %s: %s", record.slice_id, text)
            self._books.report(record, detail=text)

    async def _set_limit(self, record: Reservation) -> bool:
        """Returns False when it must be tried again."""
        slice_id = record.slice_id
        outcome = await self._limits.set(record)
        current = self._state.book.get(slice_id)
        if current is None:
            return True
        if outcome.tier is not None:
            self._books.note(slice_id, limit_set=True, tier=outcome.tier, tier_notes=outcome.tier_notes)
            self._lived.add(slice_id)
            if reservations.is_served(current, self._state.actual_of(slice_id)):
                self._books.report(current)
            else:
                self._look_again()  # this may have been the last slice of its member
            return True
        if slice_id in self._lived:
            # Its processes may still hold memory, so the slice can't be reported as failed.
            if self._state.actual_of(slice_id).tier_notes != (outcome.detail,):
                log.error("the limit of slice %s can't be set again: %s", slice_id, outcome.detail)
                self._books.note(slice_id, tier_notes=(outcome.detail,))
                self._books.report(current)
            return False
        return await self._finish(slice_id, lambda now: reservations.fail(now, outcome.reason, outcome.detail))

    async def _clear_limit(self, record: Reservation) -> bool:
        if not await self._limits.clear(record, self._state.actual_of(record.slice_id)):
            return False
        self._books.note(record.slice_id, limit_set=False)
        return True

    def _concluded(self, record: Reservation) -> Reservation:
        """The ended record, or the record unchanged while something is left of the slice."""
        step = reservations.next_step(record, self._observed(record), self._clock.monotonic_ms())
        return reservations.conclude(record) if step is Step.CONCLUDE else record

    async def _finish(self, slice_id: str, end: Callable[[Reservation], Reservation]) -> bool:
        """Nothing is held any more: remove the file, then report it. False: an order came meanwhile."""
        async with self._books.writing:
            current = self._state.book.get(slice_id)
            if current is None or not current.holds or (ended := end(current)).holds:
                return False
            await self._books.remove(slice_id)
            ended = replace(ended, energy_mj=self._state.actual_of(slice_id).energy_mj)
            self._books.put(ended)
            self._lived.discard(slice_id)
            self._serving.forget(slice_id)
            self._ender.forget(slice_id)
            self._state.note(f"survivors {slice_id}", "")
            self._state.actual.pop(slice_id, None)
            holder = ended.spec.holder
            last = not self._state.held(holder)
            if last:
                self._containment.release(holder)
            if not self._state.book.of_lease(holder.lease_id):
                self._attachments.forget(holder.lease_id)
        if last and ended.spec.serve:
            await self._serving.stop(holder)
        if ended.ending is Ending.FAILED:
            log.error("slice %s failed: %s: %s", slice_id, ended.reason, ended.detail)
        else:
            log.info("slice %s is gone", slice_id)
        self._books.report(ended)
        if not self._state.held(ended.spec.holder):
            await self._limits.forget(ended.spec.holder)
        return True
