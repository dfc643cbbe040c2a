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
PROFILES_MAX = 8
INSTANCES_MAX = 8
LINKS_MAX = 18
ECC_LOCATIONS = 8

ACCOUNT_FREE, ACCOUNT_PROCESS, ACCOUNT_STICKY = 0, 1, 2
TYPE_COMPUTE, TYPE_GRAPHICS, TYPE_MPS = 1, 2, 4
ACCOUNT_MEMORY_UNKNOWN = 1


class _Record(ctypes.Structure):
    _fields_: ClassVar[Sequence[Any]]


class Account(_Record):
    """One process on one device."""

    _fields_ = [
        ("state", c_uint32),
        ("pid", c_int32),
        ("start_ticks", c_uint64),
        ("stack_start", c_uint64),
        ("gpu_instance", c_uint32),
        ("compute_instance", c_uint32),
        ("types", c_uint32),
        ("flags", c_uint32),
        ("memory_bytes", c_uint64),
        ("context_bytes", c_uint64),
        ("managed_bytes", c_uint64),
        ("peak_bytes", c_uint64),
        ("cgroup_device", c_uint64),
        ("cgroup_inode", c_uint64),
        ("launches", c_uint64),
        ("sm_percent", c_int32),
        ("memory_percent", c_int32),
        ("window", c_uint64),
        ("busy_ns", c_uint64 * 2),
        ("since_us", c_uint64),
        ("name", c_char * 64),
    ]


class Profile(_Record):
    """A MIG GPU-instance profile of a device."""

    _fields_ = [
        ("in_use", c_uint32),
        ("kind", c_uint32),
        ("id", c_uint32),
        ("slices", c_uint32),
        ("memory_slices", c_uint32),
        ("count_max", c_uint32),
        ("starts", c_uint32),
        ("multiprocessors", c_uint32),
        ("copy_engines", c_uint32),
        ("decoders", c_uint32),
        ("encoders", c_uint32),
        ("jpegs", c_uint32),
        ("ofas", c_uint32),
        ("reserved", c_uint32),
        ("memory_mib", c_uint64),
        ("name", c_char * 32),
    ]


class GpuInstance(_Record):
    """A MIG GPU instance."""

    _fields_ = [
        ("in_use", c_uint32),
        ("id", c_uint32),
        ("profile", c_uint32),
        ("start", c_uint32),
        ("serial", c_uint64),
    ]


class ComputeInstance(_Record):
    """A MIG compute instance: a MIG device."""

    _fields_ = [
        ("in_use", c_uint32),
        ("id", c_uint32),
        ("gpu_instance", c_uint32),
        ("slices", c_uint32),
        ("start", c_uint32),
        ("reserved", c_uint32),
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
        ("serial", c_char * 32),
        ("board_part_number", c_char * 32),
        ("vbios", c_char * 32),
        ("pci_domain", c_uint32),
        ("pci_bus", c_uint32),
        ("pci_device", c_uint32),
        ("pci_id", c_uint32),
        ("pci_subsystem_id", c_uint32),
        ("minor", c_uint32),
        ("brand", c_uint32),
        ("architecture", c_uint32),
        ("compute_major", c_uint32),
        ("compute_minor", c_uint32),
        ("multiprocessors", c_uint32),
        ("cores", c_uint32),
        ("memory_bus_bits", c_uint32),
        ("numa_node", c_uint32),
        ("pcie_switch", c_uint32),
        ("host_bridge", c_uint32),
        ("pcie_generation", c_uint32),
        ("pcie_width", c_uint32),
        ("total_bytes", c_uint64),
        ("reserved_bytes", c_uint64),
        ("bar1_bytes", c_uint64),
        ("context_bytes", c_uint64),
        ("lost", c_uint32),
        ("processes_memory_unknown", c_uint32),
        ("gpu_percent", c_int32),
        ("memory_percent", c_int32),
        ("encoder_percent", c_int32),
        ("decoder_percent", c_int32),
        ("temperature_c", c_int32),
        ("memory_temperature_c", c_int32),
        ("power_mw", c_int32),
        ("fan_percent", c_int32),
        ("temperature_idle_c", c_int32),
        ("temperature_slowdown_c", c_int32),
        ("temperature_shutdown_c", c_int32),
        ("power_idle_mw", c_uint32),
        ("power_limit_mw", c_uint32),
        ("power_default_mw", c_uint32),
        ("power_min_mw", c_uint32),
        ("power_max_mw", c_uint32),
        ("clock_sm_mhz", c_uint32),
        ("clock_sm_max_mhz", c_uint32),
        ("clock_memory_mhz", c_uint32),
        ("clock_memory_max_mhz", c_uint32),
        ("pstate", c_uint32),
        ("persistence_mode", c_uint32),
        ("compute_mode", c_uint32),
        ("throttle_reasons", c_uint64),
        ("energy_uj", c_uint64),
        ("energy_until_us", c_uint64),
        ("ecc_mode", c_uint32),
        ("ecc_pending", c_uint32),
        ("ecc", c_uint64 * ECC_LOCATIONS * 2 * 2),
        ("remap_supported", c_uint32),
        ("remapped_correctable", c_uint32),
        ("remapped_uncorrectable", c_uint32),
        ("remap_pending", c_uint32),
        ("remap_failure", c_uint32),
        ("retired_single", c_uint32),
        ("retired_double", c_uint32),
        ("retired_pending", c_uint32),
        ("recovery_action", c_uint32),
        ("gpm_supported", c_uint32),
        ("mig_supported", c_uint32),
        ("mig_mode", c_uint32),
        ("mig_pending", c_uint32),
        ("mig_without_reset", c_uint32),
        ("profiles", Profile * PROFILES_MAX),
        ("gpu_instances", GpuInstance * INSTANCES_MAX),
        ("compute_instances", ComputeInstance * INSTANCES_MAX),
        ("link_count", c_uint32),
        ("link_mbps", c_uint32),
        ("links", Link * LINKS_MAX),
        ("busy_until_ns", c_uint64),
        ("kernel_ns", c_uint64),
        ("account_count", c_uint32),
        ("contexts_spared", c_uint32),
        ("accounts", Account * ACCOUNTS_MAX),
    ]


