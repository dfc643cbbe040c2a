"""The record of how far the kernel's log was heard on this boot."""

from __future__ import annotations

from pathlib import Path

import msgspec

from aliquot.agent.disk.durable import Damaged, Records

_KIND = "kernel-log"


class _Heard(msgspec.Struct, frozen=True):
    boot_id: str
    number: int


class LogMark(msgspec.Struct, eq=False):
    """See `devices.kmsg.Mark`. The kernel counts anew at each boot, so a number of another one says nothing."""

    path: Path
    boot_id: str
    records: Records

    def read(self) -> int | None:
        """The last record that was heard; None where nothing is known."""
        try:
            heard = self.records.read_record(self.path, _KIND, _Heard)
        except (OSError, Damaged):
            return None
        return heard.number if heard.boot_id == self.boot_id else None

    def write(self, number: int) -> None:
        """Raises `OSError`."""
        self.records.write_record(self.path, _KIND, _Heard(self.boot_id, number))
