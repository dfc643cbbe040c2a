"""The simulated disk under what an agent keeps: content and names are durable only once they have been synced.

The production code above it (`aliquot.agent.disk`) runs unchanged and hands its bytes to `SimFiles`. When power is
lost, each name is what it was at the last sync of its directory or what it was made since, by chance and each for
itself; content that was not synced is torn anywhere. A process that dies loses nothing of what it did.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec

from aliquot.agent.core.model import Reservation
from aliquot.agent.disk import durable
from aliquot.agent.disk.files import Files
from tests.simulation.sim.loop import current

T = TypeVar("T")

STATE = Path("/state")
SLICES, ATTACHMENTS, IDENTITY = STATE / "slices", STATE / "attachments", STATE / "node.record"
_SUFFIX = ".record"


class Died(BaseException):
    """The process whose call this is has just been killed, or its machine has lost power."""


class File:
    """What a name stands for."""

    __slots__ = ("data", "synced")

    def __init__(self) -> None:
        self.data = self.synced = b""


class StateDisk:
    """What survives the agent's process, and what of it survives the machine."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now: dict[Path, File] = {}
        self.kept: dict[Path, File] = {}
        """As it was when each directory was synced."""
        self.full = False
        self.dies_in_next_save: Callable[[], None] | None = None
        """How whoever writes next comes to an end in the middle of it."""
        self.damage_next_read = 0
        self.damaged: set[str] = set()
        """Slices whose record was lost to damage."""
        self.unwritten_epoch = False
        """The disk was too full for a leader's epoch."""
        self.on_saved: Callable[[Reservation], None] = lambda record: None
        self.on_forgotten: Callable[[str], None] = lambda slice_id: None
        self.on_emptied: Callable[[], None] = lambda: None
        self.writes = 0
        self._told: dict[Path, bytes] = {}
        """Reservations that are durable."""

    @property
    def slices(self) -> list[str]:
        """Whose reservations can be seen."""
        return [record.slice_id for path in self.now if (record := _reservation(path, self.now)) is not None]

    @property
    def leader_epoch(self) -> int:
        """The highest that is known to have been obeyed, whatever happens now."""
        file = self.kept.get(IDENTITY)
        return int((_payload(file.synced) or {}).get("leader_epoch", 0)) if file is not None else 0

    def lose_power(self) -> None:
        """What was not synced is lost, or is there, or a part of it."""
        left: dict[Path, File] = {}
        for path in sorted(self.now.keys() | self.kept.keys()):
            here, there = self.now.get(path), self.kept.get(path)
            file = here if here is there or self.random.random() < 0.5 else there
            if file is not None:
                left[path] = file
        for file in left.values():
            if file.data != file.synced:
                torn = file.data[: self.random.randrange(len(file.data) + 1)]
                file.data = file.synced = torn if self.random.random() < 0.7 else file.synced
        self.now, self.kept = left, dict(left)
        self.tell()

    def empty(self) -> None:
        """Somebody removes all of it."""
        self.damaged |= set(self.slices)
        self.now.clear()
        self.kept.clear()
        self.on_emptied()
        self.tell()

    def damage(self) -> None:
        """What comes next of the reservations can't be read any more."""
        for path in sorted(self.now):
            record = _reservation(path, self.now)
            if record is not None and self.damage_next_read:
                self.damage_next_read -= 1
                file = self.now[path]
                file.data = file.synced = file.data[: len(file.data) // 2]
                self.damaged.add(record.slice_id)
        self.tell()

    def copy_identity(self, other: StateDisk) -> None:
        """The disk was made from an image of another."""
        if IDENTITY in other.kept:
            self.now[IDENTITY] = self.kept[IDENTITY] = file = File()
            file.data = file.synced = other.kept[IDENTITY].synced

    def tell(self) -> None:
        """Say which reservations have become durable, and which are gone for good."""
        durable_now = {
            path: file.synced
            for path, file in self.kept.items()
            if path.parent == SLICES and file.data == file.synced and _reservation(path, self.kept) is not None
        }
        before, self._told = self._told, durable_now
        for path in before.keys() - durable_now.keys():
            self.on_forgotten(_read(before[path]).slice_id)
        for path in sorted(durable_now):
            if before.get(path) != durable_now[path]:
                self.on_saved(_read(durable_now[path]))


class SimFiles(Files):
    """One process's way to the disk."""

    def __init__(self, disk: StateDisk, alive: Callable[[], bool] = lambda: current().alive) -> None:
        self._disk = disk
        self._alive = alive

    def make_directory(self, path: Path) -> None:
        """They are there from the beginning."""

    def lock(self, path: Path) -> Callable[[], None]:
        """Nobody else is there."""
        return lambda: None

    def names(self, directory: Path) -> list[str]:
        if directory == SLICES and self._disk.damage_next_read:
            self._disk.damage()
        return sorted(path.name for path in self._disk.now if path.parent == directory)

    def read(self, path: Path, bytes_max: int) -> bytes:
        file = self._disk.now.get(path)
        if file is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return file.data[:bytes_max]

    def write(self, path: Path, data: bytes, *, sync: bool) -> None:
        self._step()
        disk = self._disk
        if disk.full:
            disk.unwritten_epoch |= path.stem == IDENTITY.name
            raise OSError(errno.ENOSPC, "no space left on device")
        file = disk.now.setdefault(path, File())
        file.data = data
        if sync:
            file.synced = data
        disk.writes += 1

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        self._disk.now[target] = self._disk.now.pop(source)

    def remove(self, path: Path) -> None:
        self._step()
        self._disk.now.pop(path, None)

    def sync_directory(self, path: Path) -> None:
        self._step()
        disk = self._disk
        for gone in [each for each in disk.kept if each.parent == path and each not in disk.now]:
            del disk.kept[gone]
        disk.kept.update((each, file) for each, file in disk.now.items() if each.parent == path)
        if path == SLICES:
            disk.tell()

    def _step(self) -> None:
        """Before anything is changed: here its process may die."""
        dies = self._disk.dies_in_next_save
        if dies is not None and self._disk.random.random() < 0.4:
            self._disk.dies_in_next_save = None
            dies()
        if not self._alive():
            raise Died


class SimRecords:
    """Where agents write down how cards were cut: the module `durable`, on the disk of whoever asks."""

    def read_record(self, path: Path, kind: str, form: type[T]) -> T:
        """Raises FileNotFoundError and Damaged."""
        return durable.read_record(path, kind, form, SimFiles(current().host.disk))

    def write_record(self, path: Path, kind: str, payload: Mapping[str, Any] | msgspec.Struct) -> None:
        """Durable when it returns."""
        durable.write_record(path, kind, payload, SimFiles(current().host.disk))


class _Stored(msgspec.Struct):
    reservation: Reservation


def _payload(data: bytes) -> dict[str, Any] | None:
    """Of a whole record; None: it is torn."""
    head, _, body = data.partition(b"\n")
    if head[-64:] != hashlib.sha256(body.removesuffix(b"\n")).hexdigest().encode():
        return None
    found: dict[str, Any] = msgspec.json.decode(body)
    return found


@lru_cache(4096)
def _read(data: bytes) -> Reservation:
    return msgspec.json.decode(data.partition(b"\n")[2], type=_Stored).reservation


def _reservation(path: Path, names: Mapping[Path, File]) -> Reservation | None:
    """Of a name in the folder of reservations; None: it is none, or it is torn."""
    if path.parent != SLICES or path.suffix != _SUFFIX:
        return None
    data = names[path].data
    return _read(data) if _is_whole(data) else None


@lru_cache(4096)
def _is_whole(data: bytes) -> bool:
    return _payload(data) is not None
