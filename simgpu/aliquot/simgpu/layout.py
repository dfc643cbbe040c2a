"""The scenario file as ctypes sees it: the mirror of native/common/scenario.h.

Both sides compile to the same offsets because every field has a fixed size and natural alignment. The creator
writes its idea of the sizes into the header and the C libraries refuse a file whose sizes differ from theirs, so a
change on one side alone can't corrupt anything; tests compare the offsets field by field.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_char, c_int32, c_uint32, c_uint64, sizeof
from typing import Any, ClassVar

MAGIC = int.from_bytes(b"AQSIMGPU", "little")
VERSION = 1
NO_INSTANCE = 0xFFFFFFFF
DERIVED = -1
UNSUPPORTED = -2

DEVICES_MAX = 16
ACCOUNTS_MAX = 256
EVENTS_MAX = 256
RULES_MAX = 64
LIMITS_MAX = 256
SHARED_MAX = 256
HOLDERS_MAX = 8
CGROUP_DEPTH = 12
WINDOWS = 11
PROFILES_MAX = 8
INSTANCES_MAX = 8
LINKS_MAX = 18
ECC_LOCATIONS = 8

ACCOUNT_FREE, ACCOUNT_PROCESS, ACCOUNT_STICKY = 0, 1, 2
TYPE_COMPUTE, TYPE_GRAPHICS, TYPE_MPS = 1, 2, 4
ACCOUNT_MEMORY_UNKNOWN = 1


def _all(kind: Any, names: str) -> list[tuple[str, Any]]:  # noqa: ANN401 - ctypes' types have no common one
    """Fields of one type that follow one another, as C declares them."""
    return [(name, kind) for name in names.split()]


class _Record(ctypes.Structure):
    _fields_: ClassVar[Sequence[Any]]


class Account(_Record):
    """One process on one device."""

    _fields_ = [
        ("state", c_uint32),
        ("pid", c_int32),
        *_all(c_uint64, "start_ticks stack_start"),
        *_all(c_uint32, "gpu_instance compute_instance types flags"),
        *_all(c_uint64, "memory_bytes context_bytes managed_bytes peak_bytes cgroup_device"),
        ("cgroup_inodes", c_uint64 * CGROUP_DEPTH),
        ("launches", c_uint64),
        *_all(c_int32, "sm_percent memory_percent"),
        ("window", c_uint64),
        ("busy_ns", c_uint64 * WINDOWS),
        *_all(c_uint64, "used_ns lag_ns queued_ns server pinned_bytes"),
        *_all(c_uint32, "thread_percent reserved"),
        ("since_us", c_uint64),
        ("name", c_char * 64),
    ]


class Profile(_Record):
    """A MIG GPU-instance profile of a device."""

    _fields_ = [
        *_all(c_uint32, "in_use kind id slices memory_slices count_max starts multiprocessors copy_engines decoders"),
        *_all(c_uint32, "encoders jpegs ofas reserved"),
        ("memory_mib", c_uint64),
        ("name", c_char * 32),
    ]


class GpuInstance(_Record):
    """A MIG GPU instance."""

    _fields_ = [
        *_all(c_uint32, "in_use id profile start"),
        ("serial", c_uint64),
    ]


class ComputeInstance(_Record):
    """A MIG compute instance: a MIG device."""

    _fields_ = [
        *_all(c_uint32, "in_use id gpu_instance slices start reserved"),
        ("serial", c_uint64),
        ("uuid", c_char * 64),
    ]


class Link(_Record):
    """An NVLink."""

    _fields_ = [("active", c_uint32), ("remote_device", c_int32), ("errors", c_uint64 * 5)]


class Device(_Record):
    """One GPU."""

    _fields_ = [
        ("name", c_char * 96),
        ("uuid", c_char * 80),
        *_all(c_char * 32, "serial board_part_number vbios"),
        *_all(c_uint32, "pci_domain pci_bus pci_device pci_id pci_subsystem_id minor brand architecture"),
        *_all(c_uint32, "compute_major compute_minor multiprocessors cores memory_bus_bits numa_node pcie_switch"),
        *_all(c_uint32, "host_bridge pcie_generation pcie_width"),
        *_all(c_uint64, "total_bytes reserved_bytes bar1_bytes context_bytes"),
        *_all(c_uint32, "lost processes_memory_unknown"),
        *_all(c_int32, "gpu_percent memory_percent encoder_percent decoder_percent temperature_c"),
        *_all(c_int32, "memory_temperature_c power_mw fan_percent temperature_idle_c temperature_slowdown_c"),
        ("temperature_shutdown_c", c_int32),
        *_all(c_uint32, "power_idle_mw power_limit_mw power_default_mw power_min_mw power_max_mw clock_sm_mhz"),
        *_all(c_uint32, "clock_sm_max_mhz clock_memory_mhz clock_memory_max_mhz pstate persistence_mode"),
        ("compute_mode", c_uint32),
        *_all(c_uint64, "throttle_reasons energy_uj energy_until_us"),
        *_all(c_uint32, "ecc_mode ecc_pending"),
        ("ecc", c_uint64 * ECC_LOCATIONS * 2 * 2),
        *_all(c_uint32, "remap_supported remapped_correctable remapped_uncorrectable remap_pending remap_failure"),
        *_all(c_uint32, "retired_single retired_double retired_pending recovery_action gpm_supported mig_supported"),
        *_all(c_uint32, "mig_mode mig_pending mig_without_reset"),
        ("profiles", Profile * PROFILES_MAX),
        ("gpu_instances", GpuInstance * INSTANCES_MAX),
        ("compute_instances", ComputeInstance * INSTANCES_MAX),
        *_all(c_uint32, "link_count link_mbps"),
        ("links", Link * LINKS_MAX),
        *_all(c_uint64, "shared_out_ns kernel_ns wedged_server"),
        *_all(c_uint32, "account_count contexts_spared"),
        ("accounts", Account * ACCOUNTS_MAX),
    ]


class Event(_Record):
    """One entry of the ring of events."""

    _fields_ = [
        *_all(c_uint64, "type data"),
        *_all(c_uint32, "device gpu_instance compute_instance reserved"),
    ]


class Rule(_Record):
    """A fault for some calls."""

    _fields_ = [
        ("in_use", c_uint32),
        *_all(c_int32, "device error"),
        ("hang", c_uint32),
        ("latency_ns", c_uint64),
        ("call", c_char * 64),
    ]


class Limit(_Record):
    """A memory limit of a cgroup on a device."""

    _fields_ = [
        *_all(c_uint32, "in_use device"),
        *_all(c_uint64, "cgroup_device cgroup_inode soft_bytes hard_bytes"),
        ("path", c_char * 256),
    ]


class Holder(_Record):
    """A process that holds shared memory."""

    _fields_ = [
        ("pid", c_int32),
        ("references", c_uint32),
        *_all(c_uint64, "start_ticks stack_start"),
    ]


class Shared(_Record):
    """Memory that several processes hold."""

    _fields_ = [
        *_all(c_uint32, "in_use device gpu_instance reserved"),
        *_all(c_uint64, "serial bytes"),
        ("holders", Holder * HOLDERS_MAX),
    ]


class ScenarioFile(_Record):
    """The whole file."""

    _fields_ = [
        ("magic", c_uint64),
        *_all(c_uint32, "version header_bytes device_bytes account_bytes device_count shared_count limit_count"),
        ("limits_nested", c_uint32),
        ("mutex", c_uint64 * 8),
        *_all(c_uint64, "rules_generation events_written"),
        *_all(c_uint32, "events_futex cuda_version"),
        *_all(c_uint64, "next_serial granularity_bytes"),
        *_all(c_char * 80, "driver_version nvml_version"),
        ("host", c_char * 64),
        ("rules", Rule * RULES_MAX),
        ("events", Event * EVENTS_MAX),
        ("limits", Limit * LIMITS_MAX),
        ("shared", Shared * SHARED_MAX),
        ("devices", Device * DEVICES_MAX),
    ]


FILE_BYTES = sizeof(ScenarioFile)
