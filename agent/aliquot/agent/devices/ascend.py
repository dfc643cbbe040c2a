"""Ascend cards, through DCMI. Not run on hardware: only on the simulated cards of `aliquot.simgpu.vendors.dcmi`.

A chip is a device; one that is divided is listed as its virtual NPUs, each a device that names its chip. What DCMI
cannot tell is unknown here: the memory that programs hold on one virtual NPU among several, and whose they are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from aliquot.agent.core.islands import islands
from aliquot.agent.core.partitioning import Card, Instance, Part, Profile, Recut
from aliquot.agent.core.samples import (
    ActivitySource,
    DeviceInfo,
    DriverInfo,
    HealthSample,
    LoadSample,
    MemorySample,
    ProcessList,
    ProcessSample,
    RecoveryAction,
)
from aliquot.agent.devices import vnpu
from aliquot.agent.devices.base import DeviceError, DeviceLost, Discovery, Geometry, there, with_unread
from aliquot.agent.devices.dcmi import AI_CORES, HBM_BANDWIDTH, Chip, Dcmi, VirtualNpu
from aliquot.agent.devices.plain import PlainBackend
from aliquot.agent.enforce.base import Cgroups, EnforcementError, Enforcer
from aliquot.agent.enforce.nothing_set import InstanceEnforcer
from aliquot.common.catalog import canonical_model

MIB = 1 << 20
VENDOR = "npu"
_HEALTHY, _WARNING, _ALARM, _CRITICAL = range(4)
_DECIWATT_MW = 100


class _Known(msgspec.Struct, frozen=True):
    """Where a device is found."""

    chip: Chip
    logic_id: int
    physical_id: int
    number: int | None = None
    """Of a virtual NPU."""


class AscendBackend(PlainBackend):
    """See `base.DeviceBackend`."""

    name = "ascend"

    def __init__(self, library: str = "") -> None:
        """`library`: its path; empty: where the driver puts it."""
        self._library = library
        self._dcmi: Dcmi | None = None
        self._known: dict[str, _Known] = {}
        self._infos: dict[str, DeviceInfo] = {}
        self._cards: dict[str, Card] = {}
        self._reserved: dict[Chip, int] = {}
        """What the chip itself holds, in bytes: what is in use beyond all processes, at the least that was seen."""
        self._geometry = _Geometry(self)

    @property
    def geometry(self) -> Geometry:
        """How chips are divided."""
        return self._geometry

    @property
    def calls(self) -> int:
        """Calls into the library so far."""
        return self._dcmi.calls if self._dcmi is not None else 0

    @property
    def dcmi(self) -> Dcmi:
        """The library. Raises `DeviceError` before `open`."""
        if self._dcmi is None:
            raise DeviceError("DCMI is not open")
        return self._dcmi

    def open(self) -> DriverInfo:
        """Load `libdcmi.so` and talk to the driver."""
        self._dcmi = Dcmi(self._library)
        return DriverInfo(self._dcmi.driver_version(), "")

    def close(self) -> None:
        """DCMI has nothing to let go of."""
        self._dcmi = None

    def discover(self) -> Discovery:
        """Every chip, or its virtual NPUs."""
        found: list[DeviceInfo] = []
        cards: list[Card] = []
        problems: list[str] = []
        known: dict[str, _Known] = {}
        chips = self.dcmi.chips(problems)
        reach = self._reach(chips)
        for index, chip in enumerate(chips):
            try:
                whole, where = self._describe(index, chip)
                parts = self.dcmi.parts(chip) or []
            except DeviceError as error:
                problems.append(f"NPU {chip[0]}/{chip[1]}: {error.message}")
                continue
            known[whole.uuid] = where
            if not parts:
                found.append(replace(whole, fabric_island=reach.get(chip)))
                continue
            card, devices, untold = _divided(whole, where.physical_id, parts)
            cards.append(card)
            problems += untold
            for info, number in devices:
                known[info.uuid] = replace(where, number=number)
                found.append(info)
        # What is refused here may answer when it is measured.
        self._infos = with_unread(self._infos, found, problems)
        named = {uuid for info in self._infos.values() for uuid in (info.uuid, info.physical_uuid)}
        self._known = {uuid: where for uuid, where in self._known.items() if uuid in named} | known
        self._cards = {uuid: card for uuid, card in self._cards.items() if uuid in named - known.keys()}
        self._cards |= {card.uuid: card for card in cards}
        return Discovery(tuple(found), tuple(problems), tuple(cards))

    def _reach(self, chips: Sequence[Chip]) -> dict[Chip, int]:
        """Which chips reach one another over HCCS. Each pair is asked for once: a link has two ends."""
        links: dict[Chip, list[Chip]] = {chip: [] for chip in chips}
        for place, chip in enumerate(chips):
            for other in chips[place + 1 :]:
                with contextlib.suppress(DeviceError):
                    if self.dcmi.linked(chip, other):
                        links[chip].append(other)
        return islands(links)

    def _describe(self, index: int, chip: Chip) -> tuple[DeviceInfo, _Known]:
        info = self.dcmi.chip_info(chip)
        name = f"{info.chip_type.decode(errors='replace')}{info.chip_name.decode(errors='replace')}"
        pci = self.dcmi.pci_bus_id(chip)
        die = self.dcmi.die(chip)
        memory = self._memory(chip)
        logic_id = self.dcmi.logic_id(chip)
        whole = DeviceInfo(
            # Where a chip does not tell its own name, it is known by its slot: a card that is moved is another then.
            uuid=f"NPU-{die}" if die else f"NPU-{pci or f'{chip[0]}-{chip[1]}'}",
            index=index,
            product_name=name,
            model=canonical_model(name, memory.total_bytes),
            vendor=VENDOR,
            memory_total_bytes=memory.total_bytes,
            memory_reserved_bytes=memory.reserved_bytes,
            pci_bus_id=pci,
        )
        return whole, _Known(chip, logic_id, self.dcmi.physical_id(logic_id))

    def visibility(self, devices: Sequence[DeviceInfo]) -> Mapping[str, str]:
        """By number, because CANN takes nothing else: whole chips by their logical one, virtual NPUs by that which the
        container runtime takes.
        """
        known = [self._known[device.uuid] for device in devices if device.uuid in self._known]
        parts = [each.number for each in known if each.number is not None]
        if parts:
            return {"ASCEND_VISIBLE_DEVICES": ",".join(map(str, parts)), "ASCEND_RUNTIME_OPTIONS": "VIRTUAL"}
        return {
            "ASCEND_RT_VISIBLE_DEVICES": ",".join(str(each.logic_id) for each in known),
            "ASCEND_VISIBLE_DEVICES": ",".join(str(each.physical_id) for each in known),
        }

    def enforcers(self, cgroups: Cgroups) -> list[tuple[str, Enforcer]]:
        """Virtual NPUs."""
        return [(VENDOR, InstanceEnforcer(self._instance_bytes))]

    def memory(self, uuid: str) -> MemorySample:
        """Of a chip, what is in use beyond what it holds itself; of a virtual NPU, only how much it has."""
        where = self._device(uuid)
        if where.number is None:
            return self._memory(where.chip)
        there = where.number in (self.dcmi.part_numbers(where.chip) or ())
        part = self.dcmi.part(where.chip, where.number) if there else None
        if part is None or _template(part) != self._infos[uuid].mig_profile:
            raise DeviceLost(f"{uuid} is no part of its chip any more")
        return MemorySample(part.computing.memory_size * MIB, 0, None)

    def _instance_bytes(self, uuid: str) -> int | None:
        try:
            return self.memory(uuid).total_bytes
        except DeviceLost:
            return None
        except DeviceError as error:
            raise EnforcementError(f"the virtual NPU can't be read: {error.message}") from error

    def _memory(self, chip: Chip) -> MemorySample:
        total_mb, used_mb = self.dcmi.memory_mb(chip)
        held_mb = sum(mb for _, mb in self.dcmi.processes_mb(chip))
        own = max(0, used_mb - held_mb) * MIB
        reserved = self._reserved[chip] = min(own, self._reserved.get(chip, own))
        return MemorySample(total_mb * MIB, reserved, max(0, used_mb * MIB - reserved))

    def processes(self, uuid: str) -> ProcessList:
        """Processes on one device now, each once. Of a virtual NPU they are known where it is its chip's only one."""
        where = self._device(uuid)
        if where.number is not None and len(self._cards[self._infos[uuid].parent_uuid].parts) > 1:
            return ProcessList((), complete=False)
        held: dict[int, int] = {}
        for pid, mb in self.dcmi.processes_mb(where.chip):
            held[pid] = held.get(pid, 0) + mb * MIB
        return ProcessList(tuple(ProcessSample(pid, memory_bytes) for pid, memory_bytes in held.items()))

    def load(self, uuid: str) -> LoadSample:
        """How busy and how hot its chip is; a virtual NPU's own activity is not told."""
        where = self._where(uuid)
        heat = self.dcmi.number("dcmi_get_device_temperature", where.chip)
        power = self.dcmi.number("dcmi_get_device_power_info", where.chip)
        power_mw = None if power is None else power * _DECIWATT_MW
        if where.number is not None:
            return LoadSample(temperature_c=heat, power_mw=power_mw)
        cores = self.dcmi.percent(where.chip, AI_CORES)
        return LoadSample(
            gpu_percent=cores,
            memory_percent=self.dcmi.percent(where.chip, HBM_BANDWIDTH),
            temperature_c=heat,
            power_mw=power_mw,
            activity_percent=cores,
            activity_source=ActivitySource.UNKNOWN if cores is None else ActivitySource.COUNTERS,
        )

    def health(self, uuid: str) -> HealthSample:
        """What the chip says of itself. Alarms ask for a reset; warnings are for people (`npu-smi info`)."""
        chip = self._where(uuid).chip
        health = self.dcmi.number("dcmi_get_device_health", chip)
        action = None if health is None else RecoveryAction.NONE
        if health is not None and health not in (_HEALTHY, _WARNING):
            action = RecoveryAction.RESET
        return HealthSample(recovery_action=action, uncorrected_errors=self.dcmi.double_bit_errors(chip))

    def chip_of(self, uuid: str) -> tuple[Chip, int]:
        """(chip, its physical number) of a card. Raises `DeviceError`."""
        where = self._where(uuid)
        return where.chip, where.physical_id

    def _device(self, uuid: str) -> _Known:
        """Of a device; not of a chip of which only parts are."""
        if uuid not in self._infos:
            raise DeviceError(f"{uuid} is not there (any more), or is divided")
        return self._where(uuid)

    def _where(self, uuid: str) -> _Known:
        return there(self._known, uuid)


