"""Cards of amdgpu and xe, from the kernel's own files: sysfs, /proc, KFD and cgroups. See `base.DeviceBackend`.

What a process holds is what its open files of the card say is resident in the card's memory (fdinfo), or what the
compute driver says it gave it, whichever is more. Where some process can't be looked into, the list is not known at
all: whoever is missing might be the one.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from aliquot.agent.core import dmem
from aliquot.agent.core.fdinfo import percent
from aliquot.agent.core.islands import islands
from aliquot.agent.core.samples import (
    DeviceInfo,
    DriverInfo,
    HealthSample,
    LoadSample,
    MemorySample,
    ProcessList,
    ProcessSample,
)
from aliquot.agent.devices.base import BackendUnavailable, DeviceError, DeviceLost, Discovery, there, with_unread
from aliquot.agent.devices.drm import kfd, sensors
from aliquot.agent.devices.drm.cards import CLASS, PCI, VENDORS, Found, Inventory, cut_of, look, number, opened_by, text
from aliquot.agent.devices.drm.clients import Clients, Held, Look
from aliquot.agent.devices.drm.libraries import NOTHING, Libraries, Told
from aliquot.agent.devices.plain import PlainBackend
from aliquot.agent.enforce.base import Cgroups, Enforcer
from aliquot.agent.enforce.dmem import DmemEnforcer
from aliquot.agent.processes.tree import RealTree
from aliquot.common.kernel_files import KernelFiles, minor_of_name

_GONE = (errno.ENODEV, errno.EIO, errno.ENXIO)
GROWTH_BYTES = 64 << 20
"""So much more that nobody accounts for is worth a look at everybody."""
NEVER = float("-inf")
POLL_S = 0.02
"""So soon after its memory, a device's processes are asked for in the same poll."""
KERNEL = "/proc/sys/kernel/osrelease"


