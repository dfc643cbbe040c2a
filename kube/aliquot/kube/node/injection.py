"""What a container finds: variables and folders that its tier needs.

`Allocate` does not say which pod it is for, so it only promises a place named by the units; what belongs there is put
there when the pod is known, before the container starts. Two ways, by what the runtime can do:

    cdi     the promise names a device of the Container Device Interface, whose description is written later: with all
            variables and folders. Runtimes since containerd 1.7 and CRI-O 1.26 can; older ones drop it silently
    mounts  the promise is a mount of one folder, a link to it is put there later. Variables are those of the pod, which
            it has from its annotations
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from aliquot.client.local import CgroupAttachment
from aliquot.common.own_files import write_whole
from aliquot.kube.node.protos import deviceplugin_pb2 as pb

CDI_VERSION = "0.5.0"
"""The least that names that begin with a digit need: runtimes refuse descriptions of a version that they don't know."""
CDI_KIND = "aliquot.dev/part"
MOUNT_POINT = "/run/aliquot/lease"
"""In a container, where its tier's folder is mounted."""
LIBRARY_VARIABLE = "LD_PRELOAD"
_NAME = re.compile(r"[0-9a-f]{24}")


def place(units: Iterable[str]) -> str:
    """The name of the place for these units."""
    return hashlib.sha256("\n".join(sorted(units)).encode()).hexdigest()[:24]


class CdiInjection:
    """`folder`: where the runtime looks for descriptions, such as /var/run/cdi. Nodes of devices and the driver's files
    come from the vendor's runtime, which goes by `NVIDIA_VISIBLE_DEVICES`.
    """

    variable = "ALIQUOT_SLICE_IDS"
    """What every container has in its environment where the promise was kept. Pods may have the id of their lease from
    their annotations; of its slices only an agent tells.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def promise(self, units: Iterable[str]) -> pb.ContainerAllocateResponse:
        """Answered when nobody knows yet for whom: the name of a device, described before the container is made."""
        return pb.ContainerAllocateResponse(cdi_devices=[pb.CDIDevice(name=f"{CDI_KIND}={place(units)}")])

    def fulfil(self, units: Sequence[str], attached: CgroupAttachment) -> None:
        """Write the description; it appears whole."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = place(units)
        edits = {
            "env": [f"{key}={value}" for key, value in sorted(attached.environment.items())],
            "mounts": [
                {"hostPath": path, "containerPath": path, "options": ["rw", "nosuid", "nodev", "bind"]}
                for path in attached.folders
            ],
        }
        text = {
            "cdiVersion": CDI_VERSION,
            "kind": CDI_KIND,
            "devices": [{"name": name, "containerEdits": {key: value for key, value in edits.items() if value}}],
        }
        write_whole(self._folder / _file_name(name), json.dumps(text, indent=1).encode(), mode=0o644)

    def withdraw(self, names: Iterable[str]) -> None:
        """Remove descriptions that nobody will use any more."""
        for name in names:
            if _NAME.fullmatch(name):
                (self._folder / _file_name(name)).unlink(missing_ok=True)


class MountInjection:
    """`folder`: where links are kept; the runtime must see it at the same path. `preload`: the devices here are held by
    the library, which containers must load. Where a slice turns out to be held in another way, they find nothing to
    load, and the loader says so.
    """

    def __init__(self, folder: Path, library: str = "") -> None:
        self._folder = folder
        self._library = library

    @property
    def variable(self) -> str:
        """As of the other way; empty where there is no library to load: nothing can be said then."""
        return LIBRARY_VARIABLE if self._library else ""

    def promise(self, units: Iterable[str]) -> pb.ContainerAllocateResponse:
        """Answered when nobody knows yet for whom: a mount of what will be there."""
        variables = {LIBRARY_VARIABLE: f"{MOUNT_POINT}/{self._library}"} if self._library else {}
        mount = pb.Mount(container_path=MOUNT_POINT, host_path=str(self._folder / place(units)))
        return pb.ContainerAllocateResponse(envs=variables, mounts=[mount])

    def fulfil(self, units: Sequence[str], attached: CgroupAttachment) -> None:
        """Link to the folder of the slice's tier, or to an empty one."""
        empty = self._folder / "empty"
        empty.mkdir(parents=True, exist_ok=True)
        target = self._folder / place(units)
        staging = target.with_suffix(f".{os.getpid()}")
        staging.unlink(missing_ok=True)
        staging.symlink_to(attached.folders[0] if attached.folders else empty)
        staging.replace(target)

    def withdraw(self, names: Iterable[str]) -> None:
        """Remove links that nobody will use any more."""
        for name in names:
            if _NAME.fullmatch(name):
                (self._folder / name).unlink(missing_ok=True)


Injection = CdiInjection | MountInjection
"""One of the ways."""


def _file_name(name: str) -> str:
    return f"aliquot-{name}.json"
