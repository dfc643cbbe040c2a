"""Reservations and attachments on disk: all that an agent needs to go on after it was killed at any moment.

    <state>/lock                 held while an agent runs here
    <state>/node.record          the node's id, and the highest leader epoch obeyed
    <state>/cuts.record          how cards in MIG mode were cut, and the last orders for that
    <state>/care.record          what was done to sick cards
    <state>/log.record           how far the kernel's log was heard
    <state>/slices/<slice>.record        one reservation each; durable before it is acted on
    <state>/attachments/<lease>.record   which processes were attached, by whom
    <state>/damaged/             what could not be read, for people

A damaged file is set aside with a message and never stops the agent. The coordinator still knows the slice
and names it again; its processes are found in their cgroup. Attachments need not survive a reboot, since
their processes do not: the boot id in each tells.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import msgspec

from aliquot.agent.core.attribution import AttachedCgroup, Attachment
from aliquot.agent.core.model import Intent, Reservation, StopOrder
from aliquot.agent.disk import durable
from aliquot.agent.disk.files import DISK, Files
from aliquot.common.errors import AliquotError

T = TypeVar("T")

log = logging.getLogger(__name__)

_SLICE_KIND = "slice"
_ATTACHMENT_KIND = "attachments"
_SUFFIX = ".record"
MAX_NAME_BYTES = 200
"""File systems take 255; suffixes come on top."""


class StateDirError(AliquotError):
    """The state directory can't be used."""


class StoredSlice(msgspec.Struct, frozen=True):
    """What is on disk of a reservation. The boot id gives a stop order's monotonic time its meaning."""

    boot_id: str
    reservation: Reservation


class StoredLease(msgspec.Struct, frozen=True):
    """What is on disk of a lease's attachments."""

    boot_id: str
    lease_id: str
    uid: int
    """Of who first attached: from then on only this user (and root) may. Negative: nobody yet, but a cgroup is."""
    attachments: tuple[Attachment, ...] = ()
    cgroups: tuple[AttachedCgroup, ...] = ()


