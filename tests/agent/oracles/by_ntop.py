"""Ascend cards as `ntop` reads them."""

from __future__ import annotations

import json
import os
import sys

os.environ["NTOP_DCMI_LIBRARY"] = os.environ["ALIQUOT_DCMI_LIBRARY"]

from ntop.api import libdcmi

found = []
for card in libdcmi.dcmi_get_card_num_list():
    for device in range(libdcmi.dcmi_get_device_num_in_card(card)):
        memory = libdcmi.dcmi_get_device_hbm_info(card, device)
        pci = libdcmi.dcmi_get_device_pcie_info(card, device)
        found.append(
            {
                "name": libdcmi.dcmi_get_device_chip_info(card, device).chip_name.decode(),
                "total_mb": memory.memory_size,
                "used_mb": memory.memory_usage,
                "heat": libdcmi.dcmi_get_device_temperature(card, device),
                "watt": libdcmi.dcmi_get_device_power_info(card, device),
                "busy": libdcmi.dcmi_get_device_utilization_rate(card, device, 2),
                "bus": f"{pci.domain:04x}:{pci.bdf_busid:02x}:{pci.bdf_deviceid:02x}.{pci.bdf_funcid:x}",
                "processes": [
                    [each.proc_id, each.proc_mem_usage] for each in libdcmi.dcmi_get_device_resource_info(card, device)
                ],
            }
        )
sys.stdout.write(json.dumps(found))