class _Geometry:
    """See `base.Geometry`."""

    def __init__(self, backend: AscendBackend) -> None:
        self._backend = backend

    def read_instances(self, uuid: str, profiles: Collection[Profile]) -> tuple[Instance, ...]:
        """The virtual NPUs there are, and whether each is in use. Raises `EnforcementError`."""
        chip, physical_id = self._backend.chip_of(uuid)
        parts = self._backend.dcmi.parts(chip)
        if parts is None:
            raise EnforcementError(f"{uuid} can't be cut: its driver divides no chips")
        by_name = {profile.name: profile for profile in profiles}
        there = {each.vdev_id: _template(each) for each in parts}
        starts = vnpu.places(physical_id, list(there.items()), tuple(profiles))
        return tuple(
            Instance(
                each.vdev_id,
                by_name[there[each.vdev_id]].profile_id,
                starts[each.vdev_id],
                by_name[there[each.vdev_id]].length,
                bool(each.is_container_used),
            )
            for each in parts
            if each.vdev_id in starts
        )

    def apply(self, uuid: str, recut: Recut) -> None:
        """Do as planned. What has come into use meanwhile is refused by the driver. Raises `EnforcementError`."""
        if recut.problem:
            raise EnforcementError(recut.problem)
        chip, physical_id = self._backend.chip_of(uuid)
        try:
            for instance in recut.destroy:
                self._backend.dcmi.destroy(chip, instance.instance_id)
            for placement in recut.create:
                number = vnpu.number_of(physical_id, placement.start)
                self._backend.dcmi.create(chip, number, placement.profile.name)
        except DeviceError as error:
            raise EnforcementError(
                f"{uuid} can't be cut as planned: {error.message}",
                hint="cutting needs root, and parts that nobody uses",
            ) from error