class Checkpoint:
    """The state directory. One agent at a time: `open` takes a lock that dies with the process."""

    def __init__(self, directory: Path, boot_id: str, unlock: Callable[[], None], files: Files) -> None:
        self.directory = directory
        self.notes: list[str] = []
        """What could not be read, for the log, the status and people."""
        self._boot_id = boot_id
        self._unlock = unlock
        self._files = files
        self._slices = directory / "slices"
        self._attachments = directory / "attachments"
        self._damaged = directory / "damaged"

    @classmethod
    def open(cls, directory: Path, boot_id: str, files: Files = DISK) -> Checkpoint:
        """Take the directory, making it where needed. Raises `StateDirError`."""
        try:
            for part in (directory, directory / "slices", directory / "attachments", directory / "damaged"):
                files.make_directory(part)
            unlock = files.lock(directory / "lock")
        except BlockingIOError as error:
            raise StateDirError(
                f"another agent is running on the state directory {directory}",
                hint="stop it, or give this one another directory with --state-dir",
            ) from error
        except OSError as error:
            raise StateDirError(
                f"the state directory {directory} can't be used: {error.strerror}",
                hint="give the agent a directory it may write to with --state-dir",
            ) from error
        return cls(directory, boot_id, unlock, files)

    def close(self) -> None:
        """Let another agent take the directory."""
        self._unlock()

    def record(self, name: str) -> Path:
        """Where one of the node's own records is: see the module's docstring."""
        return self.directory / f"{name}{_SUFFIX}"

    # -----------------------------------------------------------------------------------------------
    # reservations

    def load(self) -> list[Reservation]:
        """Every readable reservation. A stop order of an earlier start of the machine begins its grace anew:
        its processes are gone anyway.
        """
        found = []
        # What is seen may be known to this machine's memory only, if the agent before died before its sync: whoever
        # goes by it, or says that something is gone, must find the same after a loss of power.
        self._files.sync_directory(self._slices)
        for path, stored in self._read_all(self._slices, _SLICE_KIND, StoredSlice):
            record = stored.reservation
            if self._path_of(record.slice_id) != path:
                self._set_aside(path, f"it is of slice {record.slice_id!r}, which belongs elsewhere")
            elif record.intent is Intent.ENDED:
                self._files.remove(path)
            elif stored.boot_id != self._boot_id and record.stop is not None:
                stop = StopOrder(0, record.stop.grace_ms, record.stop.reason)
                found.append(msgspec.structs.replace(record, stop=stop))
            else:
                found.append(record)
        return found

    def save(self, records: Iterable[Reservation]) -> None:
        """Make reservations durable, all with one wait for the directory. Raises `OSError`."""
        contents = {
            self._path_of(record.slice_id): durable.encode(_SLICE_KIND, StoredSlice(self._boot_id, record))
            for record in records
        }
        if contents:
            durable.write_many(contents, self._files)

    def forget(self, slice_ids: Iterable[str]) -> None:
        """Remove reservations durably; unknown ones are no error. Raises `OSError`."""
        paths = [self._path_of(slice_id) for slice_id in slice_ids]
        for path in paths:
            self._files.remove(path)
        if paths:
            self._files.sync_directory(self._slices)

    # ------------------------------------------------------------------------------------------------
    # attachments

    def load_attachments(self) -> tuple[dict[str, int], list[Attachment], list[AttachedCgroup]]:
        """Owners by lease, attachments, and cgroups, as far as they are of this start of the machine."""
        owners: dict[str, int] = {}
        found: list[Attachment] = []
        cgroups: list[AttachedCgroup] = []
        for path, stored in self._read_all(self._attachments, _ATTACHMENT_KIND, StoredLease):
            if stored.boot_id != self._boot_id:
                self._files.remove(path)
                continue
            if stored.uid >= 0:
                owners[stored.lease_id] = stored.uid
            found += stored.attachments
            cgroups += stored.cgroups
        return owners, found, cgroups

    def save_attachments(
        self, lease_id: str, uid: int, attachments: Sequence[Attachment], cgroups: Sequence[AttachedCgroup] = ()
    ) -> None:
        """Write down who is attached to a lease. Survives this process, not a loss of power. Raises `OSError`."""
        stored = StoredLease(self._boot_id, lease_id, uid, tuple(attachments), tuple(cgroups))
        durable.write_record(self._attachment_path(lease_id), _ATTACHMENT_KIND, stored, self._files, durable=False)

    def forget_attachments(self, lease_id: str) -> None:
        """The lease holds nothing here any more."""
        self._files.remove(self._attachment_path(lease_id))

    # ------------------------------------------------------------------------------------------------------
    # files

    def _path_of(self, slice_id: str) -> Path:
        return self._slices / (_file_name(slice_id) + _SUFFIX)

    def _attachment_path(self, lease_id: str) -> Path:
        return self._attachments / (_file_name(lease_id) + _SUFFIX)

    def _read_all(self, directory: Path, kind: str, form: type[T]) -> list[tuple[Path, T]]:
        found = []
        for name in self._files.names(directory):
            path = directory / name
            if name.endswith(durable.TEMPORARY_SUFFIX):
                self._files.remove(path)  # the write it belonged to never happened
            elif path.suffix == _SUFFIX:
                try:
                    found.append((path, durable.read_record(path, kind, form, self._files)))
                except (durable.Damaged, OSError) as error:
                    self._set_aside(path, str(error))
        return found

    def _set_aside(self, path: Path, why: str) -> None:
        taken = set(self._files.names(self._damaged))
        numbered = (f"{path.name}.{number}" for number in itertools.count(1))
        target = self._damaged / next(name for name in itertools.chain([path.name], numbered) if name not in taken)
        note = f"{path.name} could not be read ({why}); kept as {target}"
        self.notes.append(note)
        log.error("%s", note)
        try:
            self._files.rename(path, target)
        except OSError as error:
            log.warning("%s could not be moved: %s", path, error)


def _file_name(identity: str) -> str:
    """A name for the files of a slice or lease: readable, or a digest where quoting would make it too long."""
    quoted = quote(identity, safe="")
    return quoted if len(quoted) <= MAX_NAME_BYTES else hashlib.sha256(identity.encode()).hexdigest()
