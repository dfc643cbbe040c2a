"""The program that asks a vendor's library what the kernel's files don't tell of its cards: errors and links.

    library_program.py amd|intel LIBRARY…

It is run by `libraries.py`, by its path, and takes nothing but Python's standard library: a vendor's library may raise,
hang, or end its process, and this is the process. For each line on standard input it writes one:

    {"cards": {"0000:03:00.0": {"uncorrected": 0, "links_up": 2, "peers": ["0000:83:00.0"]}}}, or {"absent": "…"}, or
    {"error": "…"}

What a library does not offer is left out. Structures are those of the public amdsmi.h and zes_api.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

LOOK_S = 60
"""A look that takes longer ends this process, whoever waits for it."""
HANDLES_MAX = 1024
AMD_GPUS, PROCESSOR_GPU = 2, 1
XGMI_LINK, XGMI_UP, XGMI_LINKS_MAX = 2, 1, 8
PORT_HEALTHY, PORT_DEGRADED = 1, 2
RAS_UNCORRECTABLE = 1
RAS_HARDWARE = (3, 4, 5)
"""Categories of errors that are no program's doing: compute, other hardware, caches."""
RAS_CATEGORIES, PORT_MODEL_BYTES, PADDED_BYTES = 7, 256, 1024
PCI_PROPERTIES, PORT_PROPERTIES, RAS_PROPERTIES, PORT_STATE, RAS_STATE = 0x2, 0x6, 0xF, 0x19, 0x22
Card = dict[str, Any]


class Ecc(ctypes.Structure):
    """amdsmi_error_count_t."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("correctable", "uncorrectable", "deferred")] + [
        ("reserved", ctypes.c_uint64 * 5)
    ]


class XgmiLinks(ctypes.Structure):
    """amdsmi_xgmi_link_status_t."""

    _fields_ = [
        ("total", ctypes.c_uint32),
        ("status", ctypes.c_uint32 * XGMI_LINKS_MAX),
        ("padding", ctypes.c_ubyte * 4),
        ("reserved", ctypes.c_uint64 * 7),
    ]


class Pci(ctypes.Structure):
    """zes_pci_properties_t as far as the address, with room for the rest."""

    _fields_ = [
        ("stype", ctypes.c_int32),
        ("next", ctypes.c_void_p),
        *((name, ctypes.c_uint32) for name in ("domain", "bus", "device", "function")),
        ("rest", ctypes.c_ubyte * PADDED_BYTES),
    ]


class RasProperties(ctypes.Structure):
    """zes_ras_properties_t."""

    _fields_ = [
        ("stype", ctypes.c_int32),
        ("next", ctypes.c_void_p),
        ("type", ctypes.c_int32),
        ("on_subdevice", ctypes.c_uint8),
        ("subdevice", ctypes.c_uint32),
        ("rest", ctypes.c_ubyte * PADDED_BYTES),
    ]


class RasState(ctypes.Structure):
    """zes_ras_state_t."""

    _fields_ = [
        ("stype", ctypes.c_int32),
        ("next", ctypes.c_void_p),
        ("category", ctypes.c_uint64 * RAS_CATEGORIES),
        ("rest", ctypes.c_ubyte * PADDED_BYTES),
    ]


class PortId(ctypes.Structure):
    """zes_fabric_port_id_t."""

    _fields_ = [("fabric", ctypes.c_uint32), ("attach", ctypes.c_uint32), ("number", ctypes.c_uint8)]


class PortProperties(ctypes.Structure):
    """zes_fabric_port_properties_t as far as its id."""

    _fields_ = [
        ("stype", ctypes.c_int32),
        ("next", ctypes.c_void_p),
        ("model", ctypes.c_char * PORT_MODEL_BYTES),
        ("on_subdevice", ctypes.c_uint8),
        ("subdevice", ctypes.c_uint32),
        ("id", PortId),
        ("rest", ctypes.c_ubyte * PADDED_BYTES),
    ]


class PortState(ctypes.Structure):
    """zes_fabric_port_state_t as far as the other end."""

    _fields_ = [
        ("stype", ctypes.c_int32),
        ("next", ctypes.c_void_p),
        ("status", ctypes.c_int32),
        ("quality", ctypes.c_uint32),
        ("failures", ctypes.c_uint32),
        ("remote", PortId),
        ("rest", ctypes.c_ubyte * PADDED_BYTES),
    ]


class Library:
    """Functions by name; what is not there answers like what is not supported."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def ask(self, name: str, *arguments: object) -> bool:
        """Whether a function is there and went well."""
        function = getattr(self._library, name, None)
        return function is not None and function(*arguments) == 0

    def demand(self, name: str, *arguments: object) -> None:
        """The same where nothing goes without it. Raises `OSError`."""
        if not self.ask(name, *arguments):
            raise OSError(f"{name} did not go well")

    def handles(self, name: str, *of: object) -> list[ctypes.c_void_p]:
        """What a function lists: first how many, then which."""
        count = ctypes.c_uint32()
        if not self.ask(name, *of, ctypes.byref(count), None) or not 0 < count.value <= HANDLES_MAX:
            return []
        found = (ctypes.c_void_p * count.value)()
        if not self.ask(name, *of, ctypes.byref(count), found):
            return []
        return [ctypes.c_void_p(each) for each in found[: count.value] if each]


