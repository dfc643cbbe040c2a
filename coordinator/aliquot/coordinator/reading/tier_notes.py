"""Why no stronger tier enforces a slice, as its agent reports with each confirmation. For people only: not journalled.

It comes back with the agents' next snapshots. The same few sentences hold for thousands of slices: each is kept once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from aliquot.common.names import plain_text
from aliquot.coordinator.core.books.leases.records import Lease, lease_id_of
from aliquot.v1 import agent_pb2

NOTES_MAX = 8
"""Of one slice: there are no more tiers than that."""
NOTE_CHARS_MAX = 256
SENTENCES_MAX = 4096
"""Different sets of sentences; beyond that they are kept with each slice."""

Notes = tuple[str, ...]


class TierNotes:
    """See the module's docstring. No more than the slices there are."""

    def __init__(self, lease_of: Callable[[str], Lease | None]) -> None:
        """`lease_of` gives the durable lease of an id."""
        self._lease_of = lease_of
        self._of_slice: dict[str, Notes] = {}
        self._once: dict[Notes, Notes] = {}

    def __len__(self) -> int:
        return len(self._of_slice)

    def of(self, slice_id: str) -> Notes:
        """A line for each stronger tier, strongest first; empty: none, or its agent has not said."""
        return self._of_slice.get(slice_id, ())

    def note(self, node_id: str, reports: Iterable[agent_pb2.SliceReport]) -> None:
        """Keep what a node's agent says of its slices."""
        for report in reports:
            if report.tier_notes or report.slice_id in self._of_slice:
                self._note(node_id, report)

    def _note(self, node_id: str, report: agent_pb2.SliceReport) -> None:
        lease = self._lease_of(lease_id_of(report.slice_id))
        piece = lease.find(report.slice_id) if lease is not None else None
        if piece is None or piece.plan.node_id != node_id or not piece.holds_capacity:
            return
        notes = tuple(plain_text(note, NOTE_CHARS_MAX) for note in report.tier_notes[:NOTES_MAX])
        if not notes:
            self._of_slice.pop(report.slice_id, None)
            return
        if len(self._once) >= SENTENCES_MAX:
            self._once.clear()
        self._of_slice[report.slice_id] = self._once.setdefault(notes, notes)

    def lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        """Slices that have ended are forgotten."""
        if not self._of_slice or old is None or (new is not None and old.slices is new.slices):
            return
        held = {piece.slice_id for piece in new.slices if piece.holds_capacity} if new is not None else set()
        for piece in old.slices:
            if piece.slice_id not in held:
                self._of_slice.pop(piece.slice_id, None)
