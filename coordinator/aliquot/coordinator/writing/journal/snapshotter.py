"""A process of its own that turns a long journal into a short one: `python -m
aliquot.coordinator.writing.journal.snapshotter`.

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
from aliquot.coordinator.core.evolve.snapshot import state_hash, to_snapshot
from aliquot.coordinator.writing.journal.base import StoredSnapshot
from aliquot.coordinator.writing.journal.naming import named
from aliquot.coordinator.writing.journal.replay import replay


def take_snapshot(journal: Path | str, *, with_hash: bool = False) -> dict[str, object]:
    """Write a snapshot of everything durable in a journal; returns what was done. Raises JournalError.

    `journal` is the path of an SQLite file, or `postgres:CONNINFO`.
    """
    source = named(str(journal))
    try:
        replayed = replay(source)
        size = 0
        if replayed.facts:
            size = source.snapshot_store.write(StoredSnapshot(to_snapshot(replayed.state), replayed.digest))
    finally:
        source.close()
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
    parser = argparse.ArgumentParser(prog="aliquot-snapshotter", description="snapshot a coordinator's journal")
    parser.add_argument("journal", help="the SQLite file, or postgres:CONNINFO")
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
