"""Cgroups of pods, as the kubelet and the runtime make them, in the cgroup v2 hierarchy of this machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

from aliquot.kube.node.core.cgroup_names import elsewhere, pod_cgroups
from aliquot.kube.node.identity import NotBound, PodIdentity

MAX_ENVIRONMENT_BYTES = 1 << 20


class PodCgroups:
    """`root`: where the whole hierarchy is mounted. `kubelet_root`: the kubelet's `cgroupRoot`."""

    def __init__(self, root: Path, kubelet_root: str = "/", proc: Path = Path("/proc")) -> None:
        self._root = root
        self._kubelet_root = kubelet_root
        self._proc = proc

    def of_pod(self, pod: PodIdentity) -> str:
        """The cgroup of a pod, from the root of the hierarchy. Raises `NotBound`."""
        names = pod_cgroups(pod.uid, self._kubelet_root)
        found = [name for name in names if self._directory(name).is_dir()]
        if not found:
            raise NotBound("NoCgroup", f"pod {pod} ({pod.uid}) has no cgroup below {self._root} (yet)")
        if len(found) > 1:
            raise NotBound("SeveralCgroups", f"pod {pod} has several cgroups: {', '.join(found)}", final=True)
        return found[0]

    def exists(self, cgroup: str) -> bool:
        """Whether it is there."""
        return self._directory(cgroup).is_dir()

    def children(self, cgroup: str) -> list[str]:
        """Names of the cgroups right below: those of containers."""
        with contextlib.suppress(OSError):
            return sorted(entry.name for entry in self._directory(cgroup).iterdir() if entry.is_dir())
        return []

    def outside(self, cgroup: str, container_ids: Collection[str]) -> list[str]:
        """Which of these containers have no cgroup in their pod's."""
        return elsewhere(container_ids, self.children(cgroup)) if container_ids else []

    def of_containers(self, cgroup: str, container_ids: Collection[str]) -> list[str]:
        """The cgroups below a pod's that are these containers'; its sandbox, which is given nothing, has another."""
        bare = [each.rpartition("/")[2] for each in container_ids]
        return [f"{cgroup}/{child}" for child in self.children(cgroup) if any(each and each in child for each in bare)]

    def pids(self, cgroup: str) -> list[int]:
        """Processes in it and below."""
        found: list[int] = []
        for folder, _, files in os.walk(self._directory(cgroup)):
            if "cgroup.procs" in files:
                with contextlib.suppress(OSError):
                    text = (Path(folder) / "cgroup.procs").read_text(encoding="ascii")
                    found += [int(word) for word in text.split()]
        return found

    def users(self, cgroup: str) -> set[int]:
        """The users of its processes."""
        found = set()
        for pid in self.pids(cgroup):
            with contextlib.suppress(OSError):
                found.add((self._proc / str(pid)).stat().st_uid)
        return found

    def has_variable(self, cgroup: str, name: str) -> bool | None:
        """Whether any of its processes was started with a variable; None where no process can be looked at."""
        looked = False
        for pid in self.pids(cgroup):
            with contextlib.suppress(OSError), (self._proc / str(pid) / "environ").open("rb") as file:
                text = file.read(MAX_ENVIRONMENT_BYTES)
                looked = looked or bool(text)  # a process that is just becoming another program shows nothing
                if any(each.startswith(name.encode() + b"=") for each in text.split(b"\0")):
                    return True
        return False if looked else None

    def _directory(self, cgroup: str) -> Path:
        return self._root / cgroup.lstrip("/")
