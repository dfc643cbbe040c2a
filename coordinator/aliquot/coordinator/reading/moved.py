"""What processes that serve leases count, as their agents last said; and bytes moved, for the books.

Agents tell sums that rise as long as a process lives. What it had moved before this coordinator began is in the books
already, or lost with the coordinator before: nobody is charged by it.
"""

from __future__ import annotations

from aliquot.coordinator.core.books.leases.records import Lease, Slice
from aliquot.v1 import types_pb2


class ServedUses:
    """See the module's docstring. `began_ms`: when this coordinator did."""

    def __init__(self, began_ms: int) -> None:
        self._began_ms = began_ms
        self._latest: dict[str, types_pb2.ServedUse] = {}

    def __len__(self) -> int:
        return len(self._latest)

    def latest(self, slice_id: str) -> types_pb2.ServedUse | None:
        """What was last said of the member whose first slice this is; None: nothing."""
        return self._latest.get(slice_id)

    def saw(self, piece: Slice, use: types_pb2.ServedUse, now_ms: int) -> tuple[int, int]:
        """An agent has said it. Returns the bytes that moved since it said so before, up and down."""
        before = self._latest.get(piece.slice_id)
        kept = types_pb2.ServedUse()
        kept.CopyFrom(use)
        kept.observed_ms = now_ms
        self._latest[piece.slice_id] = kept
        if before is None:
            return (use.up_bytes, use.down_bytes) if piece.since_ms >= self._began_ms else (0, 0)
        return _risen(before.up_bytes, use.up_bytes), _risen(before.down_bytes, use.down_bytes)

    def lease_changed(self, old: Lease, running: set[str]) -> None:
        """Of the lease's slices only these run."""
        for piece in old.slices:
            if piece.slice_id not in running:
                self._latest.pop(piece.slice_id, None)


def _risen(before: int, now: int) -> int:
    """What a sum has risen by; one that has fallen is another process's."""
    return now - before if now >= before else now
