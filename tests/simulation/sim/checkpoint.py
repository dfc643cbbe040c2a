"""The simulated state directory of an agent: what was saved survives the agent, and mostly the machine.

It stands in for `aliquot.agent.disk.checkpoint.Checkpoint` (whose real files the agent's own tests are about) and keeps
encoded records, so that what a restarted agent reads is what was written and nothing that it shared in memory.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random

import msgspec

from aliquot.agent.core.attribution import Attachment
from aliquot.agent.core.model import Intent, Reservation, StopOrder
from aliquot.agent.disk.checkpoint import StoredSlice


class _Attached(msgspec.Struct, frozen=True):
    boot_id: str
    uid: int
    attachments: tuple[Attachment, ...]


_SLICE = msgspec.json.Decoder(StoredSlice)
_ATTACHED = msgspec.json.Decoder(_Attached)


class StateDisk:
    """What survives the agent's process."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.slices: dict[str, bytes] = {}
        self.leases: dict[str, bytes] = {}
        self.node_record: tuple[str, int] = ("", 0)
        self.cuts: bytes | None = None
        """How cards were cut."""
        self.full = False
        self.die_in_next_save = False
        self.damage_next_read = 0
        self.damaged: set[str] = set()
        """Slices whose record was lost to damage."""
        self.on_die: Callable[[], None] = lambda: None
        self.on_saved: Callable[[Reservation], None] = lambda record: None
        self.on_forgotten: Callable[[str], None] = lambda slice_id: None
        self.writes = 0

    def lose_power(self) -> None:
        """Attachments are not synced: a loss of power loses them. Their processes are gone as well."""
        self.leases.clear()


class SimCheckpoint:
    """See the module's docstring."""

    def __init__(self, disk: StateDisk, boot_id: str) -> None:
        self.directory = Path("/state")
        self.node_record = self.directory / "node.record"
        self.cuts_record = self.directory / "cuts.record"
        """Kept by `mig.SimRecords`."""
        self.notes: list[str] = []
        self._disk = disk
        self._boot_id = boot_id

    def load(self) -> list[Reservation]:
        """Every readable reservation."""
        found = []
        for slice_id, data in sorted(self._disk.slices.items()):
            if self._disk.damage_next_read:
                self._disk.damage_next_read -= 1
                self.notes.append(f"{slice_id} could not be read")
                del self._disk.slices[slice_id]
                self._disk.damaged.add(slice_id)
                self._disk.on_forgotten(slice_id)
                continue
            stored = _SLICE.decode(data)
            record = stored.reservation
            if record.intent is Intent.ENDED:
                del self._disk.slices[slice_id]
            elif stored.boot_id != self._boot_id and record.stop is not None:
                stop = StopOrder(0, record.stop.grace_ms, record.stop.reason)
                found.append(msgspec.structs.replace(record, stop=stop))
            else:
                found.append(record)
        return found

    def save(self, records: Iterable[Reservation]) -> None:
        """Durable when it returns; of several, some may be when it does not."""
        disk = self._disk
        for record in records:
            if disk.full and record.slice_id not in disk.slices:
                raise OSError(errno.ENOSPC, "no space left on device")
            if disk.die_in_next_save and disk.random.random() < 0.5:
                break
            disk.slices[record.slice_id] = msgspec.json.encode(StoredSlice(self._boot_id, record))
            disk.writes += 1
            disk.on_saved(record)
        if disk.die_in_next_save:
            disk.die_in_next_save = False
            disk.on_die()

    def forget(self, slice_ids: Iterable[str]) -> None:
        """Removed when it returns."""
        for slice_id in slice_ids:
            if self._disk.slices.pop(slice_id, None) is not None:
                self._disk.writes += 1
                self._disk.on_forgotten(slice_id)

    def load_attachments(self) -> tuple[dict[str, int], list[Attachment]]:
        """Of this start of the machine."""
        owners: dict[str, int] = {}
        found: list[Attachment] = []
        for lease_id, data in sorted(self._disk.leases.items()):
            stored = _ATTACHED.decode(data)
            if stored.boot_id != self._boot_id:
                del self._disk.leases[lease_id]
                continue
            owners[lease_id] = stored.uid
            found += stored.attachments
        return owners, found

    def save_attachments(self, lease_id: str, uid: int, attachments: Sequence[Attachment]) -> None:
        """Survives the agent."""
        if self._disk.full:
            raise OSError(errno.ENOSPC, "no space left on device")
        self._disk.leases[lease_id] = msgspec.json.encode(_Attached(self._boot_id, uid, tuple(attachments)))
        self._disk.writes += 1

    def close(self) -> None:
        """No lock to let go of."""

    def forget_attachments(self, lease_id: str) -> None:
        """Nothing is held any more."""
        self._disk.leases.pop(lease_id, None)


class SimIdentity:
    """The node's record. It stands in for `aliquot.agent.disk.identity.Identity`."""

    def __init__(self, disk: StateDisk, node_id: str) -> None:
        self._disk = disk
        if not disk.node_record[0]:
            disk.node_record = (node_id, 0)
        self.node_id, self.leader_epoch = disk.node_record

    def obey(self, leader_epoch: int) -> None:
        """Durable before it is obeyed."""
        if leader_epoch > self.leader_epoch:
            self.leader_epoch = leader_epoch
            if self._disk.full:
                raise OSError(errno.ENOSPC, "no space left on device")
            self._disk.node_record = (self.node_id, leader_epoch)
