"""Snapshots on disk: one file each, written beside the journal, complete or absent.

A file is a magic word, the SHA-256 of the rest, and the MessagePack of `_Body`. It is written under another name,
synced, and renamed; a half-written one is therefore never seen, and a damaged one is skipped with a warning,
because the snapshot before it and the journal after that still give the same State.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from aliquot.coordinator.core.evolve.snapshot import FORMAT, decode
from aliquot.coordinator.writing.journal.base import StoredSnapshot

log = logging.getLogger(__name__)

MAGIC = b"aliquot-snap-1\n\0"
KEPT = 2
"""The newest, and the one before it in case the newest can't be read."""
_SUFFIX = ".snap"


S = TypeVar("S")


class _Body(msgspec.Struct, Generic[S], frozen=True):
    digest: bytes
    snapshot: S


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(_Body[msgspec.Raw])


class SnapshotFolder:
    """The snapshots of one journal."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def seqs(self) -> list[int]:
        """The sequence numbers there are snapshots of, newest first."""
        if not self._path.is_dir():
            return []
        stems = (path.stem for path in self._path.glob(f"*{_SUFFIX}"))
        return sorted((int(stem) for stem in stems if stem.isdigit()), reverse=True)

    def write(self, stored: StoredSnapshot) -> int:
        """Make a snapshot durable, then drop those beyond `KEPT`; returns its size in bytes."""
        self._path.mkdir(exist_ok=True, mode=0o700)
        data = pack(stored)
        target = self._path / f"{stored.snapshot.seq:020d}{_SUFFIX}"
        part = target.with_suffix(f".part-{os.getpid()}")
        try:
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.rename(target)
        finally:
            part.unlink(missing_ok=True)
        folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        for seq in self.seqs()[KEPT:]:
            self._file(seq).unlink(missing_ok=True)
        return len(data)

    def read(self) -> Iterator[StoredSnapshot]:
        """Those that can be read, newest first."""
        for seq in self.seqs():
            stored = self._read(self._file(seq))
            if stored is not None:
                yield stored

    def _file(self, seq: int) -> Path:
        return self._path / f"{seq:020d}{_SUFFIX}"

    def _read(self, path: Path) -> StoredSnapshot | None:
        try:
            data = path.read_bytes()
        except FileNotFoundError:  # the snapshotter has dropped it since the folder was listed
            return None
        return unpack(data, str(path))


def pack(stored: StoredSnapshot) -> bytes:
    """The bytes of a snapshot file."""
    body = _encode(_Body(stored.digest, stored.snapshot))
    return b"".join((MAGIC, hashlib.sha256(body).digest(), body))


def unpack(data: bytes, name: str) -> StoredSnapshot | None:
    """What such bytes say; None, with a warning that names them, when they can't be believed."""
    start = len(MAGIC) + 32
    if data[: len(MAGIC)] != MAGIC or hashlib.sha256(memoryview(data)[start:]).digest() != data[len(MAGIC) : start]:
        log.warning("snapshot %s is damaged: going back to the one before it", name)
        return None
    try:
        body = _decoder.decode(memoryview(data)[start:])
        snapshot = decode(memoryview(body.snapshot))
    except msgspec.DecodeError as error:
        log.warning("snapshot %s can't be read by this version (%s): going back to the one before it", name, error)
        return None
    if snapshot.format > FORMAT:
        log.warning("snapshot %s was written by a newer version: going back to the one before it", name)
        return None
    return StoredSnapshot(snapshot, body.digest)
