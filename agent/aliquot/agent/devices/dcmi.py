"""Huawei's DCMI by ctypes: what Ascend's driver tells of its cards, and how it divides them.

Structures are those of the public `dcmi_interface_api.h`. A chip is (card, device). DCMI does not say that it may be
called from several threads, so it is called from one at a time; what it does not offer is asked for once.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from aliquot.agent.devices.base import BackendUnavailable, DeviceError, DeviceLost

S = TypeVar("S", bound=ctypes.Structure)
Chip = tuple[int, int]

LIBRARY_VARIABLE = "ALIQUOT_DCMI_LIBRARY"
PATHS = (
    "/usr/local/Ascend/driver/lib64/driver/libdcmi.so",
    "/usr/local/Ascend/driver/lib64/common/libdcmi.so",
    "/usr/local/dcmi/libdcmi.so",
)
_CARDS_MAX = 64
_PROCESSES_MAX = 64
_SPLIT_MAX = 32
_RESERVED = 32
_INVALID_DEVICE, _NO_DEVICE, _NOT_READY, _NOT_SUPPORTED = -8007, -8008, -8012, -8255
_GONE = frozenset({_INVALID_DEVICE, _NO_DEVICE})
_HBM = 2
_VDIE = 1
_VDEV, _VDEV_RESOURCE, _TOTAL_RESOURCE = 52, 0, 1
_ASKED_FOR_KINDS = frozenset({"dcmi_get_device_utilization_rate", "dcmi_get_device_info"})
"""Functions that may offer one thing and not another."""
_HCCS = frozenset({3, 7})
"""Ways from chip to chip: by HCCS, and by HCCS through a switch. By version, 6 is a die's neighbour or "unknown".
"""
AI_CORES, HBM_BANDWIDTH = 2, 10


class ChipInfo(ctypes.Structure):
    """What chip it is."""

    _fields_ = [
        ("chip_type", ctypes.c_char * 32),
        ("chip_name", ctypes.c_char * 32),
        ("chip_ver", ctypes.c_char * 32),
        ("aicore_cnt", ctypes.c_uint32),
    ]


class HbmInfo(ctypes.Structure):
    """Its memory, in MB of 1,048,576 bytes."""

    _fields_ = [
        ("memory_size", ctypes.c_uint64),
        ("freq", ctypes.c_uint32),
        ("memory_usage", ctypes.c_uint64),
        ("temp", ctypes.c_int32),
        ("bandwith_util_rate", ctypes.c_uint32),
    ]


class MemoryInfo(ctypes.Structure):
    """The same of chips without HBM (310P)."""

    _fields_ = [
        ("memory_size", ctypes.c_uint64),
        ("memory_available", ctypes.c_uint64),
        ("freq", ctypes.c_uint32),
        ("hugepagesize", ctypes.c_ulong),
        ("hugepages_total", ctypes.c_ulong),
        ("hugepages_free", ctypes.c_ulong),
        ("utiliza", ctypes.c_uint32),
        ("reserve", ctypes.c_ubyte * 60),
    ]


class PcieInfo(ctypes.Structure):
    """Where it is."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("venderid", "subvenderid", "deviceid", "subdeviceid")),
        ("domain", ctypes.c_int32),
        *((name, ctypes.c_uint32) for name in ("bdf_busid", "bdf_deviceid", "bdf_funcid")),
        ("reserve", ctypes.c_ubyte * 32),
    ]


class EccInfo(ctypes.Structure):
    """Errors of its memory."""

    _fields_ = [
        ("enable_flag", ctypes.c_int),
        *((name, ctypes.c_uint32) for name in ("single_bit", "double_bit", "total_single_bit", "total_double_bit")),
        *((name, ctypes.c_uint32) for name in ("single_bit_pages", "double_bit_pages")),
    ]


class DieId(ctypes.Structure):
    """What the chip is known by for ever."""

    _fields_ = [("soc_die", ctypes.c_uint32 * 5)]


class ProcInfo(ctypes.Structure):
    """A process, and its memory in MB."""

    _fields_ = [("proc_id", ctypes.c_int), ("proc_mem_usage", ctypes.c_ulong)]


class _Base(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("token", "token_max", "task_timeout")),
        ("vfg_id", ctypes.c_uint32),
        ("vip_mode", ctypes.c_ubyte),
        ("reserved", ctypes.c_ubyte * (_RESERVED - 1)),
    ]


class _Computing(ctypes.Structure):
    _fields_ = [
        ("aic", ctypes.c_float),
        ("aiv", ctypes.c_float),
        ("queues", ctypes.c_uint16 * 8),
        ("memory_size", ctypes.c_uint64),
        ("ids", ctypes.c_uint32 * 4),
        ("cpus", ctypes.c_uint16 * 5),
        ("reserved", ctypes.c_ubyte * _RESERVED),
    ]


class _Media(ctypes.Structure):
    _fields_ = [("engines", ctypes.c_float * 6), ("reserved", ctypes.c_ubyte * _RESERVED)]


