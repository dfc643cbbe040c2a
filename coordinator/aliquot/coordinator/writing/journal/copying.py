"""Copies of journals: as they are now, up to a moment in the past, or the intact part of a damaged one.

A copy is always a new journal; the source is only read, and may be in use. Groups are written with the same bytes and
digests, the pool's secret goes along (leases' secrets come of it), and so does the leader epoch: agents refuse a
leader of a lower one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from aliquot.common.errors import ConfigError
from aliquot.coordinator.errors import JournalCorrupt, JournalError
from aliquot.coordinator.writing.journal.base import NO_DIGEST, StoredGroup, StoredSnapshot
from aliquot.coordinator.writing.journal.chained import StoredJournal
from aliquot.coordinator.writing.journal.naming import named
from aliquot.coordinator.writing.journal.replay import Replay
from aliquot.coordinator.writing.journal.sqlite import SqliteJournal, snapshot_folder_of, translated

PART = ".part"
"""Ending of a copy that is not whole yet."""
UpTo = Callable[[int, int], bool]
"""Of a fact's number and its time in Unix milliseconds: whether it still belongs into the copy."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What is in the copy."""

    seq: int
    at_ms: int
    facts: int
    snapshot_seq: int
    stopped_by: JournalError | None
    """What was wrong with the first record that was left out."""


def existing(name: str) -> StoredJournal:
    """The journal of this name, or the newest of this folder, for reading. Raises ConfigError when there is none, and
    JournalError.
    """
    journal = named(name)
    if isinstance(journal, SqliteJournal):
        with translated(journal.path):
            if backups := sorted(journal.path.glob("*.db"), key=_written_at):
                journal = named(str(backups[-1]))
    try:
        journal.identity()
    except BaseException:
        journal.close()
        raise
    return journal


def _written_at(path: Path) -> int:
    return path.stat().st_mtime_ns


def copy(source: StoredJournal, target_name: str, up_to: UpTo, *, past_damage: bool = False) -> Copied:
    """Write what `up_to` agrees to into a new journal, which must be empty. Raises JournalError or ConfigError.

    With `past_damage`, a record that can't be believed ends the copy instead of refusing it; a later snapshot, which
    holds what was decided up to then, is preferred to what is before the damage.
    """
    secret, epoch = source.identity()
    target = named(target_name, secret)
    if not isinstance(target, SqliteJournal):
        return _fill(source, target, epoch, up_to, past_damage=past_damage)
    with whole(target) as part:
        return _fill(source, part, epoch, up_to, past_damage=past_damage)


@contextlib.contextmanager
def whole(target: SqliteJournal) -> Iterator[SqliteJournal]:
    """A file to fill, which gets its name when all of the copy is in it: half a journal would look like a whole one.
    Raises JournalError, and ConfigError where the name is taken or there is no place.
    """
    _require_new(target.path)
    part = SqliteJournal(target.path.with_name(target.path.name + PART), pool_secret=target.pool_secret)
    _discard(part.path)  # of a copy that was killed
    try:
        yield part
    except BaseException:
        _discard(part.path)
        raise
    folder = snapshot_folder_of(target.path)
    # The snapshots first: facts alone may begin in the middle.
    if snapshot_folder_of(part.path).exists():
        snapshot_folder_of(part.path).rename(folder)
    part.path.rename(target.path)
    if os.geteuid() == 0:
        _give(target.path, folder)


def _give(*paths: Path) -> None:
    """To whom the folder belongs: a coordinator that is not root must find in it what root has restored."""
    owner = paths[0].parent.stat()
    for path in paths:
        for each in (path, *path.rglob("*")) if path.exists() else ():
            os.chown(each, owner.st_uid, owner.st_gid)


def _require_new(path: Path) -> None:
    with translated(path):
        for taken in (path, snapshot_folder_of(path)):
            if taken.exists():
                raise ConfigError(f"{taken} exists", hint="a copy needs a new name: nothing is overwritten")
        if not path.parent.is_dir():
            raise ConfigError(f"{path.parent} is no folder", hint="make it first")


def _discard(path: Path) -> None:
    for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
        path.with_name(name).unlink(missing_ok=True)
    shutil.rmtree(snapshot_folder_of(path), ignore_errors=True)


def _fill(source: StoredJournal, target: StoredJournal, epoch: int, up_to: UpTo, *, past_damage: bool) -> Copied:
    target.open()
    try:
        if target.last_seq:
            raise ConfigError("the target is not empty", hint="a copy needs an empty database: name another")
        target.fills(whole=False)
        target.raise_leader_epoch(at_least=epoch)
        snapshot = _start(source, up_to, past_damage=past_damage)
        copied = _write(source, target, snapshot, up_to, past_damage=past_damage)
        target.fills(whole=True)
        return copied
    finally:
        target.close()


def _start(source: StoredJournal, up_to: UpTo, *, past_damage: bool) -> StoredSnapshot | None:
    """The snapshot to begin with; None where all facts from the first one on are there."""
    newest = (s for s in source.snapshots() if up_to(s.snapshot.seq, s.snapshot.now_ms))
    if past_damage:
        return next(newest, None)
    try:
        first = next(iter(source.groups(0)), None)
    except JournalError:
        return next(newest, None)
    if first is None or first.group.first_seq > 1:
        found = next(newest, None)
        if found is None and first is not None:
            at_ms = first.group.facts[0].at_ms
            raise JournalCorrupt(
                f"the journal begins with fact {first.group.first_seq} (at {at_ms} ms), and no snapshot is older",
                hint="that moment was compacted away: restore from a backup of before",
            )
        return found
    return None


def _write(
    source: StoredJournal, target: StoredJournal, snapshot: StoredSnapshot | None, up_to: UpTo, *, past_damage: bool
) -> Copied:
    checked = Replay(source)  # also decides and counts anew, so that a copy is never worse than it looks
    checked.start_at(snapshot)
    if snapshot is not None:
        target.snapshot_store.write(snapshot)
    target.resume_after(checked.state.seq, snapshot.digest if snapshot is not None else NO_DIGEST)

    def take(read: StoredGroup) -> bool:
        last = read.group.facts[-1]
        return up_to(read.group.last_seq, last.at_ms)

    def keep(read: StoredGroup) -> None:
        target.commit(read.group)

    stopped_by: JournalError | None = None
    before = checked.state.seq
    try:
        checked.catch_up(take, keep)
    except JournalError as error:
        if not past_damage:
            raise
        stopped_by = error
    state = checked.state
    return Copied(target.last_seq, state.now_ms, target.last_seq - before, before, stopped_by)
