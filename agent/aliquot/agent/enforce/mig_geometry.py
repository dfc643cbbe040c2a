"""Reads how a card is cut, and cuts it as planned (`core.partitioning`); `partitions` decides whether it may.

Only unused instances are touched, and each new one gets an explicit place: the places that a driver would choose decide
what fits afterwards.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping

import pynvml

from aliquot.agent.core.partitioning import Card, Instance, Part, Profile, Recut
from aliquot.agent.enforce.base import EnforcementError

_PROFILE_KINDS = range(0x12)
_INSTANCES_MAX = 16
_SHARED_ENGINES = 0


def read_profiles(uuid: str) -> tuple[Profile, ...]:
    """Every way in which the device may be cut. Raises `EnforcementError`."""
    device = _device(uuid)
    found = []
    for kind in _PROFILE_KINDS:
        try:
            info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, kind)
            count = ctypes.c_uint(_INSTANCES_MAX)
            places = (pynvml.c_nvmlGpuInstancePlacement_t * _INSTANCES_MAX)()
            pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(device, info.id, places, ctypes.byref(count))
        except pynvml.NVMLError as error:
            if error.value in (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_INVALID_ARGUMENT):
                continue
            raise EnforcementError(f"the profiles of {uuid} can't be read: {error}") from error
        name = info.name.decode() if isinstance(info.name, bytes) else str(info.name)
        found.append(
            Profile(
                kind=kind,
                profile_id=int(info.id),
                name=name.removeprefix("MIG ").strip(),
                compute_slices=int(info.sliceCount),
                memory_bytes=int(info.memorySizeMB) << 20,
                starts=tuple(int(places[i].start) for i in range(count.value)),
                length=int(places[0].size) if count.value else 0,
            )
        )
    return tuple(found)


def read_instances(uuid: str, profiles: Collection[Profile]) -> tuple[Instance, ...]:
    """The parts there are, and whether a process is on each. Raises `EnforcementError`."""
    device = _device(uuid)
    try:
        busy = {int(process.gpuInstanceId) for process in pynvml.nvmlDeviceGetComputeRunningProcesses(device)}
        found = []
        for profile in profiles:
            for handle in _instances_of(device, profile.profile_id):
                info = pynvml.nvmlGpuInstanceGetInfo(handle)
                place = info.placement
                found.append(
                    Instance(int(info.id), profile.profile_id, int(place.start), int(place.size), int(info.id) in busy)
                )
    except pynvml.NVMLError as error:
        raise EnforcementError(f"the instances of {uuid} can't be read: {error}") from error
    return tuple(found)


def read_card(uuid: str, model: str, devices: Mapping[int, str]) -> Card:
    """A card in MIG mode. `devices`: the UUIDs of its parts, by GPU instance. Raises `EnforcementError`."""
    profiles = read_profiles(uuid)
    names = {profile.profile_id: profile.name for profile in profiles}
    parts = [
        (Part(each.start, names[each.profile_id]), devices.get(each.instance_id, ""))
        for each in read_instances(uuid, profiles)
    ]
    return Card(uuid, model, profiles, tuple(sorted(parts)))


def apply(uuid: str, recut: Recut) -> None:
    """Do as planned. A part that has come into use meanwhile is refused by the driver. Raises `EnforcementError`."""
    if recut.problem:
        raise EnforcementError(recut.problem)
    device = _device(uuid)
    try:
        for instance in recut.destroy:
            _destroy(device, instance)
        for placement in recut.create:
            place = pynvml.c_nvmlGpuInstancePlacement_t(placement.start, placement.profile.length)
            made = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(
                device, placement.profile.profile_id, ctypes.byref(place)
            )
            _fill(made, placement.profile)
    except pynvml.NVMLError as error:
        raise EnforcementError(
            f"{uuid} can't be cut as planned: {error}", hint="cutting needs root, and parts that nobody uses"
        ) from error


def _device(uuid: str) -> object:
    try:
        device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        current, _ = pynvml.nvmlDeviceGetMigMode(device)
    except pynvml.NVMLError as error:
        raise EnforcementError(f"{uuid} can't be cut: {error}") from error
    if not current:
        raise EnforcementError(f"{uuid} is not in MIG mode", hint="an administrator switches it on: nvidia-smi -mig 1")
    return device


def _instances_of(device: object, profile_id: int) -> list[object]:
    count = ctypes.c_uint(_INSTANCES_MAX)
    handles = (pynvml.c_nvmlGpuInstance_t * _INSTANCES_MAX)()
    pynvml.nvmlDeviceGetGpuInstances(device, profile_id, handles, ctypes.byref(count))
    return [handles[i] for i in range(count.value)]


def _fill(gpu_instance: object, profile: Profile) -> None:
    """One compute instance over the whole part."""
    for kind in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(gpu_instance, kind, _SHARED_ENGINES)
        except pynvml.NVMLError:
            continue
        if int(info.sliceCount) == profile.compute_slices:
            pynvml.nvmlGpuInstanceCreateComputeInstance(gpu_instance, info.id)
            return
    raise EnforcementError(f"no compute instance fills a {profile.name}")


def _destroy(device: object, instance: Instance) -> None:
    """Compute instances first, then what they are in."""
    handle = pynvml.nvmlDeviceGetGpuInstanceById(device, instance.instance_id)
    for kind in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        try:
            info = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(handle, kind, _SHARED_ENGINES)
            count = ctypes.c_uint(_INSTANCES_MAX)
            inner = (pynvml.c_nvmlComputeInstance_t * _INSTANCES_MAX)()
            pynvml.nvmlGpuInstanceGetComputeInstances(handle, info.id, inner, ctypes.byref(count))
        except pynvml.NVMLError:
            continue
        for i in range(count.value):
            pynvml.nvmlComputeInstanceDestroy(inner[i])
    pynvml.nvmlGpuInstanceDestroy(handle)
