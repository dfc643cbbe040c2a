"""The cgroup v2 hierarchy: where it is mounted, and a directory for each holder of a lease.

Many machines run hybrid hierarchies, where version 2 is mounted beside version 1 (`/sys/fs/cgroup/unified`), and
containers see a part of it; so nothing here assumes a path: /proc/self/mountinfo says. No controller is switched on.
The directories only follow processes: whoever is born in one stays in it, and only who may write to it can leave.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

from aliquot.agent.core.model import Holder
from aliquot.agent.processes.proc import cgroup_of
from aliquot.common.errors import AliquotError
from aliquot.common.kernel_files import MOUNTINFO, Mount, find_mount

BASE_NAME = "aliquot"
_LEAF = re.compile(r"(?P<epoch>[0-9]+)\.(?P<member>[0-9]+)")
SERVICE = "service"
"""Below a holder's leaf, of what the agent started to serve it and what that started: so it can be ended by itself."""
_LIMITS = ("memory.max", "memory.high", "cpu.max")


class ContainmentError(AliquotError):
    """A process could not be put into its lease's cgroup."""


class CgroupTree:
    """The agent's own subtree: `<base>/<node>/<lease>/<lease_epoch>.<member>`, one leaf per holder."""

    def __init__(self, mount: Mount, base: str) -> None:
        self._mount = mount
        self.base = base
        """The node's subtree, as /proc/pid/cgroup names it."""
        directory = mount.directory_of(base)
        if directory is None:
            raise ContainmentError(f"cgroup {base} is not within the mounted {mount.root}")
        self._directory = directory

    @classmethod
    def open(cls, node_id: str, configured_base: str = "") -> CgroupTree:
        """Find a place where directories can be made: the configured one, the top (as root), or below the agent's own
        cgroup (when that is delegated). Raises `ContainmentError` that says what stands in the way of each.
        """
        mount = find_mount(MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape"))
        if mount is None:
            raise ContainmentError(
                "no cgroup v2 hierarchy is mounted",
                hint="mount one, or boot with systemd's unified hierarchy",
            )
        own = cgroup_of(os.getpid()) or "/"
        top = mount.root.rstrip("/")
        candidates = [configured_base] if configured_base else [f"{top}/{BASE_NAME}", f"{own.rstrip('/')}/{BASE_NAME}"]
        problems = []
        for candidate in dict.fromkeys(candidates):
            try:
                tree = cls(mount, f"{candidate.rstrip('/')}/{quote(node_id, safe='')}")
                tree._directory.mkdir(parents=True, exist_ok=True)
                probe = tree._directory / "cgroup.procs"
                if not os.access(probe, os.W_OK):
                    raise PermissionError(errno.EACCES, "not writable", str(probe))
            except (OSError, ContainmentError) as error:
                problems.append(f"{candidate}: {error}")
            else:
                return tree
        raise ContainmentError(
            "no cgroup can be made here: " + "; ".join(problems),
            hint="run the agent as root, or under a systemd unit with Delegate=yes",
        )

    def path_of(self, holder: Holder) -> str:
        """The holder's leaf, as /proc/pid/cgroup names it."""
        return f"{self.base}/{quote(holder.lease_id, safe='')}/{holder.lease_epoch}.{holder.member}"

    def directory_of(self, holder: Holder) -> Path:
        """The holder's leaf in the file system."""
        return self._directory / quote(holder.lease_id, safe="") / f"{holder.lease_epoch}.{holder.member}"

    def add(self, pid: int, holder: Holder, part: str = "") -> None:
        """Put a process into the holder's leaf, or into a part of it; its future children are born there.

        Raises `ContainmentError` when the move would lift limits that its present cgroup puts on it, or is
        not permitted.
        """
        limited = self._limits_left_behind(pid)
        if limited:
            raise ContainmentError(f"its cgroup carries limits ({limited}) that moving it would lift")
        leaf = self.directory_of(holder) / part
        try:
            leaf.mkdir(parents=True, exist_ok=True)
            (leaf / "cgroup.procs").write_text(str(pid), encoding="ascii")
        except OSError as error:
            raise ContainmentError(f"cgroup {self.path_of(holder)}: {error.strerror}") from error

    def put_back(self, pid: int, origin: str) -> None:
        """Move a process to a cgroup that is not ours; to the top when that one is gone."""
        for cgroup in (origin, self._mount.root):
            directory = self._mount.directory_of(cgroup)
            if directory is not None:
                with contextlib.suppress(OSError):
                    (directory / "cgroup.procs").write_text(str(pid), encoding="ascii")
                    return

    def members(self, holder: Holder, part: str = "") -> list[int]:
        """Processes in the holder's leaf, or in a part of it, and below."""
        return _pids(self.directory_of(holder) / part)

    def freeze(self, holder: Holder, *, frozen: bool) -> None:
        """Stop (or let go on) everything in the leaf, so that nothing forks while it is being ended. A frozen
        process can still be killed. Kernels before 5.2 can't freeze; then nothing happens.
        """
        with contextlib.suppress(OSError):
            (self.directory_of(holder) / "cgroup.freeze").write_text("1" if frozen else "0", encoding="ascii")

    def remove(self, holder: Holder) -> None:
        """Remove the leaf and, when it was the last one, its lease's directory. One that is still in use stays."""
        leaf = self.directory_of(holder)
        for directory in [*reversed(list(_walk(leaf))), leaf.parent]:
            with contextlib.suppress(OSError):
                directory.rmdir()

    def close(self) -> None:
        """Remove the node's subtree if no lease is left in it."""
        with contextlib.suppress(OSError):
            self._directory.rmdir()

    # cgroups that somebody else made

    def find(self, cgroup: str) -> tuple[str, int]:
        """The path, as /proc/pid/cgroup has it here, and the inode of a cgroup that is named from the root of the
        hierarchy. Raises `ContainmentError`.
        """
        parts = cgroup.split("/")
        if len(parts) < 2 or parts[0] or not all(parts[1:]) or {".", ".."} & set(parts):
            raise ContainmentError(f"{cgroup!r} is no cgroup", hint="name it from the root, such as /jobs/7")
        path = self._mount.own_name(cgroup)
        inode = self.inode_of(path)
        if inode is None:
            raise ContainmentError(f"there is no cgroup {cgroup} that the agent can see")
        return path, inode

    def full_name(self, path: str) -> str:
        """A cgroup's name from the root of the hierarchy."""
        return self._mount.full_name(path)

    def inode_of(self, path: str) -> int | None:
        """Which cgroup has a path now; None: none."""
        directory = self._mount.directory_of(path)
        try:
            return None if directory is None else directory.stat().st_ino
        except OSError:
            return None

    def pids_in(self, path: str) -> list[int]:
        """Processes in any cgroup and below it."""
        directory = self._mount.directory_of(path)
        return [] if directory is None else _pids(directory)

    def freeze_path(self, path: str, *, frozen: bool) -> None:
        """The same as `freeze`, of any cgroup."""
        directory = self._mount.directory_of(path)
        if directory is not None:
            with contextlib.suppress(OSError):
                (directory / "cgroup.freeze").write_text("1" if frozen else "0", encoding="ascii")

    def holders(self) -> Iterator[tuple[str, Holder]]:
        """Every leaf there is, also from before a restart: its path, and whose it is."""
        for lease in _children(self._directory):
            for leaf in _children(lease):
                match = _LEAF.fullmatch(leaf.name)
                if match is not None:
                    holder = Holder(unquote(lease.name), int(match["epoch"]), int(match["member"]))
                    yield self.path_of(holder), holder

    def _limits_left_behind(self, pid: int) -> str:
        cgroup = cgroup_of(pid)
        ours = f"{self.base}/"
        while cgroup and cgroup != "/" and not ours.startswith(f"{cgroup}/"):
            directory = self._mount.directory_of(cgroup)
            limited = "" if directory is None else _limit_in(directory)
            if limited:
                return f"{limited} of {cgroup}"
            cgroup = cgroup.rpartition("/")[0]
        return ""


def below(top: Path) -> Iterator[Path]:
    """Every cgroup below one, parents first."""
    found = _walk(top)
    next(found)
    return found


def _limit_in(directory: Path) -> str:
    """The first file of a cgroup that limits memory or CPU."""
    for name in _LIMITS:
        with contextlib.suppress(OSError):
            if not (directory / name).read_text(encoding="ascii").startswith("max"):
                return name
    return ""


def _pids(top: Path) -> list[int]:
    """Processes in a cgroup and below it."""
    found: list[int] = []
    for directory in _walk(top):
        with contextlib.suppress(OSError):
            found += [int(word) for word in (directory / "cgroup.procs").read_text(encoding="ascii").split()]
    return found


def _children(directory: Path) -> list[Path]:
    try:
        return sorted(child for child in directory.iterdir() if child.is_dir())
    except OSError:
        return []


def _walk(directory: Path) -> Iterator[Path]:
    """A directory and everything below it, parents first. Tenants may have made cgroups of their own below a leaf."""
    yield directory
    for child in _children(directory):
        yield from _walk(child)