class Event(_Record):
    """One entry of the ring of events."""

    _fields_ = [
        ("type", c_uint64),
        ("data", c_uint64),
        ("device", c_uint32),
        ("gpu_instance", c_uint32),
        ("compute_instance", c_uint32),
        ("reserved", c_uint32),
    ]


class Rule(_Record):
    """A fault for some calls."""

    _fields_ = [
        ("in_use", c_uint32),
        ("device", c_int32),
        ("error", c_int32),
        ("hang", c_uint32),
        ("latency_ns", c_uint64),
        ("call", c_char * 64),
    ]


class Limit(_Record):
    """A memory limit of a cgroup on a device."""

    _fields_ = [
        ("in_use", c_uint32),
        ("device", c_uint32),
        ("cgroup_device", c_uint64),
        ("cgroup_inode", c_uint64),
        ("soft_bytes", c_uint64),
        ("hard_bytes", c_uint64),
        ("path", c_char * 256),
    ]


class Holder(_Record):
    """A process that holds shared memory."""

    _fields_ = [
        ("pid", c_int32),
        ("references", c_uint32),
        ("start_ticks", c_uint64),
        ("stack_start", c_uint64),
    ]


class Shared(_Record):
    """Memory that several processes hold."""

    _fields_ = [
        ("in_use", c_uint32),
        ("device", c_uint32),
        ("gpu_instance", c_uint32),
        ("reserved", c_uint32),
        ("serial", c_uint64),
        ("bytes", c_uint64),
        ("holders", Holder * HOLDERS_MAX),
    ]


class ScenarioFile(_Record):
    """The whole file."""

    _fields_ = [
        ("magic", c_uint64),
        ("version", c_uint32),
        ("header_bytes", c_uint32),
        ("device_bytes", c_uint32),
        ("account_bytes", c_uint32),
        ("device_count", c_uint32),
        ("shared_count", c_uint32),
        ("limit_count", c_uint32),
        ("reserved", c_uint32),
        ("mutex", c_uint64 * 8),
        ("rules_generation", c_uint64),
        ("events_written", c_uint64),
        ("events_futex", c_uint32),
        ("cuda_version", c_uint32),
        ("next_serial", c_uint64),
        ("granularity_bytes", c_uint64),
        ("driver_version", c_char * 80),
        ("nvml_version", c_char * 80),
        ("host", c_char * 64),
        ("rules", Rule * RULES_MAX),
        ("events", Event * EVENTS_MAX),
        ("limits", Limit * LIMITS_MAX),
        ("shared", Shared * SHARED_MAX),
        ("devices", Device * DEVICES_MAX),
    ]


FILE_BYTES = sizeof(ScenarioFile)
