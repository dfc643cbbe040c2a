"""AMD's cards as its own `amdsmi` reads them."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from typing import Any

with contextlib.redirect_stdout(io.StringIO()):
    import amdsmi

amdsmi.amdsmi_init()
found: list[dict[str, Any]] = []
for handle in amdsmi.amdsmi_get_processor_handles():
    kind = amdsmi.AmdSmiMemoryType.VRAM
    found.append(
        {
            "bus": amdsmi.amdsmi_get_gpu_device_bdf(handle),
            "uuid": amdsmi.amdsmi_get_gpu_device_uuid(handle),
            "total": amdsmi.amdsmi_get_gpu_memory_total(handle, kind),
            "used": amdsmi.amdsmi_get_gpu_memory_usage(handle, kind),
            "busy": amdsmi.amdsmi_get_gpu_activity(handle)["gfx_activity"],
            "uncorrected": amdsmi.amdsmi_get_gpu_total_ecc_count(handle)["uncorrectable_count"],
            "processes": [[each["pid"], each["mem"]] for each in amdsmi.amdsmi_get_gpu_process_list(handle)],
        }
    )
amdsmi.amdsmi_shut_down()
sys.stdout.write(json.dumps(found))
