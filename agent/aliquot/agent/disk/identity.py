"""The node's id. It survives a new host name, a restart and, where the node has devices, a reimage.

The id is made once and kept in the state directory. It is derived from the UUIDs of the node's physical
devices where there are any, so that a machine whose disk was wiped comes back as the node it was; a machine
without devices gets a random one. A configured id wins over both.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from pathlib import Path

import msgspec

from aliquot.agent.disk.durable import Damaged, read_record, write_record
from aliquot.agent.disk.files import DISK, Files
from aliquot.common.ids import ALPHABET, ID_CHARS, IdGenerator
from aliquot.common.names import validate_node

log = logging.getLogger(__name__)

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_KIND = "node"


def boot_id() -> str:
    """Changes when the machine restarts: no process of before is alive then."""
    return BOOT_ID.read_text(encoding="ascii").strip()


def derive(device_uuids: Iterable[str]) -> str:
    """The id for a node of these physical devices; random where there are none."""
    uuids = sorted(device_uuids)
    if not uuids:
        return IdGenerator().node_id()
    # One device is enough to tell nodes apart, and others may be replaced together with the disk.
    number = int.from_bytes(hashlib.sha256(f"aliquot node {uuids[0]}".encode()).digest())
    return "n-" + "".join(ALPHABET[number >> shift & 31] for shift in range(0, ID_CHARS * 5, 5))


class _Stored(msgspec.Struct, frozen=True):
    node_id: str = ""
    leader_epoch: int = 0


class Identity:
    """The node's durable facts about itself: its id, and the highest leader epoch it has obeyed."""

    def __init__(self, path: Path, node_id: str, leader_epoch: int, files: Files = DISK) -> None:
        self._path = path
        self._files = files
        self.node_id = node_id
        self.leader_epoch = leader_epoch
        self._written_epoch = leader_epoch

    @classmethod
    def open(cls, path: Path, configured_id: str, device_uuids: Iterable[str], files: Files = DISK) -> Identity:
        """Read the node's record or make it. Raises `OSError` when the state directory can't be written, and
        `InvalidFieldError` for a configured id that is none.
        """
        if configured_id:
            validate_node(configured_id, "node_id")
        stored = _Stored()
        try:
            stored = read_record(path, _KIND, _Stored, files)
        except FileNotFoundError:
            pass
        except Damaged as error:
            aside = path.with_suffix(".damaged")
            files.rename(path, aside)
            log.warning("the node's record was damaged (%s); kept as %s, a new one is made", error, aside)
        node_id = configured_id or stored.node_id or derive(device_uuids)
        identity = cls(path, node_id, stored.leader_epoch, files)
        if stored.node_id != node_id:
            identity._write()
        else:
            files.sync_directory(path.parent)  # the agent that wrote it may have died before that
        return identity

    def obey(self, leader_epoch: int) -> None:
        """Make it durable that a coordinator of this epoch is obeyed, before it is. Raises `OSError`."""
        self.leader_epoch = max(leader_epoch, self.leader_epoch)
        if self.leader_epoch > self._written_epoch:  # also when the last try failed
            self._write()

    def _write(self) -> None:
        epoch = self.leader_epoch
        write_record(self._path, _KIND, _Stored(self.node_id, epoch), self._files)
        self._written_epoch = epoch
