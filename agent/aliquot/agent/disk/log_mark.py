"""The record of how far the kernel's log was heard on this boot."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from aliquot.agent.disk.durable import Damaged

T = TypeVar("T")
_KIND = "kernel-log"


class _Records(Protocol):
    def read_record(self, path: Path, kind: str, form: type[T]) -> T: ...

    def write_record(self, path: Path, kind: str, payload: msgspec.Struct) -> None: ...


class _Heard(msgspec.Struct, frozen=True):
    boot_id: str
    number: int


class LogMark:
    """See `devices.kmsg.Mark`. The kernel counts anew at each boot, so a number of another one says nothing."""

    def __init__(self, path: Path, boot_id: str, records: _Records) -> None:
        self._path = path
        self._boot_id = boot_id
        self._records = records

    def read(self) -> int | None:
        """The last record that was heard; None where nothing is known."""
        try:
            heard = self._records.read_record(self._path, _KIND, _Heard)
        except (OSError, Damaged):
            return None
        return heard.number if heard.boot_id == self._boot_id else None

    def write(self, number: int) -> None:
        """Raises `OSError`."""
        self._records.write_record(self._path, _KIND, _Heard(self._boot_id, number))