def _divided(
    whole: DeviceInfo, physical_id: int, parts: Sequence[VirtualNpu]
) -> tuple[Card, list[tuple[DeviceInfo, int]], list[str]]:
    """A chip as a card that is cut; its parts as devices, each with its number; what can't be told of them."""
    division = vnpu.DIVISIONS.get(whole.model)
    profiles = division.profiles() if division is not None else ()
    starts = vnpu.places(physical_id, [(each.vdev_id, _template(each)) for each in parts], profiles)
    cores = {profile.name: profile.compute_slices for profile in profiles}
    card = Card(whole.uuid, whole.model, profiles, ())
    devices: list[tuple[DeviceInfo, int]] = []
    for each in parts:
        template = _template(each)
        info = replace(
            whole,
            uuid=f"{whole.uuid}/{each.vdev_id}/{template}",
            product_name=f"{whole.product_name} {template}",
            memory_total_bytes=each.computing.memory_size * MIB,
            memory_reserved_bytes=0,
            mig_profile=template,
            parent_uuid=whole.uuid,
            gpu_instance_id=each.vdev_id,
            mig_start=starts.get(each.vdev_id),
            compute_milli=card.compute_milli(cores.get(template, 0)),
        )
        devices.append((info, each.vdev_id))
    placed = sorted((Part(starts[n], info.mig_profile), info.uuid) for info, n in devices if n in starts)
    untold = [
        f"{info.uuid}: nothing is known of the template {info.mig_profile} on a {whole.model}"
        for info, number in devices
        if number not in starts
    ]
    return replace(card, parts=tuple(placed)), devices, untold


def _template(part: VirtualNpu) -> str:
    return str(part.name.decode(errors="replace"))
