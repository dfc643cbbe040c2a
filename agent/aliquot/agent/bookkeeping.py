"""The reservations in memory, on disk and as they are reported: whoever changes one does so here."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Protocol

import msgspec
from msgspec.structs import replace

from aliquot.agent.core import reservations
from aliquot.agent.core.model import Intent, Reservation
from aliquot.agent.core.reports import report_of
from aliquot.agent.disk.checkpoint import Checkpoint
from aliquot.agent.duties import RECORDS
from aliquot.agent.mailbox import Mailbox
from aliquot.agent.processes.ending import Ender
from aliquot.agent.state import NodeState

log = logging.getLogger(__name__)

MAX_ENDED = 10_000
"""Endings kept until they are settled; the oldest beyond that are forgotten, and asked about again by the coordinator.
"""


class Polling(Protocol):
    """What a new reservation means to the poller."""

    def poll_soon(self, uuid: str) -> None:
        """This device has a new reservation: it is polled more often from now on."""

    def mark_unusable(self, reason: str) -> None:
        """Nothing new can be held on this node."""


class Bookkeeper(msgspec.Struct, eq=False, kw_only=True):
    """See the module's docstring. Use from one event loop."""

    state: NodeState
    checkpoint: Checkpoint
    ender: Ender
    poller: Polling
    mailbox: Mailbox
    writing: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    """Held while the reservations and their files change together; never during a call into a driver."""

    async def persist(self, records: tuple[Reservation, ...]) -> list[Reservation]:
        """Write what is held to disk. New slices that can't be written fail; orders about known ones are
        obeyed all the same, since a stop must not wait for a full disk.
        """
        held = [record for record in records if record.holds]
        try:
            await asyncio.to_thread(self.checkpoint.save, held)
        except OSError as error:
            detail = f"{self.checkpoint.directory}: {error.strerror}"
            self.state.duties.tell(RECORDS, f"reservations can't be written down: {detail}")
            refused = [record.slice_id for record in held if record.slice_id not in self.state.book]
            if refused:
                # Some of them may have been written: the next agent would take up what fails now.
                with contextlib.suppress(OSError):
                    await asyncio.to_thread(self.checkpoint.forget, refused)
                # Else the pool would go on placing leases here, and each would fail.
                self.poller.mark_unusable(f"reservations can't be written down: {detail}")
            return [
                record
                if not record.holds or record.slice_id in self.state.book
                else reservations.fail(record, "CHECKPOINT", detail)
                for record in records
            ]
        self.state.duties.tell(RECORDS)
        return list(records)

    async def remove(self, slice_id: str) -> None:
        """Nothing is held any more: its file goes."""
        try:
            await asyncio.to_thread(self.checkpoint.forget, [slice_id])
        except OSError as error:
            # After a crash it would be restored, and the coordinator, which does not know it, would stop it.
            log.error("the record of slice %s could not be removed: %s", slice_id, error)  # noqa: TRY400

    def put(self, record: Reservation) -> None:
        """From now on this is what is true of a slice's reservation; the caller holds `writing`."""
        book = self.state.book
        known = book.get(record.slice_id)
        if known is not None and known.intent is Intent.STOP and record.intent is Intent.RUN:
            log.info("slice %s is reprieved", record.slice_id)
            self.note(record.slice_id, asked_to_end=False)
            self.ender.forget(record.slice_id)
        book.put(record)
        if known is None and record.holds:
            self.poller.poll_soon(record.spec.device_uuid)
        if len(book) > MAX_ENDED:
            ended = [other.slice_id for other in book if not other.holds]
            for slice_id in ended[: max(0, len(ended) - MAX_ENDED)]:
                book.forget(slice_id)

    def note(self, slice_id: str, **changed: object) -> None:
        """Record what has become true of a slice; all else that is known of it stays as it is now."""
        self.state.actual[slice_id] = replace(self.state.actual_of(slice_id), **changed)

    def report(self, *records: Reservation, detail: str = "") -> None:
        """Tell the coordinator how these are now."""
        if records:
            actual_of = self.state.actual_of
            self.mailbox.confirm(report_of(record, actual_of(record.slice_id), detail=detail) for record in records)
