"""How busy, hot and well a card is, by its files in sysfs. What a driver does not tell is None."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from aliquot.agent.core.samples import ActivitySource, HealthSample, LoadSample
from aliquot.agent.devices.drm.cards import PCI, number, text
from aliquot.common.kernel_files import KernelFiles

_MEMORY_SENSORS = ("mem", "vram")


def load(tree: KernelFiles, address: str, engine_percent: int | None) -> LoadSample:
    """`engine_percent`: of the busiest engine, as processes' clients tell it, for drivers that tell no more."""
    folder = f"{PCI}/{address}"
    sensors = _hwmon(tree, folder)
    busy = number(tree, f"{folder}/gpu_busy_percent")
    memory_busy = number(tree, f"{folder}/mem_busy_percent")
    percent = busy if busy is not None else engine_percent
    source = ActivitySource.KERNELS if busy is not None else ActivitySource.PROCESSES
    clock = number(tree, f"{sensors}/freq1_input") if sensors else None
    return LoadSample(
        gpu_percent=percent,
        memory_percent=memory_busy,
        temperature_c=_thousandth(_temperature(tree, sensors, memory=False)),
        power_mw=_thousandth(_first(tree, sensors, "power1_average", "power1_input")),
        sm_clock_mhz=None if clock is None else clock // 1_000_000,
        activity_percent=percent,
        activity_source=ActivitySource.UNKNOWN if percent is None else source,
        power_limit_mw=_thousandth(_first(tree, sensors, "power1_cap", "power1_max")),
    )


def health(tree: KernelFiles, address: str) -> HealthSample:
    """Of the card; its parts are as well as it is."""
    folder = f"{PCI}/{address}"
    retired = text(tree, f"{folder}/ras/gpu_vram_bad_pages").splitlines()
    flags = {line.rpartition(":")[2].strip() for line in retired}
    errors = list(_uncorrected(tree, folder))
    return HealthSample(
        remap_pending="P" in flags if retired else None,
        remap_failed="F" in flags if retired else None,
        uncorrected_errors=sum(errors) if errors else None,
        memory_temperature_c=_thousandth(_temperature(tree, _hwmon(tree, folder), memory=True)),
        pcie_replays=number(tree, f"{folder}/pcie_replay_count"),
        pcie_width=number(tree, f"{folder}/current_link_width"),
    )


def _uncorrected(tree: KernelFiles, folder: str) -> Iterator[int]:
    """Of each block that counts its memory errors: `ue: 0` in a file of its own."""
    with contextlib.suppress(OSError):
        for name in tree.names(f"{folder}/ras"):
            if not name.endswith("_err_count"):
                continue
            for line in text(tree, f"{folder}/ras/{name}").splitlines():
                key, _, value = line.partition(":")
                if key.strip() == "ue" and value.strip().isdecimal():
                    yield int(value)


def _hwmon(tree: KernelFiles, folder: str) -> str:
    with contextlib.suppress(OSError):
        for name in sorted(tree.names(f"{folder}/hwmon")):
            return f"{folder}/hwmon/{name}"
    return ""


def _temperature(tree: KernelFiles, sensors: str, *, memory: bool) -> int | None:
    """Of the chip, or of its memory: by the sensor's label, where it has one."""
    if not sensors:
        return None
    for place in (1, 2, 3):
        label = text(tree, f"{sensors}/temp{place}_label")
        value = number(tree, f"{sensors}/temp{place}_input")
        if value is not None and (label in _MEMORY_SENSORS) is memory and (label or not memory):
            return value
    return None


def _first(tree: KernelFiles, sensors: str, *names: str) -> int | None:
    found = (number(tree, f"{sensors}/{name}") for name in names if sensors)
    return next((value for value in found if value is not None), None)


def _thousandth(value: int | None) -> int | None:
    return None if value is None else value // 1_000
