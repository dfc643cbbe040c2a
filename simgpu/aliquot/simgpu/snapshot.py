"""The state of a scenario at one moment, as values."""

from __future__ import annotations

import msgspec

from aliquot.common.processes import start_ticks
from aliquot.simgpu import layout


class ProcessState(msgspec.Struct, frozen=True):
    """One process on one device. `memory_bytes` is what it really holds, also where NVML is told to hide it."""

    pid: int
    name: str
    memory_bytes: int
    context_bytes: int
    managed_bytes: int
    peak_bytes: int
    launches: int
    used_ns: int
    """Of the whole device's time."""
    mps_server: int
    """Whose client it is; 0: nobody's."""
    memory_unknown: bool
    gpu_instance: int | None
    compute_instance: int | None


class DeviceState(msgspec.Struct, frozen=True):
    """One GPU. `used_bytes` is what processes hold; None stands for a value that follows from the load."""

    index: int
    uuid: str
    name: str
    total_bytes: int
    reserved_bytes: int
    used_bytes: int
    gpu_percent: int | None
    temperature_c: int | None
    power_mw: int | None
    lost: bool
    mig_mode: bool
    mig_uuids: tuple[str, ...]
    recovery_action: int
    processes: tuple[ProcessState, ...]

    @property
    def free_bytes(self) -> int:
        """What could still be allocated."""
        return max(0, self.total_bytes - self.reserved_bytes - self.used_bytes)


def device_state(file: layout.ScenarioFile, index: int) -> DeviceState:
    """Reads one device. Wants the lock. Processes that have died since somebody last looked are left out."""
    device = file.devices[index]
    processes = tuple(
        _process_state(account) for account in device.accounts[: device.account_count] if _counts(account)
    )
    shared = sum(entry.bytes for entry in file.shared[: file.shared_count] if entry.in_use and entry.device == index)
    return DeviceState(
        index=index,
        uuid=device.uuid.decode(),
        name=device.name.decode(),
        total_bytes=device.total_bytes,
        reserved_bytes=device.reserved_bytes,
        used_bytes=sum(process.memory_bytes + process.managed_bytes for process in processes) + shared,
        gpu_percent=_unless_derived(device.gpu_percent),
        temperature_c=_unless_derived(device.temperature_c),
        power_mw=_unless_derived(device.power_mw),
        lost=bool(device.lost),
        mig_mode=bool(device.mig_mode),
        mig_uuids=tuple(item.uuid.decode() for item in device.compute_instances if item.in_use),
        recovery_action=device.recovery_action,
        processes=processes,
    )


def _counts(account: layout.Account) -> bool:
    if account.state == layout.ACCOUNT_PROCESS:
        return start_ticks(account.pid) == int(account.start_ticks)
    return bool(account.state)


def _process_state(account: layout.Account) -> ProcessState:
    return ProcessState(
        pid=account.pid,
        name=account.name.decode(errors="replace"),
        memory_bytes=account.memory_bytes,
        context_bytes=account.context_bytes,
        managed_bytes=account.managed_bytes,
        peak_bytes=account.peak_bytes,
        launches=account.launches,
        used_ns=account.used_ns,
        mps_server=account.server,
        memory_unknown=bool(account.flags & layout.ACCOUNT_MEMORY_UNKNOWN),
        gpu_instance=_unless_none(account.gpu_instance),
        compute_instance=_unless_none(account.compute_instance),
    )


def _unless_derived(value: int) -> int | None:
    return None if value == layout.DERIVED else value


def _unless_none(instance: int) -> int | None:
    return None if instance == layout.NO_INSTANCE else instance
