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


def up(handle: object) -> int | None:
    """Links that are up; None: the library says nothing of them."""
    try:
        return int(amdsmi.amdsmi_get_gpu_xgmi_link_status(handle)["status"].count("U"))
    except amdsmi.AmdSmiLibraryException:
        return None


def linked(handle: object, other: object) -> bool:
    """Whether two cards have a link of their own."""
    return bool(amdsmi.amdsmi_topo_get_link_type(handle, other)["type"] == amdsmi.AmdSmiLinkType.AMDSMI_LINK_TYPE_XGMI)


found: list[dict[str, Any]] = []
handles = amdsmi.amdsmi_get_processor_handles()
buses = [amdsmi.amdsmi_get_gpu_device_bdf(handle) for handle in handles]
for place, handle in enumerate(handles):
    kind = amdsmi.AmdSmiMemoryType.VRAM
    found.append(
        {
            "bus": amdsmi.amdsmi_get_gpu_device_bdf(handle),
            "uuid": amdsmi.amdsmi_get_gpu_device_uuid(handle),
            "total": amdsmi.amdsmi_get_gpu_memory_total(handle, kind),
            "used": amdsmi.amdsmi_get_gpu_memory_usage(handle, kind),
            "busy": amdsmi.amdsmi_get_gpu_activity(handle)["gfx_activity"],
            "uncorrected": amdsmi.amdsmi_get_gpu_total_ecc_count(handle)["uncorrectable_count"],
            "links_up": up(handle),
            "peers": [buses[to] for to, other in enumerate(handles) if to != place and linked(handle, other)],
            "processes": [[each["pid"], each["mem"]] for each in amdsmi.amdsmi_get_gpu_process_list(handle)],
        }
    )
amdsmi.amdsmi_shut_down()
sys.stdout.write(json.dumps(found))
