"""Processes that are started ahead: each imports what its service needs before a lease comes for it (decision 0114).

Each is used for one lease, and was started for that one alone: it has served nobody, and shares with no other process
what a fork would (where its code lies, its stack's guards). It belongs to no lease until it is one's: then it is told
which, by its standard input, and goes on as if it had just been started.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec

from aliquot.agent.core.model import Holder
from aliquot.agent.enforce.preload import built_library
from aliquot.agent.hosting.base import HostError
from aliquot.agent.hosting.folders import Folders

log = logging.getLogger(__name__)

REPLACE_S = 3.0
"""After one was used: who has got it needs the processors now."""
_TIER = "tier"
_LOADED = ("LD_PRELOAD", "LD_LIBRARY_PATH")
"""What a process can be told at its start alone."""

Start = Callable[[str, int, Path, Mapping[str, str]], subprocess.Popen[bytes]]
"""Starts a service's program as a user, in a folder, with these variables beside the usual ones. It waits."""


class Waiting(msgspec.Struct, frozen=True):
    """A process that waits for a lease."""

    child: subprocess.Popen[bytes]
    folder: Path
    uid: int
    loaded: Mapping[str, str]

    def fits(self, variables: Mapping[str, str]) -> bool:
        """Whether a process of a lease with these variables may be this one."""
        preloads, libraries = (variables.get(key, "") for key in _LOADED)
        mine, found = (self.loaded.get(key, "") for key in _LOADED)
        # Preloaded is the same library, whatever its path: it looks for its lease when a device is used.
        return bool(preloads) == bool(mine) and libraries == found

    def word(self, folder: Path, variables: Mapping[str, str]) -> bytes:
        """What makes it serve a lease to which it belongs, from a folder that was its own. Raises `OSError`."""
        if preloads := variables.get(_LOADED[0]):
            _point(folder, Path(preloads.split(":")[0]).parent)
        return msgspec.json.encode(variables) + b"\n"


class Ahead(msgspec.Struct, eq=False):
    """One process for each service. Use from one event loop.

    `loaded`: with which variables of `LD_PRELOAD` and `LD_LIBRARY_PATH` leases' processes are expected to start.
    """

    folders: Folders
    services: Collection[str]
    start: Start
    loaded: Mapping[str, str]
    _waiting: dict[str, Waiting] = {}
    _tasks: dict[str, asyncio.Task[None]] = {}

    def begin(self) -> None:
        """Start all that are to be there."""
        for name in self.services:
            self._replace(name, 0.0)

    def take(self, name: str, holder: Holder) -> Waiting | None:
        """What waits for a lease by this service, if a member has had no process yet. It is the caller's now."""
        waiting = self._waiting.pop(name, None)
        if waiting is None:
            return None
        if waiting.child.poll() is None and not self.folders.of(holder).exists():
            return waiting
        self.drop(waiting)
        return None

    def drop(self, waiting: Waiting) -> None:
        """End one that is not used."""
        waiting.child.kill()
        waiting.child.wait()
        self.folders.remove_at(waiting.folder)

    def give_up(self) -> None:
        """End all that wait: the users that they run as are wanted."""
        while self._waiting:
            self.drop(self._waiting.popitem()[1])

    def used(self, name: str, variables: Mapping[str, str]) -> None:
        """A lease is served: after a while, have another process ready for one like it."""
        self.loaded = {key: variables[key] for key in _LOADED if key in variables}
        self._replace(name, REPLACE_S)

    def _replace(self, name: str, after_s: float) -> None:
        if name in self.services and name not in self._waiting and name not in self._tasks:
            self._tasks[name] = asyncio.create_task(self._prepare(name, after_s), name=f"prepare {name}")

    async def _prepare(self, name: str, after_s: float) -> None:
        try:
            await asyncio.sleep(after_s)
            self._waiting[name] = await asyncio.to_thread(self._begun, name)
        except (OSError, HostError) as error:
            log.warning("no process can be started ahead for %s: %s", name, error)
        finally:
            self._tasks.pop(name, None)

    def _begun(self, name: str) -> Waiting:
        folder, uid = self.folders.make_ahead(name)
        loaded = dict(self.loaded)
        if loaded.get(_LOADED[0]):
            _point(folder, built_library().parent)
            # By way of its working directory, whose name will be another one.
            loaded[_LOADED[0]] = f"/proc/self/cwd/{_TIER}/{built_library().name}"
        try:
            return Waiting(self.start(name, uid, folder, loaded), folder, uid, loaded)
        except BaseException:
            self.folders.remove_at(folder)
            raise


def expected(environment: Mapping[str, str], *, preloads: bool) -> dict[str, str]:
    """What the first lease's processes are likely to be started with, where most are held by the library or not."""
    found = {key: environment[key] for key in _LOADED[1:] if key in environment}
    library = built_library()
    return found | ({_LOADED[0]: str(library)} if preloads and library.is_file() else {})


def _point(folder: Path, target: Path) -> None:
    """Have the preloaded library look for its lease's files there."""
    with contextlib.suppress(FileNotFoundError):
        (folder / _TIER).unlink()
    (folder / _TIER).symlink_to(target)
