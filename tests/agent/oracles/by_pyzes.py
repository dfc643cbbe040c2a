"""Intel's cards as its own `pyzes` reads them. It loads its library from one path only, so that is led elsewhere."""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any

real = ctypes.CDLL
ctypes.CDLL = lambda path, *rest, **more: real(  # type: ignore[assignment, misc]
    os.environ["ZE_LOADER"] if "ze_loader" in str(path) else path, *rest, **more
)

import pyzes  # noqa: E402


def enumerate_with(function: Any, of: Any, handle: Any) -> list[Any]:
    """What Level Zero lists: first how many, then which."""
    count = ctypes.c_uint32(0)
    function(*of, ctypes.byref(count), None)
    handles = (handle * count.value)()
    function(*of, ctypes.byref(count), handles)
    return [handle(each if isinstance(each, int) else each.value) for each in handles]


pyzes.zesInit(0)
found: list[dict[str, Any]] = []
for driver in enumerate_with(pyzes.zesDriverGet, (), pyzes.zes_driver_handle_t):
    for device in enumerate_with(pyzes.zesDeviceGet, (driver,), pyzes.zes_device_handle_t):
        pci = pyzes.zes_pci_properties_t()
        pyzes.zesDevicePciGetProperties(device, ctypes.byref(pci))
        where = pci.address
        module = enumerate_with(pyzes.zesDeviceEnumMemoryModules, (device,), pyzes.zes_mem_handle_t)[0]
        memory = pyzes.zes_mem_state_t()
        known = pyzes.zesMemoryGetState(module, ctypes.byref(memory)) == 0
        count = ctypes.c_uint32(0)
        pyzes.zesDeviceProcessesGetState(device, ctypes.byref(count), None)
        listed = (pyzes.zes_process_state_t * count.value)()
        pyzes.zesDeviceProcessesGetState(device, ctypes.byref(count), listed)
        found.append(
            {
                "bus": f"{where.domain:04x}:{where.bus:02x}:{where.device:02x}.{where.function:x}",
                "total": memory.size if known else None,
                "used": memory.size - memory.free if known else None,
                "processes": [[each.processId, each.memSize] for each in listed],
            }
        )
sys.stdout.write(json.dumps(found))
