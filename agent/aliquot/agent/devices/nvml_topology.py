"""How a node's devices are linked: which of them reach one another over NVLink, and on which NUMA node each sits."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

import pynvml

from aliquot.agent.core.islands import islands as joined
from aliquot.agent.devices.base import DeviceError
from aliquot.agent.devices.nvml_query import Query, text

PCI_DEVICES = Path("/sys/bus/pci/devices")
_LINKS_MAX = 18
_SWITCH = "switch"


def bus_id_of(raw: str | bytes) -> str:
    """A PCI bus id as the kernel writes it: `0000:3b:00.0`. NVML pads the domain to eight digits."""
    domain, _, rest = text(raw).lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def numa_node_of(bus_id: str) -> int | None:
    """The NUMA node a PCI device sits on, from the kernel; None where there is none, or it is not known."""
    try:
        node = int((PCI_DEVICES / bus_id / "numa_node").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def islands(
    query: Query, handles: Mapping[str, object], bus_ids: Mapping[str, str], known: dict[str, dict[int, str]]
) -> dict[str, int]:
    """Devices that reach one another over NVLink get the same number, counted from 0. Devices without a link get none.
    All mappings are by UUID. `known`: by link, where each led when it was last read, which counts where it is refused.
    """
    uuid_at = {bus_id: uuid for uuid, bus_id in bus_ids.items()} | {_SWITCH: _SWITCH}
    links: dict[str, list[str]] = {}
    for uuid, handle in handles.items():
        own = known.setdefault(uuid, {})
        _read_links(query, uuid, handle, own)
        links[uuid] = [uuid_at[far] for far in own.values() if far in uuid_at]
    return joined(links)


def _read_links(query: Query, uuid: str, handle: object, known: dict[int, str]) -> None:
    """Bus ids at the far ends of a device's active links; `switch` for NVSwitches, which join all that reach one."""
    for link in range(_LINKS_MAX):
        try:
            active = query.ask(uuid, f"NvLinkState {link}", pynvml.nvmlDeviceGetNvLinkState, handle, link)
            far = _far_end(query, uuid, handle, link) if active else ""
        except DeviceError:
            break  # fewer links than this
        if far:
            known[link] = far
        elif active is not None and not active:
            known.pop(link, None)  # one that is off, or refused, says nothing of the next


def _far_end(query: Query, uuid: str, handle: object, link: int) -> str:
    """Empty: it is not told."""
    ask = pynvml.nvmlDeviceGetNvLinkRemoteDeviceType
    try:
        kind = query.unless_refused(uuid, f"NvLinkRemoteDeviceType {link}", ask, handle, link)
    except DeviceError:
        return ""
    if kind == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
        return _SWITCH
    remote = query.ask(uuid, f"NvLinkRemotePciInfo {link}", pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
    return bus_id_of(remote.busId) if remote is not None else ""


def links_up(query: Query, uuid: str, handle: object) -> int | None:
    """How many of a device's NVLinks are up; None where it has none, or they can't be read."""
    up: int | None = None
    for link in range(_LINKS_MAX):
        try:
            active = query.ask(uuid, f"NvLinkState {link}", pynvml.nvmlDeviceGetNvLinkState, handle, link)
        except DeviceError:
            break  # fewer links than this
        if active is None:
            continue
        up = (up or 0) + bool(active)
    return up


def fabric_state(query: Query, uuid: str, handle: object) -> int | None:
    """The state of a device's registration with the fabric (NVML_GPU_FABRIC_STATE_*); None where that is not told."""
    info = pynvml.c_nvmlGpuFabricInfo_v2_t()
    info.version = pynvml.nvmlGpuFabricInfo_v2
    answer = query.ask(
        uuid, "GpuFabricInfo", lambda: (pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info)), 1)
    )
    return None if answer is None else int(info.state)