class Amd:
    """Through libamd_smi."""

    def __init__(self, library: Library) -> None:
        self._library = library
        library.demand("amdsmi_init", ctypes.c_uint64(AMD_GPUS))

    def cards(self) -> dict[str, Card]:
        """By address."""
        there = [
            (address, handle)
            for socket in self._library.handles("amdsmi_get_socket_handles")
            for handle in self._library.handles("amdsmi_get_processor_handles", socket)
            if (address := self._address(handle))
        ]
        # Parts of a card have its address: the first of them speaks for it.
        first = dict(reversed(there))
        return {address: self._card(address, handle, first) for address, handle in first.items()}

    def _address(self, handle: ctypes.c_void_p) -> str:
        kind, bdf = ctypes.c_int(), ctypes.c_uint64()
        if not self._library.ask("amdsmi_get_processor_type", handle, ctypes.byref(kind)):
            return ""
        if kind.value != PROCESSOR_GPU or not self._library.ask("amdsmi_get_gpu_device_bdf", handle, ctypes.byref(bdf)):
            return ""
        where = bdf.value
        return f"{where >> 16 & 0xFFFFFFFF:04x}:{where >> 8 & 0xFF:02x}:{where >> 3 & 0x1F:02x}.{where & 7}"

    def _card(self, address: str, handle: ctypes.c_void_p, all_cards: dict[str, ctypes.c_void_p]) -> Card:
        card: Card = {}
        ecc, links = Ecc(), XgmiLinks()
        if self._library.ask("amdsmi_get_gpu_total_ecc_count", handle, ctypes.byref(ecc)):
            card["uncorrected"] = ecc.uncorrectable
        if self._library.ask("amdsmi_get_gpu_xgmi_link_status", handle, ctypes.byref(links)) and links.total:
            states = links.status[: min(links.total, XGMI_LINKS_MAX)]
            card["links_up"] = sum(state == XGMI_UP for state in states)
        others = {other: to for other, to in all_cards.items() if other != address}
        card["peers"] = sorted(other for other, to in others.items() if self._linked(handle, to))
        return card

    def _linked(self, here: ctypes.c_void_p, there: ctypes.c_void_p) -> bool:
        hops, kind = ctypes.c_uint64(), ctypes.c_uint32()
        told = self._library.ask("amdsmi_topo_get_link_type", here, there, ctypes.byref(hops), ctypes.byref(kind))
        return told and kind.value == XGMI_LINK


