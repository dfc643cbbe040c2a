"""Snapshots in PostgreSQL: the very bytes of a snapshot file, in rows of a bounded size, complete or absent."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from psycopg import sql

from aliquot.coordinator.writing.journal.base import StoredSnapshot
from aliquot.coordinator.writing.journal.pglink import Link
from aliquot.coordinator.writing.journal.snapshots import KEPT, pack, unpack

log = logging.getLogger(__name__)

PART_BYTES = 4 << 20

_SEQS = sql.SQL("SELECT DISTINCT seq FROM aliquot.snapshots ORDER BY seq DESC")
_PART = sql.SQL("SELECT parts, data FROM aliquot.snapshots WHERE seq = %s AND part = %s")
_INSERT = sql.SQL("INSERT INTO aliquot.snapshots VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING")
_DROP = sql.SQL("DELETE FROM aliquot.snapshots WHERE seq < %s")


class SnapshotTable:
    """The snapshots of one journal. `reader` lends a connection."""

    def __init__(self, reader: Callable[[], AbstractContextManager[Link]]) -> None:
        self._reader = reader

    def seqs(self) -> list[int]:
        """The sequence numbers there are snapshots of, newest first."""
        with self._reader() as link:
            return [row[0] for row in link.execute(_SEQS)]

    def write(self, stored: StoredSnapshot) -> int:
        """Make a snapshot durable, then drop those beyond `KEPT`; returns its size in bytes."""
        data = pack(stored)
        parts = range(0, len(data), PART_BYTES)
        with self._reader() as link:
            with link.transaction():
                for number, start in enumerate(parts):
                    piece = data[start : start + PART_BYTES]
                    link.execute(_INSERT, (stored.snapshot.seq, number, len(parts), piece))
            seqs = [row[0] for row in link.execute(_SEQS)]
            if len(seqs) > KEPT:
                link.execute(_DROP, (seqs[KEPT - 1],))
        return len(data)

    def read(self) -> Iterator[StoredSnapshot]:
        """Those that can be read, newest first."""
        for seq in self.seqs():
            data = self._bytes(seq)
            stored = unpack(data, f"of fact {seq} in PostgreSQL") if data is not None else None
            if stored is not None:
                yield stored

    def _bytes(self, seq: int) -> bytes | None:
        data = bytearray()
        with self._reader() as link:
            number, parts = 0, 1
            while number < parts:
                rows = link.execute(_PART, (seq, number))
                if not rows:
                    log.warning("snapshot of fact %d in PostgreSQL is incomplete: going back to the one before it", seq)
                    return None
                parts = rows[0][0]
                data += rows[0][1]
                number += 1
        return bytes(data)