class DrmBackend(PlainBackend):
    """`tree`: of this machine, or of a recorded or simulated one. `libraries`: what its vendors' tell, if these
    are to be asked.
    """

    name = "drm"

    def __init__(
        self,
        tree: KernelFiles | None = None,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        libraries: Libraries | None = None,
    ) -> None:
        self._tree = tree or RealTree()
        self._libraries = libraries
        self._clients = Clients(self._tree, clock_ns)
        self._found: dict[str, Found] = {}
        self._minors_of: dict[str, frozenset[int]] = {}
        """By address: of a card's files and its parts'."""
        self._all_minors: frozenset[int] = frozenset()
        self._before: dict[str, Look] = {}
        self._shares: dict[str, dict[int, int]] = {}
        self._used_bytes: dict[str, int] = {}
        """By address: of the card, as last read."""
        self._checked_s: dict[str, float] = {}
        """When a device was last found to be who it was."""
        self._nobodys: dict[str, int] = {}
        """By address: of that, what nobody accounted for when everybody was looked at."""

    @property
    def calls(self) -> int:
        """Files asked for so far."""
        return self._tree.calls

    def open(self) -> DriverInfo:
        """Look whether there is a card. Nothing is loaded."""
        try:
            inventory = look(self._tree)
        except OSError as error:
            raise BackendUnavailable(f"no DRM devices: {error}", hint="load amdgpu or xe") from error
        if not inventory.found and not inventory.problems:
            raise BackendUnavailable(f"no card of {', '.join(VENDORS)} is in {CLASS}", hint="load amdgpu or xe")
        drivers = sorted({found.driver for found in inventory.found})
        versions = (text(self._tree, f"/sys/module/{driver}/version") for driver in drivers)
        told = (f"{driver} {version}".strip() for driver, version in zip(drivers, versions, strict=True))
        return DriverInfo(f"{', '.join(told)} on Linux {text(self._tree, KERNEL)}", "")

    def close(self) -> None:
        """End the programs that ask vendors' libraries."""
        if self._libraries is not None:
            self._libraries.close()

    def discover(self) -> Discovery:
        """Every card, or its parts."""
        try:
            inventory = look(self._tree)
        except OSError as error:
            raise DeviceError(f"{CLASS} can't be read: {error}") from error
        inventory = self._without_half_read(replace(inventory, found=self._linked(inventory.found)))
        leasable = [found for found in inventory.found if not found.why_not]
        known = {uuid: found.info for uuid, found in self._found.items()}
        there = with_unread(known, [found.info for found in inventory.found], inventory.problems)
        kept = {uuid: found for uuid, found in self._found.items() if uuid in there}
        self._found = kept | {found.info.uuid: found for found in inventory.found}
        minors: dict[str, frozenset[int]] = {}
        for found in self._found.values():
            address = found.info.pci_bus_id
            minors[address] = minors.get(address, frozenset()) | found.minors | _numbers(found.opened_by)
        self._minors_of, self._all_minors = minors, frozenset().union(*minors.values())
        return Discovery(
            tuple(found.info for found in leasable),
            inventory.problems,
            unleasable=tuple(
                f"{found.info.product_name} at {found.info.pci_bus_id}: {found.why_not}"
                for found in inventory.found
                if found.why_not
            ),
            measured=tuple(found.info for found in inventory.found if found.why_not and not found.divided),
            untold=self._libraries.problems if self._libraries is not None else (),
        )

    def _without_half_read(self, inventory: Inventory) -> Inventory:
        """Cut as before, a card has the parts that it had: one of which some are missing could not be read."""
        listed = {found.info.uuid for found in inventory.found}
        cuts = {found.info.physical_uuid: found.cut for found in inventory.found}
        missing = [each for uuid, each in self._found.items() if each.parts > 1 and each.cut and uuid not in listed]
        half_read = {each.info.physical_uuid for each in missing if cuts.get(each.info.physical_uuid) == each.cut}
        return Inventory(
            tuple(found for found in inventory.found if found.info.physical_uuid not in half_read),
            (*inventory.problems, *(f"{uuid}: some of its parts can't be read" for uuid in sorted(half_read))),
        )

    def _linked(self, found: tuple[Found, ...]) -> tuple[Found, ...]:
        """With islands of cards whose links only their vendor's library tells."""
        if self._libraries is None:
            return found
        self._libraries.look({each.info.vendor for each in found}, wait=True)
        whole = [each for each in found if not each.info.parent_uuid and each.parts == 1]
        if any(each.info.fabric_island is not None for each in whole):
            return found  # the kernel tells links on this machine
        there = {each.info.pci_bus_id for each in whole}
        reach = islands({each.info.pci_bus_id: there & set(self._told(each).peers) for each in whole})
        numbers = {each.info.uuid: reach.get(each.info.pci_bus_id) for each in whole}
        return tuple(
            replace(each, info=replace(each.info, fabric_island=numbers.get(each.info.uuid))) for each in found
        )

    def _told(self, found: Found) -> Told:
        """What the library of its vendor says of a card."""
        if self._libraries is None:
            return NOTHING
        return self._libraries.of(found.info.vendor, found.info.pci_bus_id)

    def visibility(self, devices: Sequence[DeviceInfo]) -> Mapping[str, str]:
        """AMD's by identity, or by its place where it has none; Intel's by place in the order of the bus."""
        result: dict[str, str] = {}
        amd = [device for device in devices if device.vendor == "amd"]
        if amd:
            result["ROCR_VISIBLE_DEVICES"] = ",".join(map(self._rocr_name, amd))
        intel = [device for device in devices if device.vendor == "intel"]
        if intel:
            known = [found for device in intel if (found := self._found.get(device.uuid)) is not None]
            result["ZE_AFFINITY_MASK"] = ",".join(str(found.place) for found in known)
            result["ZE_ENABLE_PCI_ID_DEVICE_ORDER"] = "1"
        return result

    def _rocr_name(self, device: DeviceInfo) -> str:
        found = self._found.get(device.uuid)
        if not device.parent_uuid and device.uuid.startswith("GPU-"):
            return device.uuid
        if found is None or found.node is None:
            return device.uuid  # which shows nothing, rather than another one
        return str(found.node.order)

    def unusable(self, device: DeviceInfo) -> str:
        """Programs reach AMD's cards by its compute driver."""
        found = self._found.get(device.uuid)
        if found is not None and found.driver == "amdgpu" and found.node is None:
            return "amdgpu's compute driver (KFD) does not have this card: /dev/kfd is what programs use"
        return ""

    def enforcers(self, cgroups: Cgroups) -> Iterable[tuple[str, Enforcer]]:
        """The kernel's limits on cgroups, on cards of either driver."""
        enforcer = DmemEnforcer(self._tree, cgroups)
        return [("amd", enforcer), ("intel", enforcer)]

    def probe(self, device: DeviceInfo) -> Sequence[str]:
        """Through the card's render node."""
        found = self._found.get(device.uuid)
        render = min((minor for minor in found.minors if minor >= 128), default=None) if found is not None else None
        if found is None or render is None:
            return ()
        return (*self._tree.taker, "--driver", found.driver, "--minor", str(render)) if self._tree.taker else ()

    def memory(self, uuid: str) -> MemorySample:
        """Of a card, as its driver counts it. Of a part: what its own processes hold, and its part of what the card
        holds for nobody that is known.
        """
        found = self._there(uuid)
        address = found.info.pci_bus_id
        if found.driver == "amdgpu":
            used = self._number(f"{PCI}/{address}/mem_info_vram_used")
            self._used_bytes[address] = used
            if found.parts > 1:
                used = self._used_by_part(found, used)
            return MemorySample(found.info.memory_total_bytes, 0, used)
        if found.why_not:
            return MemorySample(found.info.memory_total_bytes, 0, None)
        mount = self._tree.cgroups()
        try:
            current = dmem.parse(self._tree.read(f"{mount.directory}/dmem.current")) if mount is not None else {}
        except OSError as error:
            raise DeviceError(f"its memory in use is not told: {error}") from error
        regions = dmem.regions_of(current, address)
        if not regions:
            raise DeviceLost("the kernel counts no memory of it any more: its driver was unloaded, or is starting")
        self._used_bytes[address] = sum(current[region] or 0 for region in regions)
        return MemorySample(found.info.memory_total_bytes, 0, self._used_bytes[address])

    def _used_by_part(self, found: Found, card_used: int) -> int:
        parts = [other for other in self._found.values() if other.info.parent_uuid == found.info.parent_uuid]
        look_now = self._clients.look(found.info.pci_bus_id, self._others(found))
        held = {part.info.uuid: sum(self._by_pid(part, look_now).values()) for part in parts}
        nobodys = max(0, card_used - sum(held.values()))
        return held[found.info.uuid] + -(-nobodys // len(parts))

    def processes(self, uuid: str) -> ProcessList:
        """Each once, with what is resident for it."""
        found = self._just_there(uuid)
        now = self._look(found)
        if now.denied:
            raise DeviceError(
                f"{len(now.denied)} processes can't be looked into, such as {min(now.denied)}: run the agent as root, "
                "or with CAP_SYS_PTRACE"
            )
        own = self._of(found, now)
        ours = self._libraries.pids if self._libraries is not None else frozenset()
        untold = {each.pid for each in own if each.counted and each.client.memory_bytes is None}
        sizes = self._by_pid(found, now)
        return ProcessList(
            tuple(
                ProcessSample(pid, None if pid in untold else size)
                for pid, size in sorted(sizes.items())
                if pid not in ours
            )
        )

    def _look(self, found: Found) -> Look:
        """At those who are known; at everybody where more memory is in use than they account for, unless it was so."""
        address = found.info.pci_bus_id
        now = self._clients.look(address, self._others(found))
        missing = self._unexplained(found, now)
        if missing > self._nobodys.get(address, 0) + GROWTH_BYTES:
            now = self._clients.look(address, self._others(found), everybody=True)
            missing = self._nobodys[address] = self._unexplained(found, now)
        self._nobodys[address] = min(missing, self._nobodys.get(address, 0))
        return now

    def _others(self, found: Found) -> frozenset[int]:
        """Minors of the other cards."""
        return self._all_minors - self._minors_of.get(found.info.pci_bus_id, frozenset())

    def _unexplained(self, found: Found, now: Look) -> int:
        """What is in use of a card, as last read, and by nobody that was seen."""
        held = sum((each.client.memory_bytes or 0) * each.counted for each in now.held)
        return self._used_bytes.get(found.info.pci_bus_id, 0) - held

    def _of(self, found: Found, now: Look) -> list[Held]:
        """Clients of a card; of a part, those that have its own file open: the parts' address is the same."""
        by_minor = found.parts > 1 and found.driver == "amdgpu"
        return [each for each in now.held if not by_minor or each.minor in found.minors]

    def _by_pid(self, found: Found, now: Look) -> dict[int, int]:
        sizes: dict[int, int] = {}
        for each in self._of(found, now):
            sizes[each.pid] = sizes.get(each.pid, 0) + (each.client.memory_bytes or 0) * each.counted
        if found.node is not None:
            for pid, size in kfd.held(self._tree, found.node.gpu_id, None if now.everybody else list(sizes)).items():
                if size or pid in sizes:
                    sizes[pid] = max(size, sizes.get(pid, 0))
        return sizes

    def load(self, uuid: str) -> LoadSample:
        """Of the card. A part of one has the card's heat and power, and its own processes' time."""
        found = self._there(uuid)
        shares = self._shares.get(uuid)
        busy = None if found.driver == "amdgpu" or shares is None else min(100, sum(shares.values()))
        return sensors.load(self._tree, found.info.pci_bus_id, busy)

    def process_load(self, uuid: str) -> Mapping[int, int] | None:
        """By what its clients have had of the busiest engine since the last call."""
        found = self._there(uuid)
        now = self._clients.look(found.info.pci_bus_id, self._others(found))
        before = self._before.get(uuid)
        self._before[uuid] = now
        if before is None:
            return None
        earlier = {(each.minor, each.client.client_id): each.client for each in self._of(found, before)}
        shares: dict[int, int] = {}
        for each in self._of(found, now):
            known = earlier.get((each.minor, each.client.client_id))
            if each.counted and known is not None:
                shares[each.pid] = shares.get(each.pid, 0) + percent(known, each.client, now.at_ns - before.at_ns)
        self._shares[uuid] = {pid: min(100, share) for pid, share in shares.items()}
        return dict(self._shares[uuid])

    def process_peaks(self, uuid: str) -> Mapping[int, int] | None:
        """The same: the kernel keeps no samples in between."""
        return self._shares.get(uuid)

    def health(self, uuid: str) -> HealthSample:
        """Of its card."""
        found = self._found.get(uuid) or next(
            (each for each in self._found.values() if each.info.parent_uuid == uuid), None
        )
        if found is None:
            raise DeviceError(f"{uuid} is not there (any more)")
        sample = sensors.health(self._tree, self._there(found.info.uuid).info.pci_bus_id)
        if self._libraries is None:
            return sample
        self._libraries.look({found.info.vendor})
        told = self._told(found)
        errors = sample.uncorrected_errors if sample.uncorrected_errors is not None else told.uncorrected
        return replace(sample, uncorrected_errors=errors, links_up=told.links_up)

    def _just_there(self, uuid: str) -> Found:
        """The same for what is asked right after the memory, in one poll."""
        found = self._found.get(uuid)
        if found is not None and time.monotonic() < self._checked_s.pop(uuid, NEVER) + POLL_S:
            return found
        return self._there(uuid)

    def _there(self, uuid: str) -> Found:
        """Raises `DeviceLost` for one that is gone, or whose card was cut anew."""
        found = there(self._found, uuid)
        address = found.info.pci_bus_id
        opened = opened_by(self._tree, address)
        if not opened:
            raise DeviceLost(f"{address} is gone, or its driver was unloaded")
        if opened != found.opened_by:
            raise DeviceLost(f"the driver of {address} was loaded again")
        try:
            now = cut_of(self._tree, address) if found.cut else ""
        except OSError as error:
            raise DeviceError(f"how {address} is cut can't be read: {error.strerror}") from error
        if now != found.cut:
            raise DeviceLost(f"its card was cut anew: {now or 'not at all'}, and not {found.cut}")
        if found.parts == 1 and found.driver == "xe" and number(self._tree, f"{PCI}/{address}/sriov_numvfs"):
            raise DeviceLost("its card was cut into virtual functions")
        self._checked_s[uuid] = time.monotonic()
        return found

    def _number(self, path: str) -> int:
        try:
            return int(self._tree.read(path))
        except OSError as error:
            kind = DeviceLost if error.errno in (*_GONE, errno.ENOENT) else DeviceError
            raise kind(f"{path}: {error.strerror}") from error
        except ValueError as error:
            raise DeviceError(f"{path}: {error}") from error


def _numbers(names: frozenset[str]) -> frozenset[int]:
    found = (minor_of_name(f"/dev/dri/{name}") for name in names)
    return frozenset(number for number in found if number is not None)