class Intel:
    """Through Level Zero's Sysman."""

    def __init__(self, library: Library) -> None:
        self._library = library
        library.demand("zesInit", ctypes.c_uint32(0))

    def cards(self) -> dict[str, Card]:
        """By address."""
        devices = {
            address: device
            for driver in self._library.handles("zesDriverGet")
            for device in self._library.handles("zesDeviceGet", driver)
            if (address := self._address(device))
        }
        ports = {address: self._ports(device) for address, device in devices.items()}
        owners = {here: address for address, found in ports.items() for here, _ in found}
        cards: dict[str, Card] = {}
        for address, device in devices.items():
            far = {owners[state.remote.fabric] for _, state in ports[address] if state.remote.fabric in owners}
            cards[address] = {"peers": sorted(far - {address})}
            if ports[address]:
                up = (state.status in (PORT_HEALTHY, PORT_DEGRADED) for _, state in ports[address])
                cards[address]["links_up"] = sum(up)
            errors = self._errors(device)
            if errors is not None:
                cards[address]["uncorrected"] = errors
        return cards

    def _address(self, device: ctypes.c_void_p) -> str:
        pci = Pci(stype=PCI_PROPERTIES)
        if not self._library.ask("zesDevicePciGetProperties", device, ctypes.byref(pci)):
            return ""
        return f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.{pci.function:x}"

    def _errors(self, device: ctypes.c_void_p) -> int | None:
        found: int | None = None
        for errors in self._library.handles("zesDeviceEnumRasErrorSets", device):
            what, state = RasProperties(stype=RAS_PROPERTIES), RasState(stype=RAS_STATE)
            if not self._library.ask("zesRasGetProperties", errors, ctypes.byref(what)):
                continue
            if what.type != RAS_UNCORRECTABLE:
                continue
            if self._library.ask("zesRasGetState", errors, ctypes.c_uint8(0), ctypes.byref(state)):
                found = (found or 0) + sum(state.category[each] for each in RAS_HARDWARE)
        return found

    def _ports(self, device: ctypes.c_void_p) -> list[tuple[int, PortState]]:
        """Each with the number that its card has on the fabric."""
        found: list[tuple[int, PortState]] = []
        for port in self._library.handles("zesDeviceEnumFabricPorts", device):
            what, state = PortProperties(stype=PORT_PROPERTIES), PortState(stype=PORT_STATE)
            told = self._library.ask("zesFabricPortGetProperties", port, ctypes.byref(what))
            if told and self._library.ask("zesFabricPortGetState", port, ctypes.byref(state)):
                found.append((what.id.fabric, state))
        return found


READERS: dict[str, Callable[[Library], Amd | Intel]] = {"amd": Amd, "intel": Intel}


def load(paths: list[str]) -> ctypes.CDLL | None:
    """The first that is there; None: not one. Raises `OSError` for one that is there and can't be loaded."""
    for path in paths:
        if os.path.isabs(path) and not os.path.exists(path):  # noqa: PTH110, PTH117 - pathlib is half of our start
            continue
        with contextlib.suppress(OSError) if not os.path.isabs(path) else contextlib.nullcontext():  # noqa: PTH117
            return ctypes.CDLL(path)
    return None


def main() -> None:
    """Until standard input ends."""
    vendor, *paths = sys.argv[1:]
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print what they like
    reader: Amd | Intel | None = None
    for _ in sys.stdin:
        signal.alarm(LOOK_S)
        try:
            if reader is None:
                library = load(paths)
                if library is None:
                    out.write(json.dumps({"absent": f"none of {', '.join(paths)} is there"}) + "\n")
                    return
                reader = READERS[vendor](Library(library))
            said: dict[str, Any] = {"cards": reader.cards()}
        except Exception as error:  # noqa: BLE001 - told to whoever asked
            said = {"error": f"{type(error).__name__}: {error}"}
        signal.alarm(0)
        out.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
