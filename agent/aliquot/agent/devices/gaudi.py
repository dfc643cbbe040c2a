"""Gaudi cards, through HLML, each whole: its driver lets one process at a time open a card.

Not run on hardware: only on the simulated cards of `aliquot.simgpu.vendors.hlml`. HLML lists no processes; who has a
card's file open is looked up below /proc. A single process holds all that is in use, so that its memory is known.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from aliquot.agent.core.samples import (
    ActivitySource,
    DeviceInfo,
    DriverInfo,
    HealthSample,
    LoadSample,
    MemorySample,
    ProcessList,
    ProcessSample,
)
from aliquot.agent.devices.base import BackendUnavailable, DeviceError, DeviceLost, Discovery, there
from aliquot.agent.devices.owners import Owners
from aliquot.agent.devices.plain import PlainBackend
from aliquot.common.catalog import canonical_model

VENDOR = "gaudi"
LIBRARY_VARIABLE = "ALIQUOT_HLML_LIBRARY"
PATH = "/usr/lib/habanalabs/libhlml.so"
_TEXT_BYTES = 128
_NOT_SUPPORTED, _LOST = 3, 15
_AIP, _HBM = 0, 3
_UNCORRECTED, _SINCE_LOAD = 1, 0


class Pci(ctypes.Structure):
    """Where a card is."""

    _fields_ = [
        ("bus", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 19),
        *((name, ctypes.c_uint) for name in ("device", "domain", "pci_device_id")),
        ("caps", (ctypes.c_char * 10) * 4),
        ("revision", ctypes.c_uint),
        ("subsystem", ctypes.c_uint),
    ]


class Memory(ctypes.Structure):
    """In bytes."""

    _fields_ = [("free", ctypes.c_uint64), ("total", ctypes.c_uint64), ("used", ctypes.c_uint64)]


class GaudiBackend(PlainBackend):
    """See `base.DeviceBackend`."""

    name = "gaudi"

    def __init__(self, library: str = "", sys_root: Path = Path("/sys"), owners: Owners | None = None) -> None:
        """`library`: its path; empty: where the driver puts it. `owners`: looks at this machine's processes."""
        self._path = library or os.environ.get(LIBRARY_VARIABLE, "") or PATH
        self._sys, self._owners = sys_root, owners or Owners()
        self._library: ctypes.CDLL | None = None
        self._lock = threading.Lock()
        self._handles: dict[str, ctypes.c_void_p] = {}
        self._files: dict[str, frozenset[str]] = {}
        self._reserved: dict[str, int] = {}
        self.calls = 0

    def open(self) -> DriverInfo:
        """Load `libhlml.so` and talk to the driver."""
        try:
            self._library = ctypes.CDLL(self._path)
        except OSError as error:
            hint = f"install Gaudi's driver, or name its library in {LIBRARY_VARIABLE}"
            raise BackendUnavailable(str(error), hint=hint) from error
        try:
            self._demand("hlml_init")
        except DeviceError as error:
            raise BackendUnavailable(error.message, hint="look at Gaudi's driver: hl-smi") from error
        version = self._sys / "module/habanalabs/version"
        return DriverInfo(version.read_text().strip() if version.is_file() else "", "")

    def close(self) -> None:
        """Let go of the driver."""
        library, self._library = self._library, None
        if library is not None:
            library.hlml_shutdown()

    def discover(self) -> Discovery:
        """Every card."""
        count = ctypes.c_uint()
        self._demand("hlml_device_get_count", ctypes.byref(count))
        found: list[DeviceInfo] = []
        problems: list[str] = []
        for index in range(count.value):
            try:
                found.append(self._describe(index))
            except DeviceError as error:
                problems.append(f"Gaudi {index}: {error.message}")
        return Discovery(tuple(found), tuple(problems))

    def _describe(self, index: int) -> DeviceInfo:
        handle = ctypes.c_void_p()
        self._demand("hlml_device_get_handle_by_index", ctypes.c_uint(index), ctypes.byref(handle))
        uuid = f"HL-{self._text('hlml_device_get_uuid', handle)}"
        name = self._text("hlml_device_get_name", handle)
        pci = Pci()
        self._demand("hlml_device_get_pci_info", handle, ctypes.byref(pci))
        bus_id = pci.bus_id.decode()
        self._handles[uuid] = handle
        self._files[uuid] = self._files_of(bus_id)
        memory = self.memory(uuid)
        return DeviceInfo(
            uuid=uuid,
            index=index,
            product_name=name,
            model=canonical_model(name, memory.total_bytes),
            vendor=VENDOR,
            memory_total_bytes=memory.total_bytes,
            memory_reserved_bytes=memory.reserved_bytes,
            pci_bus_id=bus_id,
        )

    def _files_of(self, bus_id: str) -> frozenset[str]:
        """The files by which programs open a card: of the kernel's accel class, or of the older driver."""
        device = self._sys / "bus/pci/devices" / bus_id
        numbered = [path.name for folder in ("accel", "habanalabs") for path in device.glob(f"{folder}/*")]
        return frozenset(f"/dev/accel/{name}" if name.startswith("accel") else f"/dev/{name}" for name in numbered)

    def visibility(self, devices: Sequence[DeviceInfo]) -> Mapping[str, str]:
        """By the numbers of their files, because the software takes nothing else; containers likewise."""
        numbers = [
            "".join(filter(str.isdigit, name.rpartition("/")[2]))
            for device in devices
            for name in sorted(self._files.get(device.uuid, ()))[:1]
        ]
        return {"HABANA_VISIBLE_DEVICES": ",".join(numbers), "HABANA_VISIBLE_MODULES": ",".join(numbers)}

    def memory(self, uuid: str) -> MemorySample:
        """What is in use beyond what the card held when nobody was on it."""
        found = Memory()
        self._demand("hlml_device_get_memory_info", self._handle(uuid), ctypes.byref(found))
        if uuid not in self._reserved and not self._owners.on(self._files[uuid]).processes:
            self._reserved[uuid] = found.used
        reserved = min(self._reserved.get(uuid, 0), found.used)
        return MemorySample(found.total, reserved, found.used - reserved)

    def processes(self, uuid: str) -> ProcessList:
        """Who has the card's file open."""
        used_bytes = self.memory(uuid).used_bytes
        self._handle(uuid)
        listed = self._owners.on(self._files[uuid])
        if len(listed.processes) != 1:
            return listed
        return ProcessList((ProcessSample(listed.processes[0].pid, used_bytes),), listed.complete)

    def load(self, uuid: str) -> LoadSample:
        """How busy and how hot it is."""
        handle = self._handle(uuid)
        rates = (ctypes.c_uint * 2)()
        busy = rates[0] if self._ask("hlml_device_get_utilization_rates", handle, ctypes.byref(rates)) else None
        return LoadSample(
            gpu_percent=busy,
            temperature_c=self._number("hlml_device_get_temperature", handle, _AIP),
            power_mw=self._number("hlml_device_get_power_usage", handle),
            activity_percent=busy,
            activity_source=ActivitySource.UNKNOWN if busy is None else ActivitySource.KERNELS,
        )

    def health(self, uuid: str) -> HealthSample:
        """Errors of its memory since the driver was loaded."""
        handle, count = self._handle(uuid), ctypes.c_longlong()
        function = "hlml_device_get_total_ecc_errors"
        known = self._ask(function, handle, _UNCORRECTED, _SINCE_LOAD, ctypes.byref(count))
        return HealthSample(
            uncorrected_errors=count.value if known else None,
            memory_temperature_c=self._number("hlml_device_get_temperature", handle, _HBM),
        )

    def _handle(self, uuid: str) -> ctypes.c_void_p:
        return there(self._handles, uuid)

    def _text(self, function: str, handle: ctypes.c_void_p) -> str:
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        self._demand(function, handle, buffer, ctypes.c_uint(_TEXT_BYTES))
        return buffer.value.decode(errors="replace").strip()

    def _number(self, function: str, *arguments: object) -> int | None:
        found = ctypes.c_uint()
        return found.value if self._ask(function, *arguments, ctypes.byref(found)) else None

    def _demand(self, function: str, *arguments: object) -> None:
        if not self._ask(function, *arguments):
            raise DeviceError(f"HLML: {function} is not supported")

    def _ask(self, function: str, *arguments: object) -> bool:
        if self._library is None:
            raise DeviceError("HLML is not open")
        with self._lock:
            self.calls += 1
            try:
                code = int(getattr(self._library, function)(*arguments))
            except AttributeError:
                return False  # an older library
        if code == _LOST:
            raise DeviceLost(f"HLML: the card is lost ({function})")
        if code and code != _NOT_SUPPORTED:
            raise DeviceError(f"HLML: {function} answered {code}")
        return code == 0
