"""NVIDIA devices, through NVML and the real pynvml only.

Handles are looked up once and kept; what a driver does not offer is asked once. A device in MIG mode is listed as its
instances, each a device that names its parent. The parent itself can't be leased then.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import pynvml
from msgspec.structs import replace

from aliquot.agent.core.partitioning import Card
from aliquot.agent.core.samples import (
    ActivitySource,
    DeviceEvent,
    DeviceInfo,
    DriverInfo,
    HealthSample,
    LoadSample,
    MemorySample,
    ProcessList,
    RecoveryAction,
)
from aliquot.agent.devices import visible
from aliquot.agent.devices.base import BackendUnavailable, DeviceError, Discovery, Geometry, there, with_unread
from aliquot.agent.devices.nvml_activity import Counters, ProcessSamples
from aliquot.agent.devices.nvml_events import EventSource
from aliquot.agent.devices.nvml_processes import ProcessLists
from aliquot.agent.devices.nvml_query import Query, text
from aliquot.agent.devices.nvml_topology import bus_id_of, fabric_state, islands, links_up, numa_node_of
from aliquot.agent.enforce import mig_geometry
from aliquot.agent.enforce.base import Cgroups, EnforcementError, Enforcer
from aliquot.agent.enforce.driver import DriverEnforcer
from aliquot.agent.enforce.nothing_set import InstanceEnforcer
from aliquot.common.catalog import canonical_model

_MEMORY_V2 = pynvml.nvmlMemory_v2
_EXCLUSIVE = frozenset({pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_THREAD})
_ONE_PROCESS = (
    "its compute mode lets one process in at a time, so it is leased whole only: `nvidia-smi -c DEFAULT` allows parts"
)
_MODE_PENDING = (
    "its MIG mode changes with the next reset, so it is leased whole only until then: "
    "`nvidia-smi --gpu-reset -i {index}`, or `nvidia-smi -i {index} -mig {now}` to leave it as it is"
)
_PROHIBITED = "its compute mode is PROHIBITED, so no more programs can use it: `nvidia-smi -c DEFAULT` mends that"
_SHOWS_ONLY = "it serves a screen and computes nothing"
POWER_LIMIT_S = 60.0
_HEALTH_FIELDS = (
    pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION,
    pynvml.NVML_FI_DEV_REMAPPED_PENDING,
    pynvml.NVML_FI_DEV_REMAPPED_FAILURE,
    pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL,
    pynvml.NVML_FI_DEV_MEMORY_TEMP,
)
_VALUE_MEMBERS = {
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
}


class NvmlBackend:
    """See `base.DeviceBackend`."""

    name = "nvml"
    geometry: Geometry = mig_geometry

    def __init__(self) -> None:
        self._query = Query()
        self._lists = ProcessLists(self._query)
        self._handles: dict[str, object] = {}
        self._links: dict[str, dict[int, str]] = {}
        """As last read; see `islands`."""
        self._infos: dict[str, DeviceInfo] = {}
        self._events: EventSource | None = None
        self._process_samples = ProcessSamples(self._query)
        self._counters = Counters(self._query)
        self._power_limits: dict[str, tuple[float, int | None]] = {}
        """By device: until when it holds, and what it is."""
        self._used_bytes: dict[str, int] = {}
        """As last read."""
        self._modes: dict[str, int | None] = {}
        """The compute mode by card, as it was when devices were looked for."""

    @property
    def calls(self) -> int:
        """Calls into the library so far."""
        return self._query.calls

    def open(self) -> DriverInfo:
        """Load `libnvidia-ml.so.1` and talk to the driver."""
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise BackendUnavailable(
                f"NVML: {error}",
                hint="install the NVIDIA driver on this machine, or make its libnvidia-ml.so.1 visible here",
            ) from error
        cuda = self._query.ask("", "CudaDriverVersion", pynvml.nvmlSystemGetCudaDriverVersion_v2)
        return DriverInfo(
            driver_version=text(self._query.ask("", "DriverVersion", pynvml.nvmlSystemGetDriverVersion) or ""),
            library_version=text(self._query.ask("", "NVMLVersion", pynvml.nvmlSystemGetNVMLVersion) or ""),
            cuda_version=None if cuda is None else (cuda // 1000, cuda % 1000 // 10),
        )

    def close(self) -> None:
        """Let go of the driver."""
        events, self._events = self._events, None
        if events is not None:
            events.close()
        self._handles = {}
        self._counters.forget()
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            return

    def discover(self) -> Discovery:
        """Every GPU, or its MIG instances."""
        self._query.forget()
        self._counters.forget()
        handles: dict[str, object] = {}
        bus_ids: dict[str, str] = {}
        physical: list[tuple[int, str, object]] = []
        problems: list[str] = []
        for index in range(self._query.demand("", "Count", pynvml.nvmlDeviceGetCount)):
            try:
                nth = f"GPU {index}"  # what one card refuses is not refused by the next
                handle = self._query.demand(nth, "HandleByIndex", pynvml.nvmlDeviceGetHandleByIndex, index)
                uuid = text(self._query.demand(nth, "UUID", pynvml.nvmlDeviceGetUUID, handle))
                pci = self._query.ask(uuid, "PciInfo", pynvml.nvmlDeviceGetPciInfo, handle)
            except DeviceError as error:
                problems.append(f"GPU {index}: {error.message}")
                continue
            handles[uuid] = handle
            bus_ids[uuid] = bus_id_of(pci.busId) if pci is not None else ""
            physical.append((index, uuid, handle))
        # Others may be linked to it, and through it: a card that is refused is where it was.
        unread = {info.physical_uuid: info.pci_bus_id for info in self._infos.values() if problems} | bus_ids
        reachable = {uuid: handle for uuid, handle in self._handles.items() if uuid in unread} | handles
        island_of = islands(self._query, reachable, unread, self._links)
        found: list[DeviceInfo] = []
        cards: list[Card] = []
        card_problems: list[str] = []
        unleasable: list[str] = []
        for index, uuid, handle in physical:
            try:
                why_not = self._why_not(uuid, handle)
                if why_not:
                    unleasable.append(f"GPU {index} ({uuid}): {why_not}")
                    continue
                whole = self._describe(index, uuid, handle, bus_ids[uuid], island_of.get(uuid))
                refused: list[str] = []
                instances = self._instances(whole, handle, handles, refused)
            except DeviceError as error:
                problems.append(f"GPU {index} ({uuid}): {error.message}")
                continue
            problems += refused
            if instances is not None:
                # One that is refused does not say who it is: it is one of those that were there.
                before = [info for info in self._infos.values() if refused and info.parent_uuid == uuid]
                kept = [info for info in before if info.uuid not in handles]
                try:
                    card = _card(whole, [*kept, *instances])
                    instances = [self._placed(instance, card, handles) for instance in instances]
                    cards.append(card)
                    kept = [info for info in kept if info.uuid in dict(card.parts).values()]
                except (EnforcementError, DeviceError) as error:
                    card_problems.append(error.message)
                instances += kept
            found += instances if instances is not None else [whole]
        # What is refused here may answer when it is measured.
        self._infos = with_unread(self._infos, found, problems)
        known = {uuid for info in self._infos.values() for uuid in (info.uuid, info.physical_uuid)}
        self._handles = {uuid: handle for uuid, handle in self._handles.items() if uuid in known} | handles
        return Discovery(tuple(found), tuple(problems), tuple(cards), tuple(card_problems), tuple(unleasable))

    def _why_not(self, uuid: str, handle: object) -> str:
        """Why a card that answers can't be leased at all; empty: it can."""
        if "DISPLAY" in text(self._query.demand(uuid, "Name", pynvml.nvmlDeviceGetName, handle)).upper().split():
            return _SHOWS_ONLY
        newer = self._query.ask(uuid, "MemoryInfo_v2", pynvml.nvmlDeviceGetMemoryInfo, handle, _MEMORY_V2)
        older = newer or self._query.unless_refused(uuid, "MemoryInfo", pynvml.nvmlDeviceGetMemoryInfo, handle)
        if older is None:
            return "the driver does not tell its memory, as where a GPU shares the machine's: no parts can be cut of it"
        return ""

    def _compute_mode(self, uuid: str, handle: object) -> int | None:
        return self._query.ask(uuid, "ComputeMode", pynvml.nvmlDeviceGetComputeMode, handle)

    def _describe(self, index: int, uuid: str, handle: object, bus_id: str, island: int | None) -> DeviceInfo:
        name = text(self._query.demand(uuid, "Name", pynvml.nvmlDeviceGetName, handle))
        memory = self._memory(uuid, handle)
        mode = self._modes[uuid] = self._compute_mode(uuid, handle)
        return DeviceInfo(
            uuid=uuid,
            index=index,
            product_name=name,
            model=canonical_model(name, memory.total_bytes),
            vendor="nvidia",
            memory_total_bytes=memory.total_bytes,
            memory_reserved_bytes=memory.reserved_bytes,
            pci_bus_id=bus_id,
            numa_node=numa_node_of(bus_id),
            fabric_island=island,
            whole_only=_ONE_PROCESS if mode in _EXCLUSIVE else self._why_whole(index, uuid, handle),
            # Left out, it would be gone: leases that are on it would lose their limits, and then their programs.
            shut=_PROHIBITED if mode == pynvml.NVML_COMPUTEMODE_PROHIBITED else "",
        )

    def _why_whole(self, index: int, uuid: str, handle: object) -> str:
        """Why no parts of a card can be leased; empty: they can."""
        now, soon = self._query.ask(uuid, "MigMode", pynvml.nvmlDeviceGetMigMode, handle) or (0, 0)
        return _MODE_PENDING.format(index=index, now=now) if now != soon else ""

    def _instances(
        self, whole: DeviceInfo, handle: object, handles: dict[str, object], problems: list[str]
    ) -> list[DeviceInfo] | None:
        """The MIG instances of a GPU; None where it is not in MIG mode. Fills in their handles."""
        mode = self._query.unless_refused(whole.uuid, "MigMode", pynvml.nvmlDeviceGetMigMode, handle)
        if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
            return None
        found = []
        most = self._query.demand(whole.uuid, "MaxMigDeviceCount", pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)
        for number in range(most):
            question, ask = f"MigDeviceHandleByIndex {number}", pynvml.nvmlDeviceGetMigDeviceHandleByIndex
            try:
                part = self._query.ask(whole.uuid, question, ask, handle, number)
                if part is None and self._query.offers(whole.uuid, question):
                    continue  # nothing has that number; what is refused is there, and somebody has to know
                part = part or self._query.demand(whole.uuid, question, ask, handle, number)
                uuid = text(self._query.demand(whole.uuid, f"MIG UUID {number}", pynvml.nvmlDeviceGetUUID, part))
                name = text(self._query.demand(uuid, "Name", pynvml.nvmlDeviceGetName, part))
                memory = self._memory(uuid, part)
            except DeviceError as error:
                problems.append(f"GPU {whole.index} ({whole.uuid}), MIG instance {number}: {error.message}")
                continue
            handles[uuid] = part
            found.append(
                replace(
                    whole,
                    uuid=uuid,
                    product_name=name,
                    memory_total_bytes=memory.total_bytes,
                    memory_reserved_bytes=memory.reserved_bytes,
                    whole_only="",
                    fabric_island=None,  # peer access over NVLink is not to be had between instances
                    mig_profile=name.rpartition("MIG ")[2].strip() if "MIG " in name else "",
                    parent_uuid=whole.uuid,
                    gpu_instance_id=self._query.ask(uuid, "GpuInstanceId", pynvml.nvmlDeviceGetGpuInstanceId, part),
                )
            )
        return found

    def _placed(self, instance: DeviceInfo, card: Card, handles: dict[str, object]) -> DeviceInfo:
        """An instance with its place on its card, and its part of the card's compute, as the driver tells them."""
        part = next((part for part, uuid in card.parts if uuid == instance.uuid), None)
        if part is None:
            return instance
        own = self._query.ask(instance.uuid, "Attributes", pynvml.nvmlDeviceGetAttributes_v2, handles[instance.uuid])
        slices = int(own.computeInstanceSliceCount) if own is not None else card.slices_of(part.profile)
        return replace(instance, mig_start=part.start, compute_milli=card.compute_milli(slices))

    def visibility(self, devices: Sequence[DeviceInfo]) -> Mapping[str, str]:
        """By UUID; a MIG instance has one too."""
        return visible.nvidia(devices)

    def unusable(self, device: DeviceInfo) -> str:
        """NVML says nothing of that: see `enforce.prerequisites.CudaDriver`."""
        return ""

    def enforcers(self, cgroups: Cgroups) -> list[tuple[str, Enforcer]]:
        """Instances, and the driver's limits."""
        instances = InstanceEnforcer(_instance_bytes)
        return [("nvidia", instances), ("nvidia", DriverEnforcer(cgroups.why_none, cgroups.base))]

    def probe(self, device: DeviceInfo) -> tuple[str, ...]:
        """Through CUDA."""
        return ("aliquot.agent.doctor.probe",)

    def memory(self, uuid: str) -> MemorySample:
        """Memory of one device now; used memory without what the driver reserves."""
        sample = self._memory(uuid, self._handle(self._device(uuid)))
        self._used_bytes[uuid] = sample.used_bytes or 0
        return sample

    def _memory(self, uuid: str, handle: object) -> MemorySample:
        newer = self._query.ask(uuid, "MemoryInfo_v2", pynvml.nvmlDeviceGetMemoryInfo, handle, _MEMORY_V2)
        if newer is not None:
            return MemorySample(newer.total, newer.reserved, newer.used)
        # The older call counts what is reserved as used and does not say how much that is.
        older = self._query.demand(uuid, "MemoryInfo", pynvml.nvmlDeviceGetMemoryInfo, handle)
        return MemorySample(older.total, 0, older.used)

    def processes(self, uuid: str) -> ProcessList:
        """Processes on one device now, each once."""
        info = self._infos.get(uuid)
        total_bytes = info.memory_total_bytes if info is not None else 1 << 62
        return self._lists.read(uuid, self._handle(self._device(uuid)), total_bytes, self._used_bytes.get(uuid, 0))

    def load(self, uuid: str) -> LoadSample:
        """How busy and how hot a device is. Parts answer None for what only the whole card has."""
        handle = self._handle(uuid)
        info = self._infos.get(uuid)
        utilisation = self._query.ask(uuid, "UtilizationRates", pynvml.nvmlDeviceGetUtilizationRates, handle)
        sensor, clock = pynvml.NVML_TEMPERATURE_GPU, pynvml.NVML_CLOCK_SM
        temperature = self._query.ask(uuid, "TemperatureV", pynvml.nvmlDeviceGetTemperatureV, handle, sensor)
        if temperature is None:
            temperature = self._query.ask(uuid, "Temperature", pynvml.nvmlDeviceGetTemperatureV1, handle, sensor)
        parent = self._handles.get(info.parent_uuid) if info is not None and info.parent_uuid else None
        instance = info.gpu_instance_id if info is not None else None
        activity = self._counters.busiest(uuid, handle, parent, instance)
        source = ActivitySource.COUNTERS
        if activity is None and utilisation is not None and not self._counters.offered(uuid):
            activity, source = max(utilisation.gpu, utilisation.memory), ActivitySource.KERNELS
        return LoadSample(
            gpu_percent=None if utilisation is None else utilisation.gpu,
            memory_percent=None if utilisation is None else utilisation.memory,
            temperature_c=temperature,
            power_mw=self._query.ask(uuid, "PowerUsage", pynvml.nvmlDeviceGetPowerUsage, handle),
            energy_mj=self._query.ask(uuid, "Energy", pynvml.nvmlDeviceGetTotalEnergyConsumption, parent or handle),
            sm_clock_mhz=self._query.ask(uuid, "ClockInfo", pynvml.nvmlDeviceGetClockInfo, handle, clock),
            activity_percent=activity,
            activity_source=ActivitySource.UNKNOWN if activity is None else source,
            power_limit_mw=self._power_limit(uuid, handle),
            engines=self._counters.engines(uuid),
            # Who may use a card can be changed at any time: it must not be leased as before until the next discovery.
            outdated=uuid in self._modes and self._compute_mode(uuid, handle) != self._modes[uuid],
        )

    def _power_limit(self, uuid: str, handle: object) -> int | None:
        """What an administrator allows it to draw; asked rarely, because it hardly ever changes."""
        now_s = time.monotonic()
        known = self._power_limits.get(uuid)
        if known is None or now_s >= known[0]:
            limit = self._query.ask(uuid, "EnforcedPowerLimit", pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
            known = self._power_limits[uuid] = (now_s + POWER_LIMIT_S, limit)
        return known[1]

    def process_load(self, uuid: str) -> dict[int, int] | None:
        """The mean of the driver's samples since the last call, by pid."""
        return self._process_samples.read(uuid, self._handle(uuid))

    def process_peaks(self, uuid: str) -> dict[int, int] | None:
        """The highest of those samples, of any engine."""
        return self._process_samples.peaks(uuid)

    def health(self, uuid: str) -> HealthSample:
        """What the card says of its own state; an instance is as well as its card."""
        info = self._infos.get(uuid)
        card = info.physical_uuid if info is not None else uuid
        handle = self._handle(card)
        fields = list(_HEALTH_FIELDS)
        answers = self._query.ask(card, "FieldValues", pynvml.nvmlDeviceGetFieldValues, handle, fields) or []
        values = {
            answer.fieldId: _value(answer.valueType, answer.value)
            for answer in answers
            if answer.nvmlReturn == pynvml.NVML_SUCCESS
        }
        action = values.get(pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)
        pending = values.get(pynvml.NVML_FI_DEV_REMAPPED_PENDING)
        failed = values.get(pynvml.NVML_FI_DEV_REMAPPED_FAILURE)
        reasons = self._query.ask(card, "ClocksEventReasons", pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        return HealthSample(
            recovery_action=_recovery(action),
            remap_pending=None if pending is None else bool(pending),
            remap_failed=None if failed is None else bool(failed),
            uncorrected_errors=values.get(pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL),
            memory_temperature_c=values.get(pynvml.NVML_FI_DEV_MEMORY_TEMP),
            clock_event_reasons=reasons,
            margin_c=_margin(self._query, card, handle),
            pcie_replays=self._query.ask(card, "PcieReplays", pynvml.nvmlDeviceGetPcieReplayCounter, handle),
            pcie_width=self._query.ask(card, "PcieWidth", pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
            links_up=links_up(self._query, card, handle),
            fabric_state=fabric_state(self._query, card, handle),
        )

    def wait_events(self, timeout_ms: int) -> list[DeviceEvent]:
        """Block until an XID is reported, at most so long."""
        if self._events is None:
            physical = {
                info.physical_uuid: self._handles[info.physical_uuid]
                for info in self._infos.values()
                if info.physical_uuid in self._handles
            }
            self._events = EventSource(self._query, physical)
        return self._events.wait(timeout_ms)

    def deaf(self) -> str:
        """Of cards that take no wish for events."""
        return self._events.deaf if self._events is not None else ""

    def _device(self, uuid: str) -> str:
        """A device; not a card of which only parts are."""
        if uuid not in self._infos:
            raise DeviceError(f"{uuid} is not there (any more), or is cut into parts")
        return uuid

    def _handle(self, uuid: str) -> object:
        return there(self._handles, uuid)


def _margin(query: Query, card: str, handle: object) -> int | None:
    return query.ask(card, "MarginTemperature", pynvml.nvmlDeviceGetMarginTemperature, handle)


def _instance_bytes(uuid: str) -> int | None:
    """Memory of a MIG instance, asked anew: a handle outlives what it was of. None: there is no such instance."""
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByUUID(uuid)).total)
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_INVALID_ARGUMENT):
            return None
        raise EnforcementError(f"the MIG instance can't be read: {error}") from error


def _card(whole: DeviceInfo, instances: list[DeviceInfo]) -> Card:
    devices = {info.gpu_instance_id: info.uuid for info in instances if info.gpu_instance_id is not None}
    return mig_geometry.read_card(whole.uuid, whole.model, devices)


def _recovery(number: int | None) -> RecoveryAction | None:
    if number is None:
        return None
    try:
        return RecoveryAction(number)
    except ValueError:
        return RecoveryAction.RESET  # newer than we know, and not "none": as bad as the mildest that we do


def _value(kind: int, value: object) -> int | None:
    member = _VALUE_MEMBERS.get(kind)
    return None if member is None else int(getattr(value, member))
