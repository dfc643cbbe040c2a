"""A folder for each member that is served: its process's home, and the place of the socket by which the agent asks it.

Who owns a folder says whom its process runs as, also after the agent was started again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from hashlib import sha256
from pathlib import Path

import msgspec

from aliquot.agent.core.model import Holder
from aliquot.agent.hosting.base import HostError

TEMPORARY = "tmp"


class Folders(msgspec.Struct, eq=False):
    """`uids`: those that processes run as, each as long as its member is served; of one, all of them at once."""

    directory: Path
    uids: Collection[int]

    def of(self, holder: Holder) -> Path:
        """The member's, whether it is there or not."""
        return self.directory / _name(holder)

    def make(self, holder: Holder) -> tuple[Path, int]:
        """Make it anew, empty and for its user only. Returns also who that is. Raises `HostError` and `OSError`."""
        return self._make(_name(holder))

    def make_ahead(self, name: str) -> tuple[Path, int]:
        """As `make`, for a process that waits to be a member's."""
        return self._make(_name(name))

    def adopt(self, folder: Path, holder: Holder) -> Path:
        """The folder of a process that has waited is a member's now, which has none. Returns it. Raises `OSError`."""
        return folder.rename(self.of(holder))

    def _make(self, name: str) -> tuple[Path, int]:
        folder = self.directory / name
        uid = self._uid(name)
        self.remove_at(folder)
        folder.mkdir(mode=0o700, parents=True)
        (folder / TEMPORARY).mkdir(mode=0o700)
        if uid != os.geteuid():
            for each in (folder / TEMPORARY, folder):  # the tenant can reach into it only from here on
                os.chown(each, uid, uid)
        return folder, uid

    def remove(self, holder: Holder) -> None:
        """Nothing is kept of the member."""
        self.remove_at(self.of(holder))

    def remove_at(self, folder: Path) -> None:
        """Nothing is kept of what was in it: a tenant's, of which nothing is followed."""
        shutil.rmtree(folder, ignore_errors=True)

    def sweep(self, holders: Collection[Holder]) -> None:
        """Remove what an agent that was killed has left of members that are not here any more."""
        kept = {_name(holder) for holder in holders}
        for folder in self.directory.iterdir() if self.directory.is_dir() else ():
            if folder.name not in kept:
                self.remove_at(folder)

    def _uid(self, name: str) -> int:
        uids = self.uids
        if len(uids) == 1:
            return next(iter(uids))
        folders = self.directory.iterdir() if self.directory.is_dir() else ()
        owners = {folder.name: folder.stat().st_uid for folder in folders}
        mine = owners.pop(name, -1)
        taken = set(owners.values())
        if mine in uids and mine not in taken:
            return mine
        # Not always the lowest: whoever comes next should seldom be who has just gone.
        ordered = sorted(uids)
        first = int(name, 16) % len(ordered)
        for uid in ordered[first:] + ordered[:first]:
            if uid not in taken:
                return uid
        raise HostError(
            f"all {len(ordered)} users that processes may run as are taken", hint="name more of them in hosting.uids"
        )


def _name(whose: Holder | str) -> str:
    """Of a folder: a member's, or that of the service whose process waits for one."""
    text = whose if isinstance(whose, str) else f"{whose.lease_id}\n{whose.lease_epoch}\n{whose.member}"
    return sha256(text.encode()).hexdigest()[:32]
