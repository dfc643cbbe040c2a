"""Gaudi cards as Intel's `pyhlml` reads them. It loads its library from one path only, so that is led elsewhere."""

from __future__ import annotations

import ctypes
import json
import os
import sys

real = ctypes.CDLL
ctypes.CDLL = lambda path, *rest, **more: real(os.environ["ALIQUOT_HLML_LIBRARY"], *rest, **more)  # type: ignore[assignment, misc]

import pyhlml  # noqa: E402

pyhlml.hlmlInit()
found = []
for index in range(pyhlml.hlmlDeviceGetCount()):
    device = pyhlml.hlmlDeviceGetHandleByIndex(index)
    memory = pyhlml.hlmlDeviceGetMemoryInfo(device)
    found.append(
        {
            "name": pyhlml.hlmlDeviceGetName(device).decode(),
            "uuid": pyhlml.hlmlDeviceGetUUID(device).decode(),
            "bus": pyhlml.hlmlDeviceGetPCIInfo(device).bus_id.decode(),
            "total": memory.total,
            "used": memory.used,
            "busy": pyhlml.hlmlDeviceGetUtilizationRates(device).aip,
            "milliwatt": pyhlml.hlmlDeviceGetPowerUsage(device),
            "heat": pyhlml.hlmlDeviceGetTemperature(device, 0),
        }
    )
sys.stdout.write(json.dumps(found))