class Total(ctypes.Structure):
    """How a chip is divided."""

    _fields_ = [
        ("vdev_num", ctypes.c_uint32),
        ("vdev_id", ctypes.c_uint32 * _SPLIT_MAX),
        ("vfg_num", ctypes.c_uint32),
        ("vfg_bitmap", ctypes.c_uint32),
        ("base", _Base),
        ("computing", _Computing),
        ("media", _Media),
    ]


class VirtualNpu(ctypes.Structure):
    """One part of a chip."""

    _fields_ = [
        ("vdev_id", ctypes.c_uint32),
        ("name", ctypes.c_char * 16),
        ("status", ctypes.c_uint32),
        ("is_container_used", ctypes.c_uint32),
        ("vfid", ctypes.c_uint32),
        ("vfg_id", ctypes.c_uint32),
        ("container_id", ctypes.c_uint64),
        ("base", _Base),
        ("computing", _Computing),
        ("media", _Media),
    ]


class _CreateIn(ctypes.Structure):
    _fields_ = [
        ("vdev_id", ctypes.c_uint32),
        ("vfg_id", ctypes.c_uint32),
        ("template_name", ctypes.c_char * 32),
        ("reserved", ctypes.c_ubyte * 64),
    ]


class _CreateOut(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("vdev_id", "pcie_bus", "pcie_device", "pcie_func", "vfg_id")),
        ("reserved", ctypes.c_ubyte * _RESERVED),
    ]


