"""Google's TPUs, from the kernel's files alone, each chip whole: one program at a time has a chip.

Not run on hardware: only on generated trees. What chips there are, sysfs tells, and who has one open, /proc. How much
of its memory is in use, only the program itself could say: it is unknown here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from aliquot.agent.core.samples import (
    DeviceInfo,
    DriverInfo,
    MemorySample,
    ProcessList,
)
from aliquot.agent.devices.base import BackendUnavailable, DeviceLost, Discovery, there
from aliquot.agent.devices.owners import Owners
from aliquot.agent.devices.plain import PlainBackend
from aliquot.common.catalog import memory_total_bytes

VENDOR = "tpu"
PCI_VENDOR = "0x1ae0"
_CHIPS = {"0x005e": "TPU-V4", "0x0062": "TPU-V5P", "0x0063": "TPU-V5E", "0x006f": "TPU-V6E", "0x0076": "TPU-7X"}
"""By PCI device, as Google's `tpu-info` has them."""
_OLD = {"0x004e": "TPU-V2", "0x004f": "TPU-V3"}
"""By PCI subsystem device, of PCI device 0x0027."""
_OLD_DEVICE = "0x0027"
_ACCEL_FILE = re.compile(r"accel[0-9]+")


class Chip(msgspec.Struct, frozen=True):
    """One chip."""

    address: str
    """On the bus, without the function."""
    model: str
    files: frozenset[str]
    number: int


class TpuBackend(PlainBackend):
    """See `base.DeviceBackend`."""

    name = "tpu"

    def __init__(self, sys_root: Path = Path("/sys"), owners: Owners | None = None) -> None:
        self._sys, self._owners = sys_root, owners or Owners()
        self._known: dict[str, Chip] = {}
        self.calls = 0

    def open(self) -> DriverInfo:
        """There is nothing to open: only to see that there are chips."""
        if not chips(self._sys):
            raise BackendUnavailable("no TPU is on the PCI bus of this machine", hint="look at lspci -d 1ae0:")
        return DriverInfo("", "")

    def discover(self) -> Discovery:
        """Every chip. A chip is known by its place on the bus: it has no name of its own."""
        self.calls += 1
        self._known = {f"TPU-{chip.address}": chip for chip in chips(self._sys)}
        return Discovery(tuple(self._info(uuid, chip) for uuid, chip in self._known.items()))

    def _info(self, uuid: str, chip: Chip) -> DeviceInfo:
        return DeviceInfo(
            uuid=uuid,
            index=chip.number,
            product_name=chip.model,
            model=chip.model,
            vendor=VENDOR,
            memory_total_bytes=memory_total_bytes(chip.model) or 0,
            memory_reserved_bytes=0,
            pci_bus_id=f"{chip.address}.0",
        )

    def visibility(self, devices: Sequence[DeviceInfo]) -> Mapping[str, str]:
        """By number in the order of the bus, because libtpu takes nothing else; and no chip beyond this host's."""
        numbers = [str(self._known[device.uuid].number) for device in devices if device.uuid in self._known]
        return {"TPU_VISIBLE_CHIPS": ",".join(numbers), "TPU_VISIBLE_DEVICES": ",".join(numbers)}

    def unusable(self, device: DeviceInfo) -> str:
        """Whether it has a file that a program can open."""
        chip = self._known.get(device.uuid)
        return "" if chip is None or chip.files else "the chip has no file in /dev: look at its driver"

    def memory(self, uuid: str) -> MemorySample:
        """As much as its model has; nothing is in use while nobody has the chip open, and else it is unknown."""
        chip = self._chip(uuid)
        if not (self._sys / "bus/pci/devices" / f"{chip.address}.0" / "vendor").exists():
            raise DeviceLost(f"{uuid} is not on the bus any more")
        listed = self.processes(uuid)
        free = listed.complete and not listed.processes
        return MemorySample(memory_total_bytes(chip.model) or 0, 0, 0 if free else None)

    def processes(self, uuid: str) -> ProcessList:
        """Who has one of its files open."""
        self.calls += 1
        return self._owners.on(self._chip(uuid).files)

    def _chip(self, uuid: str) -> Chip:
        return there(self._known, uuid)


def chips(sys_root: Path = Path("/sys")) -> list[Chip]:
    """Those on the bus, in its order. The functions of one chip (its cores) are one. Raises `BackendUnavailable`
    where one can't be read.
    """
    found: dict[str, tuple[str, set[str]]] = {}
    folder = sys_root / "bus/pci/devices"
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if _word(path / "vendor") != PCI_VENDOR:
            continue
        device = _word(path / "device")
        model = _CHIPS.get(device) or (_OLD.get(_word(path / "subsystem_device")) if device == _OLD_DEVICE else None)
        if model is not None:
            files = found.setdefault(path.name.partition(".")[0], (model, set()))[1]
            files.update(_files(path))
    return [
        Chip(address, model, frozenset(files), number) for number, (address, (model, files)) in enumerate(found.items())
    ]


def _files(device: Path) -> list[str]:
    """By which programs open a chip: VFIO's file of its group, or that of Google's older driver."""
    group = device / "iommu_group"
    files = [f"/dev/{path.name}" for path in device.glob("accel/*") if _ACCEL_FILE.fullmatch(path.name)]
    return [*files, f"/dev/vfio/{group.resolve().name}"] if group.is_symlink() else files


def _word(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""  # it has left the bus; one that can't be read has not
    except OSError as error:
        raise BackendUnavailable(f"{path} can't be read: {error.strerror}", hint="look at lspci -d 1ae0:") from error
