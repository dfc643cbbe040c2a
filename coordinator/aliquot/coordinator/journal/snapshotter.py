"""A process of its own that turns a long journal into a short one: `python -m
aliquot.coordinator.journal.snapshotter`.

It reads the journal that a coordinator is writing, replays it from the last snapshot, writes a new snapshot, and
says in one JSON line what it did. It shares nothing with the coordinator but the file, so that the minute of
computing it may take costs the coordinator no pause. What the snapshot makes superfluous is pruned by the
coordinator, the file's one writer.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from pathlib import Path

from aliquot.common.errors import AliquotError
from aliquot.coordinator.core.snapshot import state_hash, to_snapshot
from aliquot.coordinator.core.state import CoreConfig
from aliquot.coordinator.journal.base import StoredSnapshot
from aliquot.coordinator.journal.replay import replay
from aliquot.coordinator.journal.snapshots import SnapshotFolder
from aliquot.coordinator.journal.sqlite import SqliteJournal, snapshot_folder_of


def take_snapshot(path: Path, *, with_hash: bool = False) -> dict[str, object]:
    """Write a snapshot of everything durable in the journal at `path`; returns what was done. Raises JournalError."""
    replayed = replay(SqliteJournal(path), CoreConfig())
    size = 0
    if replayed.facts:
        stored = StoredSnapshot(to_snapshot(replayed.state), replayed.digest)
        size = SnapshotFolder(snapshot_folder_of(path)).write(stored)
    done: dict[str, object] = {
        "seq": replayed.state.seq,
        "bytes": size,
        "facts": replayed.facts,
        "leases": len(replayed.state.leases),
    }
    if with_hash:
        done["state_hash"] = state_hash(replayed.state)
    return done


def main(argv: list[str] | None = None) -> int:
    """The program."""
    parser = argparse.ArgumentParser(prog="aliquot-snapshotter", description="snapshot a coordinator's SQLite journal")
    parser.add_argument("journal", type=Path, help="the SQLite file")
    parser.add_argument("--hash", action="store_true", help="also state the hash of the books")
    parser.add_argument("--nice", type=int, default=10, help="how much to step back behind the coordinator")
    arguments = parser.parse_args(argv)
    os.nice(arguments.nice)
    gc.disable()  # nothing but the State is made here, and all of it lives until the end
    try:
        done = take_snapshot(arguments.journal, with_hash=arguments.hash)
    except AliquotError as error:
        sys.stderr.write(error.explain() + "\n")
        return 1
    sys.stdout.write(json.dumps(done) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