class Dcmi:
    """The library, loaded. Everything raises `DeviceError`."""

    def __init__(self, path: str = "") -> None:
        """`path`: of the library; empty: where its driver puts it. Raises `BackendUnavailable`."""
        self._library = _load(path)
        self._lock = threading.Lock()
        self._not_offered: set[str] = set()
        self.calls = 0
        code = self._call("dcmi_init")
        if code:
            raise BackendUnavailable(f"DCMI: dcmi_init answered {code}", hint="look at Ascend's driver: npu-smi info")

    def driver_version(self) -> str:
        """Empty where it is not told."""
        buffer = ctypes.create_string_buffer(64)
        offered = self._ask("dcmi_get_driver_version", buffer, ctypes.c_uint(len(buffer)))
        return buffer.value.decode(errors="replace").strip() if offered else ""

    def chips(self, problems: list[str]) -> list[Chip]:
        """All of them, in order; `problems` gets why those of some card are not known."""
        count, cards = ctypes.c_int(), (ctypes.c_int * _CARDS_MAX)()
        self._demand("dcmi_get_card_list", ctypes.byref(count), cards, _CARDS_MAX)
        found: list[Chip] = []
        for card in sorted(cards[: count.value]):
            try:
                found += self._of_card(card)
            except DeviceError as error:
                problems.append(f"NPU {card}: {error.message}")
        return found

    def _of_card(self, card: int) -> Iterator[Chip]:
        count = ctypes.c_int()
        self._demand("dcmi_get_device_num_in_card", card, ctypes.byref(count))
        yield from ((card, device) for device in range(count.value))

    def logic_id(self, chip: Chip) -> int:
        """As `ASCEND_RT_VISIBLE_DEVICES` numbers it."""
        found = ctypes.c_int()
        self._demand("dcmi_get_device_logic_id", ctypes.byref(found), *chip)
        return found.value

    def physical_id(self, logic_id: int) -> int:
        """As virtual NPUs and the container runtime number it."""
        found = ctypes.c_uint()
        offered = self._ask("dcmi_get_device_phyid_from_logicid", ctypes.c_uint(logic_id), ctypes.byref(found))
        return found.value if offered else logic_id

    def chip_info(self, chip: Chip) -> ChipInfo:
        """What it is."""
        return self._of("dcmi_get_device_chip_info", chip, ChipInfo())

    def die(self, chip: Chip) -> str:
        """Forty hexadecimal digits that stay with the chip wherever it is put; empty where they are not told."""
        found = DieId()
        if not self._ask("dcmi_get_device_die_v2", *chip, _VDIE, ctypes.byref(found)) or not any(found.soc_die):
            return ""
        return "".join(f"{word:08x}" for word in found.soc_die)

    def pci_bus_id(self, chip: Chip) -> str:
        """`0000:c1:00.0`; empty where it is not told."""
        found = PcieInfo()
        if not self._ask("dcmi_get_device_pcie_info_v2", *chip, ctypes.byref(found)):
            return ""
        return f"{found.domain & 0xFFFF:04x}:{found.bdf_busid:02x}:{found.bdf_deviceid:02x}.{found.bdf_funcid:x}"

    def memory_mb(self, chip: Chip) -> tuple[int, int]:
        """(in all, in use by whomever)."""
        hbm = HbmInfo()
        if self._ask("dcmi_get_device_hbm_info", *chip, ctypes.byref(hbm)) and hbm.memory_size:
            return hbm.memory_size, hbm.memory_usage
        plain = self._of("dcmi_get_device_memory_info_v3", chip, MemoryInfo())
        return plain.memory_size, plain.memory_size - min(plain.memory_available, plain.memory_size)

    def processes_mb(self, chip: Chip) -> list[tuple[int, int]]:
        """(process, MB) of all that are on the chip, on whichever of its parts."""
        count, found = ctypes.c_int(), (ProcInfo * _PROCESSES_MAX)()
        self._demand("dcmi_get_device_resource_info", *chip, found, ctypes.byref(count))
        return [(each.proc_id, each.proc_mem_usage) for each in found[: count.value] if each.proc_id > 0]

    def number(self, function: str, chip: Chip) -> int | None:
        """What a function with one number says; None where it is not offered."""
        found = ctypes.c_int()
        return found.value if self._ask(function, *chip, ctypes.byref(found)) else None

    def percent(self, chip: Chip, kind: int) -> int | None:
        """How busy a part of it is; None where that is not offered."""
        found = ctypes.c_uint()
        offered = self._ask("dcmi_get_device_utilization_rate", *chip, kind, ctypes.byref(found))
        return found.value if offered and found.value <= 100 else None

    def double_bit_errors(self, chip: Chip) -> int | None:
        """Of its HBM since the driver was loaded; None where they are not told."""
        found = EccInfo()
        return found.double_bit if self._ask("dcmi_get_device_ecc_info", *chip, _HBM, ctypes.byref(found)) else None

    def linked(self, chip: Chip, other: Chip) -> bool:
        """Whether two chips reach one another over HCCS, directly or by a switch. False where that is not told: boards
        before 910B tell nothing.
        """
        found = ctypes.c_int()
        told = self._ask("dcmi_get_topo_info_by_device_id", *chip, *other, ctypes.byref(found))
        return told and found.value in _HCCS

    def parts(self, chip: Chip) -> list[VirtualNpu] | None:
        """Its virtual NPUs, by id; None: this driver divides no chips."""
        numbers = self.part_numbers(chip)
        return None if numbers is None else [self.part(chip, number) for number in numbers]

    def part_numbers(self, chip: Chip) -> list[int] | None:
        """Ids of its virtual NPUs."""
        total, size = Total(), ctypes.c_uint(ctypes.sizeof(Total))
        asked = (*chip, _VDEV, _TOTAL_RESOURCE, ctypes.byref(total), ctypes.byref(size))
        if not self._ask("dcmi_get_device_info", *asked):
            return None
        return sorted(total.vdev_id[: total.vdev_num])

    def part(self, chip: Chip, number: int) -> VirtualNpu:
        """One of its virtual NPUs."""
        found, size = VirtualNpu(vdev_id=number), ctypes.c_uint(ctypes.sizeof(VirtualNpu))
        self._demand("dcmi_get_device_info", *chip, _VDEV, _VDEV_RESOURCE, ctypes.byref(found), ctypes.byref(size))
        return found

    def create(self, chip: Chip, number: int, template: str) -> None:
        """Make a virtual NPU."""
        wanted = _CreateIn(vdev_id=number, template_name=template.encode())
        self._demand("dcmi_create_vdevice", *chip, ctypes.byref(wanted), ctypes.byref(_CreateOut()))

    def destroy(self, chip: Chip, number: int) -> None:
        """Remove one that nobody uses."""
        self._demand("dcmi_set_destroy_vdevice", *chip, ctypes.c_uint(number))

    def _of(self, function: str, chip: Chip, found: S) -> S:
        self._demand(function, *chip, ctypes.byref(found))
        return found

    def _demand(self, function: str, *arguments: object) -> None:
        code = self._call(function, *arguments)
        if code:
            raise _error(function, code)

    def _ask(self, function: str, *arguments: object) -> bool:
        """Whether it is offered; what else goes wrong is an error."""
        if function in self._not_offered:
            return False
        code = self._call(function, *arguments)
        if code == _NOT_SUPPORTED:
            if function not in _ASKED_FOR_KINDS:
                self._not_offered.add(function)
            return False
        if code:
            raise _error(function, code)
        return True

    def _call(self, function: str, *arguments: object) -> int:
        with self._lock:
            self.calls += 1
            try:
                return int(getattr(self._library, function)(*arguments))
            except AttributeError:
                return _NOT_SUPPORTED  # an older driver


def _error(function: str, code: int) -> DeviceError:
    if code in _GONE:
        return DeviceLost(f"DCMI: the chip does not answer any more ({function}: {code})")
    what = "is not ready" if code == _NOT_READY else f"answered {code}"
    return DeviceError(f"DCMI: {function} {what}")


def _load(path: str) -> ctypes.CDLL:
    named = path or os.environ.get(LIBRARY_VARIABLE, "")
    candidates = [named] if named else [*PATHS, ctypes.util.find_library("dcmi") or ""]
    problems = []
    for candidate in candidates:
        if not candidate or (not named and "/" in candidate and not Path(candidate).exists()):
            continue
        try:
            return ctypes.CDLL(candidate)
        except OSError as error:
            problems.append(str(error))
    raise BackendUnavailable(
        "; ".join(problems) or "there is no libdcmi.so",
        hint=f"install Ascend's driver, or name its library in {LIBRARY_VARIABLE}",
    )
