"""Which processes have a DRM card open, and what they hold of it: by the files that they have open.

Looking into every process is dear (tens of milliseconds where there are hundreds), and hardly any has a card. A look at
a card is a look at those that were seen with it, and at processes that are new; all others are looked into once every
`FULL_S`, and at once when the caller says that somebody is missing. A file that is open several times, or was handed
on, counts once: for whoever was seen with it first, as long as that one has it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from aliquot.agent.core.fdinfo import Client, parse
from aliquot.agent.devices.base import DeviceError
from aliquot.agent.processes.tree import Tree

FULL_S = 4.5
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
    """Everybody with one card, at one moment."""

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
        self._full_ns: int | None = None
        self._found: dict[int, list[tuple[int, Client]]] = {}
        """By process that has a card open: minors and clients."""
        self._seen: set[int] = set()
        self._denied: set[int] = set()
        self._owners: dict[tuple[str, int, str], int] = {}

    def look(self, address: str, *, everybody: bool = False) -> Look:
        """Who has a card at this address now. Raises `DeviceError` where there is no list of processes."""
        with self._lock:
            now_ns = self._clock_ns()
            try:
                pids = {int(name) for name in self._tree.names("/proc") if name.isdecimal()}
            except OSError as error:
                raise DeviceError(f"processes can't be listed: {error.strerror}") from error
            if everybody or self._full_ns is None or now_ns - self._full_ns >= FULL_S * 1e9:
                self._full_ns = now_ns
                wanted = pids
                self._denied.clear()
            else:
                wanted = {pid for pid in self._found if self._has(pid, address)} & pids | pids - self._seen
            self._found = {pid: found for pid, found in self._found.items() if pid in pids and pid not in wanted}
            self._denied &= pids
            for pid in sorted(wanted):
                if found := self._of(pid):
                    self._found[pid] = found
            self._seen = self._seen & pids | wanted
            return Look(now_ns, self._counted(address), frozenset(self._denied))

    def _has(self, pid: int, address: str) -> bool:
        return any(client.pdev == address for _, client in self._found[pid])

    def _of(self, pid: int) -> list[tuple[int, Client]]:
        """What one process has open. One that ends meanwhile has nothing."""
        found: list[tuple[int, Client]] = []
        try:
            names = self._tree.names(f"/proc/{pid}/fd")
        except PermissionError:
            self._denied.add(pid)
            return found
        except OSError:
            return found
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
                found.append((minor, client))
        return found

    def _counted(self, address: str) -> tuple[Held, ...]:
        there = {
            (client.pdev, minor, client.client_id, pid) for pid, found in self._found.items() for minor, client in found
        }
        self._owners = {key: pid for key, pid in self._owners.items() if (*key, pid) in there}
        held: list[Held] = []
        done: set[tuple[str, int, str]] = set()
        for pid in sorted(self._found):
            for minor, client in self._found[pid]:
                if client.pdev != address:
                    continue
                key = (client.pdev, minor, client.client_id)
                first = self._owners.setdefault(key, pid) == pid and key not in done
                if first:
                    done.add(key)
                held.append(Held(pid, minor, client, first))
        return tuple(held)
