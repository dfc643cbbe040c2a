"""The same devices under the names and labels of dcgm-exporter, for dashboards that exist already. Opt-in.

Units are dcgm-exporter's own: MiB for frame buffers, percent for utilisation, watts, MHz.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from aliquot.agent.metrics.node import Value, gauges_of
from aliquot.agent.state import DeviceState, NodeState
from aliquot.common.limits import MIB

_LABELS = (
    "gpu",
    "UUID",
    "pci_bus_id",
    "device",
    "modelName",
    "GPU_I_PROFILE",
    "GPU_I_ID",
    "Hostname",
    "pod",
    "namespace",
    "container",
)


def _free_mib(device: DeviceState) -> float | None:
    memory = device.memory
    if memory is None or memory.used_bytes is None:
        return None
    return max(0, memory.total_bytes - memory.reserved_bytes - memory.used_bytes) // MIB


def _used_mib(device: DeviceState) -> float | None:
    used_bytes = device.memory.used_bytes if device.memory is not None else None
    return None if used_bytes is None else used_bytes // MIB


def _part(device: DeviceState, engine: str) -> float | None:
    percent: int | None = getattr(device.load.engines, engine, None)
    return None if percent is None else percent / 100


_GAUGES: tuple[tuple[str, str, Value], ...] = (
    ("GPU_TEMP", "GPU temperature (in C).", lambda d: d.load.temperature_c),
    ("POWER_USAGE", "Power draw (in W).", lambda d: None if d.load.power_mw is None else d.load.power_mw / 1000),
    ("SM_CLOCK", "SM clock frequency (in MHz).", lambda d: d.load.sm_clock_mhz),
    ("GPU_UTIL", "GPU utilization (in %).", lambda d: d.load.gpu_percent),
    ("MEM_COPY_UTIL", "Memory utilization (in %).", lambda d: d.load.memory_percent),
    ("FB_USED", "Framebuffer memory used (in MiB).", _used_mib),
    ("FB_FREE", "Framebuffer memory free (in MiB).", _free_mib),
    ("FB_RESERVED", "Framebuffer memory reserved (in MiB).", lambda d: d.info.memory_reserved_bytes // MIB),
    ("FB_TOTAL", "Framebuffer memory (in MiB).", lambda d: d.info.memory_total_bytes // MIB),
    ("XID_ERRORS", "Value of the last XID error encountered.", lambda d: d.last_xid or 0),
    ("MEMORY_TEMP", "Memory temperature (in C).", lambda d: d.health_sample.memory_temperature_c),
    ("CLOCKS_EVENT_REASONS", "Bits that say why clocks are held.", lambda d: d.health_sample.clock_event_reasons),
    ("CLOCK_THROTTLE_REASONS", "The same, as it was called before.", lambda d: d.health_sample.clock_event_reasons),
    ("ECC_DBE_VOL_TOTAL", "Double-bit volatile ECC errors.", lambda d: d.health_sample.uncorrected_errors),
    ("PCIE_REPLAY_COUNTER", "PCIe retries.", lambda d: d.health_sample.pcie_replays),
    ("POWER_MGMT_LIMIT", "Power limit (in W).", lambda d: d.load.power_limit_mw and d.load.power_limit_mw / 1000),
    ("ROW_REMAP_FAILURE", "1 if remapping of a row has failed.", lambda d: d.health_sample.remap_failed),
    ("ROW_REMAP_PENDING", "1 if a row waits to be remapped.", lambda d: d.health_sample.remap_pending),
)

_PROFILED: tuple[tuple[str, str, Value], ...] = (
    ("SM_ACTIVE", "The ratio of cycles an SM has at least 1 warp assigned.", lambda d: _part(d, "sm")),
    ("PIPE_TENSOR_ACTIVE", "Ratio of cycles the tensor (HMMA) pipe is active.", lambda d: _part(d, "tensor")),
    ("DRAM_ACTIVE", "Ratio of cycles the device memory interface is active.", lambda d: _part(d, "dram")),
)
"""Of devices with performance counters; ratios, as dcgm-exporter has them."""


class DcgmCollector(Collector):
    """Turns the state into dcgm-exporter's metrics when asked."""

    def __init__(self, state: NodeState) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        """See `prometheus_client`."""
        devices = list(self._state.devices.values())
        for kind, table in (("DEV", _GAUGES), ("PROF", _PROFILED)):
            yield from gauges_of(f"DCGM_FI_{kind}_", table, devices, _LABELS, self._labels)

    def _labels(self, device: DeviceState) -> list[str]:
        info = device.info
        return [
            str(info.index),
            info.physical_uuid,
            info.pci_bus_id,
            f"nvidia{info.index}",
            info.product_name,
            info.mig_profile,
            "" if info.gpu_instance_id is None else str(info.gpu_instance_id),
            self._state.name,
            "",
            "",
            "",
        ]
