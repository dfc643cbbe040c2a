"""Which processes have a DRM card open, and what they hold of it: by the files that they have open.

Looking through the files of every process is dear (tens of milliseconds where there are hundreds), and hardly any has a
card. A look at a card reads the files of it that are known, and looks through processes that are new, and those of
which a file is not what it was; everybody is looked through once every `FULL_S`, and at once when the caller says that
somebody is missing. What a file says of a card is read for that card alone, and under no lock: a card that hangs keeps
whoever asks of it, and nobody else.

A file that is open several times, or was handed on, counts once: for whoever was seen with it first, as long as that
one has it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence

import msgspec

from aliquot.agent.core.fdinfo import Client, parse
from aliquot.agent.devices.base import DeviceError
from aliquot.common.kernel_files import KernelFiles

FULL_S = 4.5
_NO_CARD = ("socket:", "pipe:", "anon_inode:", "/memfd:")


class Held(msgspec.Struct, frozen=True):
    """A client, and who has it."""

    pid: int
    minor: int
    client: Client
    counted: bool
    """False where its memory is counted for another process that has the same file open."""


class Look(msgspec.Struct, frozen=True):
    """Everybody with one card, at one moment."""

    at_ns: int
    held: tuple[Held, ...]
    denied: frozenset[int]
    """Processes that could not be looked into."""
    everybody: bool = False
    """All were looked into, not just those who are known."""


class Clients:
    """See the module's docstring. May be used from several threads, for different cards."""

    def __init__(self, tree: KernelFiles, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._tree = tree
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._full_ns: int | None = None
        self._open: dict[int, list[tuple[str, int]]] = {}
        """By process that has a card open: its descriptors, and the minors of what they open."""
        self._names: list[str] = []
        """Of all processes, when they were last listed."""
        self._said: dict[str, tuple[str, Client | None]] = {}
        """By file: its text, and what it says."""
        self._seen: set[int] = set()
        self._denied: set[int] = set()
        self._owners: dict[str, dict[tuple[int, str], int]] = {}
        """By card, then minor and client: whose it is."""

    def look(self, address: str, others: Collection[int] = (), *, everybody: bool = False) -> Look:
        """Who has a card at this address now. `others`: minors that are known to be other cards'. Raises `DeviceError`
        where there is no list of processes.
        """
        now_ns = self._clock_ns()
        with self._lock:
            everybody = everybody or self._full_ns is None or now_ns - self._full_ns >= FULL_S * 1e9
            self._update(now_ns, everybody=everybody)
            opened = {pid: [file for file in found if file[1] not in others] for pid, found in self._open.items()}
            denied = set(self._denied)
        clients: list[tuple[int, int, Client]] = []
        for pid, files in sorted(opened.items()):
            found, sure = self._read(pid, sorted(files), address, denied)
            if not sure:
                # It has closed a file, and may have opened another one in its place.
                with self._lock:
                    now = self._again(pid)
                    denied |= self._denied & {pid}
                found, _ = self._read(pid, [file for file in sorted(now) if file[1] not in others], address, denied)
            clients += found
        return Look(now_ns, self._counted(address, clients), frozenset(denied), everybody)

    def _read(
        self, pid: int, files: Sequence[tuple[str, int]], address: str, denied: set[int]
    ) -> tuple[list[tuple[int, int, Client]], bool]:
        """A process's clients of one card, and whether all of these files are what they were."""
        found: list[tuple[int, int, Client]] = []
        sure = True
        for name, minor in files:
            try:
                client = self._client(f"/proc/{pid}/fdinfo/{name}")
            except PermissionError:
                denied.add(pid)
                continue
            except OSError:
                client = None
            if client is None:
                sure = False
            elif client.pdev == address:
                found.append((pid, minor, client))
        return found, sure

    def _client(self, path: str) -> Client | None:
        """What a file says. One that says what it said before (an idle program's) is not parsed again."""
        text = self._tree.read(path)
        said, client = self._said.get(path, ("", None))
        if said != text:
            client = parse(text)
            self._said[path] = (text, client)
        return client

    def _again(self, pid: int) -> list[tuple[str, int]]:
        """Look through one process."""
        self._open.pop(pid, None)
        if found := self._opened(pid):
            self._open[pid] = found
        return found

    def _update(self, now_ns: int, *, everybody: bool) -> None:
        try:
            names = self._tree.names("/proc")
        except OSError as error:
            raise DeviceError(f"processes can't be listed: {error.strerror}") from error
        if names == self._names and not everybody:
            return  # the same processes, each of which was looked into
        pids = {int(name) for name in names if name.isdecimal()}
        if everybody:
            self._said.clear()
            self._full_ns = now_ns
            self._denied.clear()
        wanted = pids if everybody else pids - self._seen
        self._open = {pid: found for pid, found in self._open.items() if pid in pids and pid not in wanted}
        self._denied &= pids
        for pid in wanted:
            if found := self._opened(pid):
                self._open[pid] = found
        self._seen = self._seen & pids | wanted
        self._names = names

    def _opened(self, pid: int) -> list[tuple[str, int]]:
        """Which cards one process has open. One that ends meanwhile has none."""
        found: list[tuple[str, int]] = []
        try:
            for name in self._tree.names(f"/proc/{pid}/fd"):
                try:
                    target = self._tree.link(f"/proc/{pid}/fd/{name}")
                    minor = None
                    if not target.startswith(_NO_CARD):
                        minor = self._tree.drm_minor(f"/proc/{pid}/fd/{name}", target)
                except FileNotFoundError:
                    continue
                if minor is not None:
                    found.append((name, minor))
        except PermissionError:
            self._denied.add(pid)
        except OSError:
            return []
        return found

    def _counted(self, address: str, clients: Sequence[tuple[int, int, Client]]) -> tuple[Held, ...]:
        there = {(minor, client.client_id, pid) for pid, minor, client in clients}
        known = self._owners.get(address, {})
        owners = {key: pid for key, pid in known.items() if (*key, pid) in there}
        held: list[Held] = []
        done: set[tuple[int, str]] = set()
        for pid, minor, client in clients:
            key = (minor, client.client_id)
            first = owners.setdefault(key, pid) == pid and key not in done
            if first:
                done.add(key)
            held.append(Held(pid, minor, client, first))
        self._owners[address] = owners
        return tuple(held)
