"""Making a scenario: a machine with the given GPUs, all idle and healthy."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
import uuid
from collections.abc import Sequence
from ctypes import sizeof
from pathlib import Path

from aliquot.simgpu import layout
from aliquot.simgpu.errors import ScenarioError
from aliquot.simgpu.mapping import initialise_mutex
from aliquot.simgpu.models import MIB, MigProfile, Model, model

DRIVER_VERSION = "615.71.05"
CUDA_VERSION = 13040
_GPUS_PER_SOCKET = 4
_GPUS_PER_SWITCH = 2
_DEVICE_FIELDS = (
    "pci_id brand architecture multiprocessors cores memory_bus_bits pcie_generation power_idle_mw power_min_mw"
    " clock_sm_max_mhz clock_memory_max_mhz"
)
_PROFILE_FIELDS = "kind id slices memory_slices count_max multiprocessors copy_engines decoders memory_mib"


def write_scenario(
    path: Path,
    models: Sequence[str],
    *,
    host: str,
    seed: str,
    driver_version: str,
    mode: int,
) -> None:
    """Writes a new scenario and moves it into place, so that nobody sees half of one.

    Like a device node, the file is open to every user by default (`mode`): the simulated driver runs within each
    process that uses it.
    """
    if not 1 <= len(models) <= layout.DEVICES_MAX:
        raise ScenarioError(f"a scenario holds 1 to {layout.DEVICES_MAX} GPUs, not {len(models)}")
    chosen = [model(key) for key in models]
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=path.name, dir=path.parent)
    try:
        os.ftruncate(descriptor, layout.FILE_BYTES)
        with mmap.mmap(descriptor, layout.FILE_BYTES) as memory:
            file = layout.ScenarioFile.from_buffer(memory)
            _fill(file, chosen, host, seed, driver_version)
            del file
        os.fchmod(descriptor, mode)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)


def _fill(file: layout.ScenarioFile, models: Sequence[Model], host: str, seed: str, driver_version: str) -> None:
    file.version = layout.VERSION
    file.header_bytes = layout.FILE_BYTES
    file.device_bytes = sizeof(layout.Device)
    file.account_bytes = sizeof(layout.Account)
    file.device_count = len(models)
    file.next_serial = 1
    file.granularity_bytes = 512
    file.cuda_version = CUDA_VERSION
    file.driver_version = driver_version.encode()
    file.nvml_version = f"13.{driver_version}".encode()
    file.host = host.encode()[:63]
    initialise_mutex(file)
    for index, chosen in enumerate(models):
        _fill_device(file.devices[index], chosen, index, seed)
    _link(file, models)
    file.magic = layout.MAGIC  # last: a file without it is nobody's


def _fill_device(device: layout.Device, chosen: Model, index: int, seed: str) -> None:
    identity = uuid.uuid5(uuid.NAMESPACE_DNS, f"simgpu/{seed}/{index}")
    _copy(device, chosen, _DEVICE_FIELDS)
    device.name = chosen.name.encode()
    device.uuid = f"GPU-{identity}".encode()
    device.serial = f"{identity.int % 10**13:013d}".encode()
    device.board_part_number = f"900-{chosen.pci_id >> 16:05d}-0000-000".encode()
    device.vbios = b"92.00.45.00.05"
    device.pci_bus = 0x07 + 0x08 * index
    device.pci_subsystem_id = 0x134F10DE
    device.minor = index
    device.compute_major, device.compute_minor = chosen.compute_capability
    device.numa_node = device.host_bridge = index // _GPUS_PER_SOCKET
    device.pcie_switch = index // _GPUS_PER_SWITCH
    device.pcie_width = 16
    device.total_bytes = chosen.memory_mib * MIB
    device.reserved_bytes = chosen.reserved_mib * MIB
    device.bar1_bytes = chosen.bar1_mib * MIB
    device.context_bytes = chosen.context_mib * MIB
    device.gpu_percent = device.memory_percent = device.temperature_c = device.power_mw = layout.DERIVED
    device.memory_temperature_c = layout.DERIVED if chosen.memory_sensor else layout.UNSUPPORTED
    device.fan_percent = layout.UNSUPPORTED  # all of these are cooled by their chassis
    device.temperature_idle_c = 32
    device.temperature_slowdown_c = 89
    device.temperature_shutdown_c = 92
    device.power_limit_mw = device.power_default_mw = device.power_max_mw = chosen.power_limit_mw
    device.clock_sm_mhz = chosen.clock_sm_max_mhz
    device.clock_memory_mhz = chosen.clock_memory_max_mhz
    device.energy_until_us = time.time_ns() // 1000
    device.ecc_mode = device.ecc_pending = 1
    device.remap_supported = chosen.remaps_rows
    device.gpm_supported = device.mig_without_reset = chosen.is_hopper
    device.mig_supported = bool(chosen.profiles)
    for slot, profile in enumerate(chosen.profiles):
        _fill_profile(device.profiles[slot], profile)


def _fill_profile(slot: layout.Profile, profile: MigProfile) -> None:
    slot.in_use = 1
    _copy(slot, profile, _PROFILE_FIELDS)
    slot.starts = sum(1 << start for start in profile.starts)
    slot.jpegs = slot.ofas = profile.media_engines
    slot.name = profile.name.encode()


def _copy(target: layout.Device | layout.Profile, source: Model | MigProfile, names: str) -> None:
    for name in names.split():
        setattr(target, name, getattr(source, name))


def _link(file: layout.ScenarioFile, models: Sequence[Model]) -> None:
    """NVLink: through switches on Ampere and later, directly and evenly to the other GPUs before that."""
    for index, chosen in enumerate(models):
        device = file.devices[index]
        peers = [i for i, other in enumerate(models) if i != index and other.key == chosen.key]
        device.link_count = chosen.links if peers else 0
        device.link_mbps = chosen.link_mbps
        for number in range(device.link_count):
            device.links[number].active = 1
            device.links[number].remote_device = -1 if chosen.remaps_rows else peers[number % len(peers)]
