"""Whether commands are carried out, why not, and how the State is read again after the journal has failed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from aliquot.coordinator.core.state import State
from aliquot.coordinator.errors import JournalUnavailable, NotLeader, ShuttingDown
from aliquot.coordinator.writing.interfaces import WriterConfig
from aliquot.coordinator.writing.journal.thread import JournalWorker

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Availability:
    """Whether commands are carried out, and why not."""

    stopping: bool = False
    """Whether this coordinator is shutting down."""
    stuck: bool = False
    """Whether a write does not come to an end."""
    failure: Exception | None = None
    """What ended the State that was in memory, until it is read again."""
    failure_reason: str = ""
    """That, or why reading it again failed, for people."""

    @property
    def reason(self) -> str:
        """Why commands are not carried out, for people; empty while they are."""
        if self.stopping:
            return "shutting down"
        if self.stuck and not self.failure_reason:
            return "a write to the journal takes longer than 3 s: is its disk, or its database, overloaded or gone?"
        return self.failure_reason

    def refusal(self) -> JournalUnavailable | ShuttingDown:
        """What callers are told who ask for something now."""
        if self.stopping:
            return ShuttingDown("this coordinator is shutting down", hint="try again in a moment")
        return JournalUnavailable(
            f"nothing is granted: {self.reason}",
            hint="running jobs are not affected; it is retried by itself, so send the request again",
        )

    def fail(self, error: Exception) -> None:
        """The State in memory is of no more use."""
        # The commit that was under way when leadership was lost may fail for another reason: nothing to recover from.
        if not isinstance(self.failure, NotLeader):
            self.failure, self.failure_reason = error, str(error)


async def recover(
    availability: Availability,
    thread: JournalWorker,
    read: Callable[[], State],
    wake: asyncio.Event,
    config: WriterConfig,
) -> State | None:
    """Try `read` until it works, less often the longer that takes; gives the State, or None once `stopping`.

    Raises NotLeader when it is no longer ours to write.
    """
    delay_ms = config.retry_first_ms
    while True:
        if isinstance(availability.failure, NotLeader):
            raise availability.failure
        if availability.stopping:
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_ms / 1000):
                await wake.wait()
        wake.clear()
        delay_ms = min(delay_ms * 2, config.retry_max_ms)
        try:
            state = await thread.run(read)
        except NotLeader:
            raise
        except Exception as error:  # noqa: BLE001 - whatever is wrong with the journal, keep saying so and trying
            availability.failure_reason = str(error)
            log.warning("the journal still can't be used: %s", error)
            continue
        if isinstance(availability.failure, NotLeader):  # lost while the journal was being read
            raise availability.failure
        return state
