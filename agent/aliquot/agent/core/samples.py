"""What a device backend can say about a device, as plain values. `None` is "not known", never zero."""

from __future__ import annotations

import enum

import msgspec

from aliquot.common.limits import WHOLE_SHARE_MILLI


class DeviceInfo(msgspec.Struct, frozen=True):
    """What does not change while the agent runs, except by re-partitioning."""

    uuid: str
    index: int
    product_name: str
    model: str
    """Canonical name of the catalogue, or the product name."""
    vendor: str
    memory_total_bytes: int
    memory_reserved_bytes: int
    """Kept by the driver for itself: never leasable."""
    pci_bus_id: str = ""
    numa_node: int | None = None
    fabric_island: int | None = None
    """Devices of one node with the same number reach one another over links of their own (NVLink, XGMI, HCCS)."""
    mig_profile: str = ""
    """Of a part that the hardware holds apart, cut by the grammar of `mig` requests; empty: a whole card, or a part of
    another kind.
    """
    parent_uuid: str = ""
    gpu_instance_id: int | None = None
    compute_milli: int = WHOLE_SHARE_MILLI
    """What it has of its card's compute, in thousandths; less than all for a MIG instance."""
    mig_start: int | None = None
    """A MIG instance's first slice of its card's memory."""
    whole_only: str = ""
    """Why no parts of it can be leased, and what to do about it; empty: they can."""
    shut: str = ""
    """Why no more programs can come onto it, and what to do about it; empty: they can. Those that are there run on."""
    memory_shared: bool = False
    """Its memory is its card's, which the card's other parts take from as well."""

    @property
    def leasable_bytes(self) -> int:
        """Memory that leases may hold while no foreign process is on the device."""
        return max(0, self.memory_total_bytes - self.memory_reserved_bytes)

    @property
    def physical_uuid(self) -> str:
        """The card it is, or is a part of."""
        return self.parent_uuid or self.uuid


class MemorySample(msgspec.Struct, frozen=True):
    """Device memory in bytes."""

    total_bytes: int
    reserved_bytes: int
    used_bytes: int | None
    """By processes, without what is reserved; None: the driver does not tell."""


class ProcessSample(msgspec.Struct, frozen=True):
    """One process that the driver lists on a device."""

    pid: int
    memory_bytes: int | None


class ProcessList(msgspec.Struct, frozen=True):
    """The processes of one device."""

    processes: tuple[ProcessSample, ...]
    complete: bool = True
    """False where one of the driver's lists could not be read: who is missing may still be there."""


class ActivitySource(enum.IntEnum):
    """What says how active something is; numbers equal those of the contract."""

    UNKNOWN = 0
    KERNELS = 1
    """Part of the time in which any kernel ran: one of 132 multiprocessors reads 100 %."""
    PROCESSES = 2
    """The driver's samples of single processes."""
    COUNTERS = 3
    """The card's own performance counters (GPM)."""


class Engines(msgspec.Struct, frozen=True):
    """What a card's performance counters (GPM) say, in percent since the last sample."""

    sm: int | None = None
    """Multiprocessors with work, on average."""
    tensor: int | None = None
    dram: int | None = None
    """Of the memory's bandwidth."""


class LoadSample(msgspec.Struct, frozen=True):
    """How busy and how hot a device is."""

    gpu_percent: int | None = None
    memory_percent: int | None = None
    temperature_c: int | None = None
    power_mw: int | None = None
    energy_mj: int | None = None
    """The card's own counter, a part's as well: of what it has drawn since its driver was loaded."""
    sm_clock_mhz: int | None = None
    activity_percent: int | None = None
    """The busiest of its engines since the last sample, by the best source that there is."""
    activity_source: ActivitySource = ActivitySource.UNKNOWN
    power_limit_mw: int | None = None
    engines: Engines | None = None
    """None: the device has no performance counters, or they were asked for the first time."""
    outdated: bool = False
    """Whether what it was when devices were looked for is not so any more."""


class RecoveryAction(enum.IntEnum):
    """What the driver asks an administrator to do (NVML field 230)."""

    NONE = 0
    RESET = 1
    REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4
    RECOVER_IMEX_DOMAIN = 5
    BUS_RESET = 6
    SYSTEM_REBOOT = 7

    @property
    def concerns_device(self) -> bool:
        """Whether the device itself can't be used until it is done. The IMEX domain is a matter of programs that span
        nodes: idle nodes have reported it for days with all of their links in order.
        """
        return self not in {RecoveryAction.NONE, RecoveryAction.RECOVER_IMEX_DOMAIN}


class HealthSample(msgspec.Struct, frozen=True):
    """What the device says of its own state."""

    recovery_action: RecoveryAction | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    uncorrected_errors: int | None = None
    """Double-bit memory errors since the driver was loaded."""
    memory_temperature_c: int | None = None
    clock_event_reasons: int | None = None
    margin_c: int | None = None
    """To the next temperature at which clocks are held down."""
    pcie_replays: int | None = None
    """Since the driver was loaded."""
    pcie_width: int | None = None
    """Lanes in use."""
    links_up: int | None = None
    """Links to other cards that are up; None where it has none."""
    fabric_state: int | None = None
    """Of its registration with the fabric: 0 not supported, 3 completed."""


class EventKind(enum.StrEnum):
    """What a driver reports by itself."""

    XID = "xid"
    UNAVAILABLE = "unavailable"
    """The device can't be reached any more."""
    ASK = "ask"
    """Something about its health has changed; a health sample says what."""


class DeviceEvent(msgspec.Struct, frozen=True):
    """Something that the driver reported."""

    uuid: str
    """Of the physical device; empty when the driver did not say."""
    xid: int = 0
    """0 unless it is an XID."""
    gpu_instance_id: int | None = None
    kind: EventKind = EventKind.XID
    pid: int | None = None
    """Whose program it was, where that is told."""
    from_log: bool = False
    """Read in the kernel's log, which tells the same XIDs as the driver, and others."""
    said: str = ""
    """What the log says of it beside, for people."""

    def __str__(self) -> str:
        what = f"XID {self.xid}" if self.kind is EventKind.XID else f"health event {self.kind!r}"
        return f"{what} ({self.said})" if self.said else what


class DriverInfo(msgspec.Struct, frozen=True):
    """Versions, for people. Of several kinds of devices, each word names its kind."""

    driver_version: str
    library_version: str
    cuda_version: tuple[int, int] | None = None
    """NVIDIA's only."""
