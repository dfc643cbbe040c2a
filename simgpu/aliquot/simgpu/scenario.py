"""A scenario under control: read the simulated GPUs and change them under whoever uses them.

Every change is one step under the scenario's lock, so that the simulated libraries see it whole or not at all.
Devices are named by index or by UUID.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from aliquot.common.closing import Closing
from aliquot.common.processes import start_ticks
from aliquot.simgpu import faults, layout
from aliquot.simgpu.creation import DRIVER_VERSION, write_scenario
from aliquot.simgpu.errors import ScenarioError, UnknownDeviceError
from aliquot.simgpu.mapping import Mapping
from aliquot.simgpu.snapshot import DeviceState, device_state

EVENT_SINGLE_BIT_ECC = 0x1
EVENT_DOUBLE_BIT_ECC = 0x2
EVENT_XID = 0x8
EVENT_UNAVAILABLE = 0x4000
EVENT_RECOVERY_ACTION = 0x8000
XID_FELL_OFF_THE_BUS = 79

FIRST_SYNTHETIC_PID = 1 << 22
"""Beyond any PID that Linux gives out: a foreign process that exists only in the scenario."""

DeviceName = int | str


def create(
    path: str | os.PathLike[str],
    models: Sequence[str] = ("A100-40",) * 4,
    *,
    host: str = "simulated",
    seed: str | None = None,
    driver_version: str = DRIVER_VERSION,
    mode: int = 0o666,
) -> Scenario:
    """Makes a machine with these GPUs (see models.MODELS) and opens it; an existing file is replaced.

    UUIDs, serial numbers and bus addresses follow from `seed` (default: `host`) and the index alone, so the same
    machine comes back with the same devices.
    """
    write_scenario(
        Path(path), models, host=host, seed=host if seed is None else seed, driver_version=driver_version, mode=mode
    )
    return Scenario(path)


class Scenario(Closing):
    """An open scenario. A context manager; closing it leaves the file and its users alone."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._mapping = Mapping(self.path)

    def close(self) -> None:
        """Unmaps the file."""
        self._mapping.close()

    # ------------------------------------------------------------------------------------------------------- reading

    def devices(self) -> tuple[DeviceState, ...]:
        """All devices, by index."""
        with self._mapping.locked() as file:
            return tuple(device_state(file, index) for index in range(file.device_count))

    def device(self, device: DeviceName) -> DeviceState:
        """One device. Raises UnknownDeviceError."""
        with self._mapping.locked() as file:
            return device_state(file, self._index(file, device))

    def faults(self) -> tuple[faults.Fault, ...]:
        """The rules in force."""
        with self._mapping.locked() as file:
            return faults.list_rules(file)

    # ------------------------------------------------------------------------------------------------------- sensors

    def set(self, device: DeviceName, **fields: int | str | None) -> None:
        """Changes fields of the device's record (see layout.Device) in one step: sensors, clocks, modes, counters of
        errors, what a context costs. None: what follows from the load, or for the fan that the device has none.
        Raises ScenarioError for a field that there is not.
        """
        with self._changing(device) as target:
            for name, value in fields.items():
                # A ctypes structure takes any attribute: a misspelt one would change nothing and say nothing.
                if not hasattr(layout.Device, name):
                    raise ScenarioError(f"a simulated device has no field {name!r}", hint="see layout.Device")
                setattr(target, name, value.encode() if isinstance(value, str) else _or_default(name, value))

    def set_limits_nested(self, *, nested: bool) -> None:
        """Which backend holds the limits of cgroups. By the driver's own books, where nothing else was said, a cgroup
        without one shares that of the nearest above it, and one with its own takes nothing from it. Nested, as by the
        kernel's dmem, all of them bound what is below, and a cgroup without one shows the whole device.
        """
        with self._mapping.locked() as file:
            file.limits_nested = int(nested)

    def limits(self, device: DeviceName) -> dict[str, tuple[int, int]]:
        """What was set on cgroups and not taken away, also of those that are gone: by path, bytes that are guaranteed
        and bytes that are the most.
        """
        with self._mapping.locked() as file:
            index = self._index(file, device)
            kept = [each for each in file.limits if each.in_use and each.device == index]
            return {each.path.decode(): (each.soft_bytes, each.hard_bytes) for each in kept}

    def set_mig_mode(self, device: DeviceName, *, enabled: bool, pending: bool = False) -> None:
        """As after a reset: instances are gone when MIG goes off. `pending`: only with the next reset. Raises
        ScenarioError on a model without MIG.
        """
        with self._changing(device) as target:
            if enabled and not target.mig_supported:
                raise ScenarioError(f"{target.name.decode()} has no MIG", hint="simulate an A100, H100 or H200")
            target.mig_pending = enabled
            if pending:
                return
            target.mig_mode = enabled
            if not enabled:
                _clear_instances(target)

    # -------------------------------------------------------------------------------------------------------- health

    def lose(self, device: DeviceName, xid: int = XID_FELL_OFF_THE_BUS) -> None:
        """The device falls off the bus: every call about it answers GPU_IS_LOST, and an XID event says why."""
        with self._changing(device) as target:
            target.lost = 1
        self.raise_xid(device, xid)

    def restore(self, device: DeviceName) -> None:
        """A lost device comes back as after a reset."""
        self.reset(device)

    def renumber(self, first: DeviceName, second: DeviceName) -> None:
        """Two devices come up under one another's numbers, as after a restart of the machine: everything else of them
        (UUID, address, memory, processes) goes along.
        """
        with self._mapping.locked() as file:
            one, other = self._index(file, first), self._index(file, second)
            swapped = {one: other, other: one}
            kept = bytes(file.devices[one])
            file.devices[one] = file.devices[other]
            file.devices[other] = layout.Device.from_buffer_copy(kept)
            for index in range(file.device_count):
                for link in file.devices[index].links:
                    link.remote_device = swapped.get(link.remote_device, link.remote_device)
            for table in (file.rules, file.limits, file.shared):
                for entry in table:
                    entry.device = swapped.get(entry.device, entry.device)

    def reset(self, device: DeviceName) -> None:
        """A GPU reset: pending modes and remaps take effect, volatile errors and MIG instances are gone."""
        with self._changing(device) as target:
            target.lost = target.recovery_action = target.remap_pending = target.retired_pending = 0
            target.throttle_reasons = 0
            target.ecc_mode = target.ecc_pending
            for kind in range(2):
                for location in range(layout.ECC_LOCATIONS):
                    target.ecc[kind][0][location] = 0
            _clear_instances(target)
            target.mig_mode = target.mig_pending

    def add_ecc_errors(
        self, device: DeviceName, *, corrected: int = 0, uncorrected: int = 0, location: int = 2
    ) -> None:
        """Counts memory errors at an NVML memory location (2: DRAM), volatile and aggregate, and raises the events."""
        with self._changing(device) as target:
            for kind, count in enumerate((corrected, uncorrected)):
                target.ecc[kind][0][location] += count
                target.ecc[kind][1][location] += count
        if corrected:
            self.raise_event(device, EVENT_SINGLE_BIT_ECC)
        if uncorrected:
            self.raise_event(device, EVENT_DOUBLE_BIT_ECC)

    def set_recovery_action(self, device: DeviceName, action: int) -> None:
        """NVML_GPU_RECOVERY_ACTION_*: 0 none, 1 reset, 2 reboot, 3 drain P2P, 4 drain and reset."""
        with self._changing(device) as target:
            changed = target.recovery_action != action
            target.recovery_action = action
        if changed:
            self.raise_event(device, EVENT_RECOVERY_ACTION, action)

    def set_link(self, device: DeviceName, link: int, *, active: bool, errors: int = 0) -> None:
        """An NVLink goes down or up; `errors` are added to its replay counter."""
        with self._changing(device) as target:
            if not 0 <= link < target.link_count:
                raise ScenarioError(f"the device has no NVLink {link}", hint=f"it has {target.link_count} of them")
            target.links[link].active = active
            target.links[link].errors[0] += errors

    def raise_xid(
        self, device: DeviceName, xid: int, *, gpu_instance: int | None = None, compute_instance: int | None = None
    ) -> None:
        """An XID event, on the whole GPU or on one of its MIG instances."""
        self.raise_event(device, EVENT_XID, xid, gpu_instance=gpu_instance, compute_instance=compute_instance)

    def raise_event(
        self,
        device: DeviceName,
        event_type: int,
        data: int = 0,
        *,
        gpu_instance: int | None = None,
        compute_instance: int | None = None,
    ) -> None:
        """Wakes whoever waits for this kind of event (nvmlEventType*) on the device."""
        with self._mapping.locked() as file:
            event = file.events[file.events_written % layout.EVENTS_MAX]
            event.type = event_type
            event.data = data
            event.device = self._index(file, device)
            event.gpu_instance = layout.NO_INSTANCE if gpu_instance is None else gpu_instance
            event.compute_instance = layout.NO_INSTANCE if compute_instance is None else compute_instance
            file.events_written += 1
            file.events_futex += 1
        self._mapping.wake_event_waiters()

    # ----------------------------------------------------------------------------------------------------- processes

    def add_foreign(
        self,
        device: DeviceName,
        memory_bytes: int,
        *,
        pid: int | None = None,
        name: str = "foreign",
        memory_unknown: bool = False,
        sm_percent: int = 0,
        graphics: bool = False,
    ) -> int:
        """Books memory for a process outside this simulation and returns its PID.

        With the PID of a living process it goes when that one ends; without one it exists only in the scenario and
        stays until removed. `memory_unknown`: the memory is taken, but NVML answers N/A for it.
        """
        started = start_ticks(pid) if pid is not None else None
        with self._mapping.locked() as file:
            target = file.devices[self._index(file, device)]
            slot = next((i for i in range(layout.ACCOUNTS_MAX) if not target.accounts[i].state), None)
            if slot is None:
                raise ScenarioError(f"the device has {layout.ACCOUNTS_MAX} processes already", hint="remove some")
            chosen = self._synthetic_pid(file) if pid is None else pid
            account = layout.Account(
                state=layout.ACCOUNT_STICKY if started is None else layout.ACCOUNT_PROCESS,
                pid=chosen,
                start_ticks=started or 0,
                gpu_instance=layout.NO_INSTANCE,
                compute_instance=layout.NO_INSTANCE,
                types=layout.TYPE_GRAPHICS if graphics else layout.TYPE_COMPUTE,
                flags=layout.ACCOUNT_MEMORY_UNKNOWN if memory_unknown else 0,
                memory_bytes=memory_bytes,
                peak_bytes=memory_bytes,
                sm_percent=sm_percent,
                since_us=time.time_ns() // 1000,
                name=name.encode()[:63],
            )
            target.accounts[slot] = account
            target.account_count = max(target.account_count, slot + 1)
            return chosen

    def remove_foreign(self, device: DeviceName, pid: int) -> bool:
        """Forgets the process on this device, with its memory. False: there was none."""
        with self._changing(device) as target:
            return _for_process(target, pid, lambda slot: target.accounts.__setitem__(slot, layout.Account()))

    def end_mps_client(self, pid: int) -> None:
        """What a server of MPS does for a client that is to go: its work is dropped."""
        with self._mapping.locked() as file:
            for device in file.devices[: file.device_count]:
                for account in device.accounts[: device.account_count]:
                    account.queued_ns = 0 if account.pid == pid else account.queued_ns

    def set_foreign_memory(self, device: DeviceName, pid: int, memory_bytes: int) -> bool:
        """Changes what the process holds on this device. False: there is none."""
        with self._changing(device) as target:
            return _for_process(target, pid, lambda slot: setattr(target.accounts[slot], "memory_bytes", memory_bytes))

    def set_memory_unknown(self, device: DeviceName, pid: int, *, unknown: bool) -> bool:
        """Whether NVML answers N/A instead of the memory of this process. False: there is none."""
        with self._changing(device) as target:
            flag = layout.ACCOUNT_MEMORY_UNKNOWN if unknown else 0
            return _for_process(target, pid, lambda slot: setattr(target.accounts[slot], "flags", flag))

    # -------------------------------------------------------------------------------------------------------- faults

    def set_latency(self, call: str, nanoseconds: int, device: DeviceName | None = None) -> None:
        """Each such call takes at least this long; 0 ends it. See the faults module for how calls are named."""
        with self._mapping.locked() as file:
            faults.set_rule(file, call, self._optional_index(file, device), latency_ns=nanoseconds)

    def set_measured_latencies(self) -> None:
        """The costs that calls had on a real machine."""
        for call, nanoseconds in faults.MEASURED_LATENCY_NS.items():
            self.set_latency(call, nanoseconds)

    def hang(self, call: str, device: DeviceName | None = None) -> None:
        """Such calls block from now on, until `unhang`."""
        with self._mapping.locked() as file:
            faults.set_rule(file, call, self._optional_index(file, device), hang=True)

    def unhang(self, call: str, device: DeviceName | None = None) -> None:
        """Calls blocked by the same `hang` go on."""
        with self._mapping.locked() as file:
            faults.set_rule(file, call, self._optional_index(file, device), hang=False)

    def fail(self, call: str, error: int, device: DeviceName | None = None) -> None:
        """Such calls answer this nvmlReturn_t or CUresult; 0 ends it."""
        with self._mapping.locked() as file:
            faults.set_rule(file, call, self._optional_index(file, device), error=error)

    def clear_faults(self, call: str | None = None) -> None:
        """Ends every latency, hang and error, or those of one name."""
        with self._mapping.locked() as file:
            faults.clear_rules(file, call)

    # ------------------------------------------------------------------------------------------------------- helpers

    @contextmanager
    def _changing(self, device: DeviceName) -> Iterator[layout.Device]:
        with self._mapping.locked() as file:
            yield file.devices[self._index(file, device)]

    def _optional_index(self, file: layout.ScenarioFile, device: DeviceName | None) -> int | None:
        return None if device is None else self._index(file, device)

    def _index(self, file: layout.ScenarioFile, device: DeviceName) -> int:
        for index in range(file.device_count):
            if device == index or (isinstance(device, str) and file.devices[index].uuid == device.encode()):
                return index
        raise UnknownDeviceError(f"no device {device!r} in {self.path}", hint="see `show` for what there is")

    @staticmethod
    def _synthetic_pid(file: layout.ScenarioFile) -> int:
        file.next_serial += 1
        return FIRST_SYNTHETIC_PID + int(file.next_serial)


def _or_default(field: str, value: int | None) -> int:
    if value is not None:
        return value
    return layout.UNSUPPORTED if field == "fan_percent" else layout.DERIVED


def _clear_instances(device: layout.Device) -> None:
    for slot in range(layout.INSTANCES_MAX):
        device.gpu_instances[slot] = layout.GpuInstance()
        device.compute_instances[slot] = layout.ComputeInstance()


def _for_process(device: layout.Device, pid: int, change: Callable[[int], None]) -> bool:
    slots = [i for i in range(device.account_count) if device.accounts[i].state and device.accounts[i].pid == pid]
    for slot in slots:
        change(slot)
    return bool(slots)
