"""Which processes have a DRM card open, and what they hold of it: by the files that they have open.

A process is looked at when it is new, at every look once it was seen with a card, and any other once a `FULL_S`: it may
open a card at any time. A file that is open several times, or was handed on, counts once: for whoever was seen with it
first, as long as that one has it. Callers in several threads share a look that began after they asked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from aliquot.agent.core.fdinfo import Client, parse
from aliquot.agent.devices.base import DeviceError
from aliquot.agent.processes.tree import Tree

FULL_S = 0.9
_NO_CARD = ("socket:", "pipe:", "anon_inode:", "/memfd:")


@dataclass(frozen=True, slots=True)
class Held:
    """A client, and who has it."""

    pid: int
    minor: int
    client: Client
    counted: bool
    """False where its memory is counted for another process that has the same file open."""


@dataclass(frozen=True, slots=True)
class Look:
    """Everybody with a card, at one moment."""

    at_ns: int
    held: tuple[Held, ...]
    denied: frozenset[int]
    """Processes that could not be looked into."""


class Clients:
    """See the module's docstring. May be used from several threads."""

    def __init__(self, tree: Tree, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._tree = tree
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._began_ns = -1
        self._full_ns: int | None = None
        self._last = Look(0, (), frozenset())
        self._known: set[int] = set()
        self._seen: set[int] = set()
        self._denied: set[int] = set()
        self._owners: dict[tuple[str, int, str], int] = {}

    def look(self) -> Look:
        """Now. Raises `DeviceError` where there is no list of processes."""
        asked_ns = self._clock_ns()
        with self._lock:
            if self._began_ns < asked_ns:
                self._began_ns = max(asked_ns, self._clock_ns())
                self._last = self._look(self._began_ns)
            return self._last

    def _look(self, now_ns: int) -> Look:
        try:
            pids = {int(name) for name in self._tree.names("/proc") if name.isdecimal()}
        except OSError as error:
            raise DeviceError(f"processes can't be listed: {error.strerror}") from error
        full = self._full_ns is None or now_ns - self._full_ns >= FULL_S * 1e9
        self._seen &= pids
        wanted = pids if full else self._known & pids | pids - self._seen
        if full:
            self._full_ns = now_ns
        found: list[tuple[int, int, Client]] = []
        self._denied &= pids - wanted
        for pid in sorted(wanted):
            self._of(pid, found)
        self._seen |= wanted
        self._known = {pid for pid, _, _ in found}
        return Look(now_ns, self._counted(found), frozenset(self._denied))

    def _of(self, pid: int, found: list[tuple[int, int, Client]]) -> None:
        """What one process has open. One that ends meanwhile has nothing."""
        try:
            names = self._tree.names(f"/proc/{pid}/fd")
        except PermissionError:
            self._denied.add(pid)
            return
        except OSError:
            return
        for name in names:
            try:
                target = self._tree.link(f"/proc/{pid}/fd/{name}")
                if target.startswith(_NO_CARD):
                    continue
                minor = self._tree.drm_minor(f"/proc/{pid}/fd/{name}", target)
                client = None if minor is None else parse(self._tree.read(f"/proc/{pid}/fdinfo/{name}"))
            except PermissionError:
                self._denied.add(pid)
                continue
            except OSError:
                continue
            if minor is not None and client is not None:
                found.append((pid, minor, client))

    def _counted(self, found: list[tuple[int, int, Client]]) -> tuple[Held, ...]:
        there = {(client.pdev, minor, client.client_id, pid) for pid, minor, client in found}
        owners = {key: pid for key, pid in self._owners.items() if (*key, pid) in there}
        held: list[Held] = []
        done: set[tuple[str, int, str]] = set()
        for pid, minor, client in found:
            key = (client.pdev, minor, client.client_id)
            first = owners.setdefault(key, pid) == pid and key not in done
            if first:
                done.add(key)
            held.append(Held(pid, minor, client, first))
        self._owners = owners
        return tuple(held)
