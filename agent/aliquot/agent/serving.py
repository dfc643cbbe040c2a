"""The processes that serve leases used from elsewhere: one for each member, started once all its limits are set.

One that ends is started again after a while. One that could never be started makes its slices fail.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from aliquot.agent.bookkeeping import Bookkeeper
from aliquot.agent.core import reservations
from aliquot.agent.core.model import Holder, Intent, Reservation, StopOrder
from aliquot.agent.core.reservations import LOOK_AGAIN_S, RETRY_S
from aliquot.agent.hosting.base import Host, HostError
from aliquot.agent.hosting.measuring import Measuring
from aliquot.agent.hosting.restarts import Restarts
from aliquot.agent.mailbox import Mailbox
from aliquot.agent.state import NodeState
from aliquot.agent.world import World
from aliquot.common.tiers import NOT_SERVED

log = logging.getLogger(__name__)


class Serving:
    """See the module's docstring. `look_again` is called when slices may need something else than before."""

    def __init__(
        self,
        state: NodeState,
        books: Bookkeeper,
        host: Host,
        mailbox: Mailbox,
        world: World,
        *,
        look_again: Callable[[], None],
    ) -> None:
        self._state = state
        self._books = books
        self._host = host
        self._clock = world.clock
        self._look_again = look_again
        self._restarts = Restarts(world.monotonic_s)
        self._measuring = Measuring(state, host, mailbox, world.monotonic_s)
        self._served: set[str] = set()
        """Slices that were served once, perhaps before this agent started: their clients will come back."""

    async def restore(self, records: Iterable[Reservation]) -> None:
        """These were held when the agent started; what an earlier agent had started for them goes."""
        self._served.update(record.slice_id for record in records if record.spec.serve)
        await self._host.sweep()

    def wait_s(self, record: Reservation) -> float:
        """How long to wait before a slice has its process started; 0: it starts it now.

        One process serves all slices of a member, once all their limits are set: one of them has it started.
        """
        of_member = self._state.running(record.spec.holder)
        if not all(self._is_set(each) for each in of_member):
            return RETRY_S
        unserved = [
            each for each in of_member if not reservations.is_served(each, self._state.actual_of(each.slice_id))
        ]
        if min(unserved, key=lambda each: each.slice_id).slice_id != record.slice_id:
            return LOOK_AGAIN_S
        return self._restarts.wait_s(record.spec.holder)

    async def start(self, record: Reservation) -> None:
        """Start the process of a slice's member, and tell where it listens, or why it does not."""
        slice_id, holder = record.slice_id, record.spec.holder
        try:
            endpoint = await self._host.start(holder, record.spec.serve)
        except HostError as error:
            current = self._state.book.get(slice_id)
            if current is None or current.intent is not Intent.RUN:
                return
            log.error("slice %s can't be served: %s", slice_id, error.message)  # noqa: TRY400
            if slice_id in self._served or current.quarantined:
                self._start_later(holder, error.message)
            else:
                await self._give_up(holder, error.message)
            return
        self._restarts.serves(holder)
        self._measuring.begin(holder)
        for each in self._state.running(holder):
            if self._is_set(each):
                self._served.add(each.slice_id)
                self._books.note(each.slice_id, endpoint=endpoint, unserved="")
                self._books.report(each)

    def cancel(self) -> None:
        """The agent ends; what serves goes on."""
        self._measuring.cancel()

    def lost(self, holder: Holder, problem: str) -> None:
        """A member's process does not answer any more."""
        for record in self._state.running(holder):
            log.error("slice %s is not served any more: %s", record.slice_id, problem)
        self._start_later(holder, problem)

    def forget(self, slice_id: str) -> None:
        """Nothing of a slice is held any more."""
        self._served.discard(slice_id)

    async def stop(self, holder: Holder) -> None:
        """Nothing of a member is held any more: its process goes."""
        self._restarts.forget(holder)
        await self._host.stop(holder)

    def _is_set(self, record: Reservation) -> bool:
        return self._state.actual_of(record.slice_id).limit_set

    def _start_later(self, holder: Holder, problem: str) -> None:
        """A member's process has ended, or could not start: it is started again after a while, and says why."""
        wait_s = self._restarts.ended(holder)
        unserved = f"{NOT_SERVED}, next try after {wait_s:g} s: {problem}"
        for record in self._state.running(holder):
            self._books.note(record.slice_id, endpoint="", unserved=unserved)
            self._books.report(record)
        self._look_again()

    async def _give_up(self, holder: Holder, problem: str) -> None:
        """A member can't be served: its slices fail, once what else was attached to it has ended."""
        async with self._books.writing:
            now_ms = self._clock.monotonic_ms()
            given_up = [
                reservations.give_up(
                    record, StopOrder(now_ms, record.spec.grace_ms, "it can't be served"), "HOST_FAILED", problem
                )
                for record in self._state.running(holder)
            ]
            for record in await self._books.persist(tuple(given_up)):
                self._books.put(record)
        self._look_again()
