"""Keeps the journal short: starts the snapshotter when enough has happened, and lets the writer prune afterwards."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from aliquot.common.errors import AliquotError
from aliquot.coordinator.programmes import ProgrammeError, run_programme

log = logging.getLogger(__name__)

SNAPSHOTTER = "aliquot.coordinator.writing.journal.snapshotter"


class Compaction:
    """Looks every few seconds. One snapshotter at a time; it is ended with the coordinator.

    `journal` is what the snapshotter takes as its argument; `snapshots` gives the facts of which there are some, newest
    first.
    """

    def __init__(
        self,
        journal: str,
        snapshots: Callable[[], list[int]],
        *,
        every_facts: int,
        durable_seq: Callable[[], int],
        prune: Callable[[int], None],
        tell: Callable[[str, str], None],
        look_every_s: float = 5.0,
    ) -> None:
        """`tell` is told of the duty `snapshots`, and why it fails."""
        self._tell = tell
        self._journal = journal
        self._snapshots = snapshots
        self._every_facts = every_facts
        self._durable_seq = durable_seq
        self._prune = prune
        self._look_every_s = look_every_s

    async def run(self) -> None:
        """Until cancelled. What fails, because the database or the disk is away, is tried again later."""
        snapshot_seq: int | None = None
        while True:
            await asyncio.sleep(self._look_every_s)
            try:
                if snapshot_seq is None:
                    snapshot_seq = next(iter(await asyncio.to_thread(self._snapshots)), 0)
                seq = self._durable_seq()
                if seq - snapshot_seq >= self._every_facts:
                    snapshot_seq = seq  # also after a failure: the next try is as far away as the next success would be
                    await self._compact()
            except (AliquotError, OSError) as error:
                self._tell("snapshots", f"the journal could not be made shorter: {error}")

    async def _compact(self) -> None:
        try:
            done = await run_programme(SNAPSHOTTER, b"", self._journal, within_s=None)
        except ProgrammeError as error:
            self._tell("snapshots", f"no snapshot could be taken: {error}")
            return
        self._tell("snapshots", "")
        log.info("snapshot taken: %s", done.decode(errors="replace").strip())
        seqs = await asyncio.to_thread(self._snapshots)
        if len(seqs) > 1:
            self._prune(seqs[1])
