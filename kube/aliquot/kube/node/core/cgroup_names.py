"""What a kubelet calls the cgroup of a pod: by its two cgroup drivers, in each class of service.

    cgroupfs    /kubepods/burstable/pod<uid>
    systemd     /kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid with _>.slice

Containers' cgroups are below it, so it is what all containers of a pod share, the first and the helping ones too. It is
there before any of them. Names are from the root of the hierarchy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

KUBEPODS = "kubepods"
_CLASSES: tuple[tuple[str, ...], ...] = ((), ("burstable",), ("besteffort",))


def pod_cgroups(uid: str, kubelet_root: str = "/") -> tuple[str, ...]:
    """The cgroups that a pod may have; at most one of them exists. `kubelet_root`: the kubelet's `cgroupRoot`."""
    root = tuple(part for part in kubelet_root.split("/") if part)
    found = []
    for middle in _CLASSES:
        parts = (*root, KUBEPODS, *middle, f"pod{uid}")
        found += ["/" + "/".join(parts), _systemd(parts)]
    return tuple(found)


def elsewhere(container_ids: Iterable[str], children: Collection[str]) -> list[str]:
    """Containers that are said to run, but have no cgroup among the children of their pod's. Runtimes name theirs by
    the container's id, with words of their own around it.
    """
    bare = [each.rpartition("/")[2] for each in container_ids]
    return [each for each in bare if not each or not any(each in child for child in children)]


def _systemd(parts: tuple[str, ...]) -> str:
    """The nested slices that systemd makes of a name with dashes."""
    escaped = [part.replace("-", "_") for part in parts]
    return "".join(f"/{'-'.join(escaped[: depth + 1])}.slice" for depth in range(len(escaped)))
