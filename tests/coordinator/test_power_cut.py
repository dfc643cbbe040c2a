"""A power cut at any write: of what was not synced, any part may be missing, torn at a sector, or there out of order.

kill -9 keeps the page cache, so it can't show this. Here the process dies at a write, with a note of every write and
sync of its journal; then each write since its file's last sync is kept, torn or taken back at random, and what is left
must be a journal that holds all that was answered.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

from tests.coordinator.test_crash import crash, preload, verify

__all__ = ["preload"]

SECTOR_BYTES = 512
_HEAD = struct.Struct("<5Q")


@dataclass(frozen=True)
class Write:
    """One write, and what it overwrote."""

    file_bytes: int
    """How long the file was before it."""
    offset: int
    old: bytes
    new: bytes


def unsynced(log: Path) -> dict[Path, list[Write]]:
    """The writes of each file since it was last synced, in order."""
    pending: dict[Path, list[Write]] = {}
    data = log.read_bytes() if log.exists() else b""
    at = 0
    while at < len(data):
        name_bytes, file_bytes, offset, old_bytes, new_bytes = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        name, old, new = (data[start : start + size] for start, size in _cut(at, name_bytes, old_bytes, new_bytes))
        at += name_bytes + old_bytes + new_bytes
        path = Path(os.fsdecode(name))
        if new_bytes:
            pending.setdefault(path, []).append(Write(file_bytes, offset, old, new))
        else:
            pending.pop(path, None)
    return pending


def _cut(at: int, *sizes: int) -> list[tuple[int, int]]:
    parts = []
    for size in sizes:
        parts.append((at, size))
        at += size
    return parts


def cut_power(log: Path, random: Random) -> int:
    """Leave on disk what could have been left; returns how many writes were not kept whole."""
    lost = 0
    for path, writes in unsynced(log).items():
        if not path.exists():
            continue
        with path.open("r+b") as file:
            for write in reversed(writes):
                file.seek(write.offset)
                file.write(write.old)
                file.truncate(max(write.file_bytes, 0))
            for write in writes:
                kept = random.choice([0, len(write.new), random.randrange(0, len(write.new) + 1, SECTOR_BYTES)])
                lost += kept < len(write.new)
                file.seek(write.offset)
                file.write(write.new[:kept])
    return lost


async def at_every(preload: Path, folder: Path, stride: int, seed: int) -> tuple[int, int]:
    """(crashes, writes that were lost or torn), until the story outlives its crash."""
    random = Random(seed)
    at, crashes, lost = 1 + seed % stride, 0, 0
    while True:
        path, notes = folder / f"journal-{at}.db", folder / f"notes-{at}"
        died, log = await crash(preload, path, at, random.choice(["before", "torn", "after"]), CRASH_LOG=str(notes))
        if not died:
            return crashes, lost
        lost += cut_power(notes, random)
        path.with_name(f"{path.name}-shm").unlink(missing_ok=True)  # memory, not disk
        await verify(path, log)
        crashes += 1
        at += stride


async def test_power_is_cut_at_some_writes(preload: Path, tmp_path: Path) -> None:
    """Every ninth write; all of them are looked at by the slow test."""
    crashes, lost = await at_every(preload, tmp_path, 9, seed=3)
    assert crashes >= 3
    assert lost >= 1


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(3))
async def test_power_is_cut_at_every_write(preload: Path, tmp_path: Path, seed: int) -> None:
    crashes, lost = await at_every(preload, tmp_path, 1, seed)
    assert crashes >= 25
    assert lost >= 10
