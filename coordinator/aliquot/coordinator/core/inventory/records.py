"""What is known of each node and device: the exact books, in Python integers.

The arrays that policies scan (`table.py`) mirror these records; where the two could differ, the records are the truth.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from aliquot.common.catalog import WHOLE_ONLY
from aliquot.coordinator.core.values.types import UNKNOWN, WHOLE_SHARE_MILLI, Admits, Demand, DeviceSpec, NodeSpec

# --------------------
# The one error of the inventory, apart so that every module of the package can raise it.


class InventoryError(ValueError):
    """A mutation that would make the books wrong: an unknown device, a UUID on two nodes, more held than there is.

    It always means that the caller's facts contradict the inventory; nothing has been changed when it is raised.
    """


CPU_UNLIMITED = 1 << 30
HOST_MEMORY_UNLIMITED = 1 << 50
"""Stands for memory that a node does not report: fits everything, and scores made of it stay in 64 bits."""

MIB = 1 << 20

FOREIGN_TOLERANCE_DIVISOR = 16
"""A device whose foreign processes hold more than 1/16 of its leasable memory serves only requests that state
their memory: giving "half of the device" out of what happens to be left would be a surprise."""

DOMAIN_LABEL = "topology.aliquot.dev/domain"


class DeviceClass(NamedTuple):
    """Devices that are interchangeable for a request: the unit in which `explain` speaks."""

    vendor: str
    model: str
    leasable_bytes: int
    mig_profile: str
    compute_milli: int = WHOLE_SHARE_MILLI
    whole_only: bool = False
    """No parts of it are leased."""

    @property
    def label(self) -> str:
        """`A100-80 (79.3Gi)`, with the MIG profile where there is one."""
        model = f"{self.model} {self.mig_profile}" if self.mig_profile else self.model
        return f"{model} ({self.leasable_bytes / (1 << 30):.1f}Gi)"

    def size_of(self, demand: Demand, foreign_bytes: int = 0) -> tuple[int, int]:
        """(share_milli, memory_bytes) of one slice of `demand` on an idle device of this class, suitable or not.

        A whole device takes all leasable memory; part of one takes its part, rounded down to a MiB so that the parts of
        a device never exceed it; a demand that states only memory takes the share that goes with it, rounded up. MIG
        instances are leased whole.
        """
        left = self.leasable_bytes - foreign_bytes
        if self.mig_profile:
            return self.compute_milli, left
        return resolve_slice(demand.share_milli, demand.memory_bytes, self.leasable_bytes, left)

    def slice_of(self, shape: Demand, foreign_bytes: int = 0) -> tuple[int, int] | None:
        """What one slice of `shape` takes of an idle device of this class, of which processes outside any lease hold
        some memory: (share_milli, memory_bytes); None where it never fits. *The* rule of what suits what.
        """
        if self.leasable_bytes <= 0:
            return None
        if self.mig_profile != shape.mig_profile and (self.model, self.mig_profile) not in shape.instances:
            return None
        if (shape.models and self.model not in shape.models[0]) or (shape.vendor and self.vendor != shape.vendor):
            return None
        if not self.mig_profile and self.whole_only and asks_for_part(shape):
            return None
        if foreign_bytes * FOREIGN_TOLERANCE_DIVISOR > self.leasable_bytes and not shape.memory_bytes:
            return None
        share, memory = self.size_of(shape, foreign_bytes)
        if self.mig_profile:
            whole = shape.share_milli in (0, WHOLE_SHARE_MILLI)  # 1000 means the whole instance
            fits = shape.memory_bytes <= memory and (whole or shape.share_milli <= share)
        else:
            fits = share <= WHOLE_SHARE_MILLI and memory <= self.leasable_bytes - foreign_bytes
        return (share, memory) if fits else None


def asks_for_part(demand: Demand) -> bool:
    """Whether it asks for a part of a device, by share or memory."""
    if demand.mig_profile or not demand.count:
        return False
    return 0 < demand.share_milli < WHOLE_SHARE_MILLI or (not demand.share_milli and demand.memory_bytes > 0)


def device_class_of(spec: DeviceSpec) -> DeviceClass:
    """The class of one device."""
    whole_only = spec.whole_only or spec.vendor in WHOLE_ONLY
    return DeviceClass(spec.vendor, spec.model, spec.leasable_bytes, spec.mig_profile, spec.compute_milli, whole_only)


def resolve_slice(share_milli: int, memory_bytes: int, leasable_bytes: int, base_bytes: int) -> tuple[int, int]:
    """(share_milli, memory_bytes) of a slice; `base_bytes` is what a share is a share of."""
    share = share_milli
    if not share:
        share = max(1, -(-memory_bytes * WHOLE_SHARE_MILLI // leasable_bytes)) if memory_bytes else WHOLE_SHARE_MILLI
    if memory_bytes:
        return share, memory_bytes
    if share == WHOLE_SHARE_MILLI:
        return share, base_bytes
    return share, base_bytes * share // WHOLE_SHARE_MILLI // MIB * MIB


def domain_of(spec: NodeSpec) -> str:
    """The failure domain of a node: its label where it has one, else its declared domain."""
    for key, value in spec.labels:
        if key == DOMAIN_LABEL:
            return value
    return spec.failure_domain


@dataclass(slots=True)
class DeviceRecord:
    """The books of one device. `row`, `col` say where the arrays mirror it."""

    spec: DeviceSpec
    node_id: str
    class_id: int
    device_class: DeviceClass
    tier: int = UNKNOWN
    """Strongest enforcement tier that every device of its row gives; unknown: any, and checked when confirmed."""
    row: int = -1
    col: int = -1
    share_used_milli: int = 0
    memory_used_bytes: int = 0
    slices: int = 0
    foreign_bytes: int = 0
    healthy: bool = True
    present: bool = True
    """False once its node was described without it while slices were still on it; it goes with the last of them."""
    withheld_for: str = ""
    """Who waits for this device to drain: nobody else is placed on it. Empty: nobody."""
    admits: Admits = Admits.ALL
    """Where that is not all, whoever may be placed on it has it opened on trial first."""

    @property
    def works(self) -> bool:
        """Whether anything may be placed on it at all: it is there and well."""
        return self.healthy and self.present

    def gives(self, min_tier: int) -> bool:
        """Whether it is there and well, and its agent may be able to enforce limits by that tier."""
        return self.works and (self.tier == UNKNOWN or self.tier >= min_tier)

    def slice_for(self, shape: Demand) -> tuple[int, int] | None:
        """(share_milli, memory_bytes) of one slice of `shape` on this device, were nothing held of it; None where it
        can't be had: sick, vanished, another sort of device, too small, too weak a tier, too full of foreign memory.

        With `has_room` the one answer to whether a slice fits a device. Who the device is kept for, and what it admits,
        is not asked.
        """
        return self.device_class.slice_of(shape, self.foreign_bytes) if self.gives(shape.min_tier) else None

    def has_room(self, share_milli: int, memory_bytes: int) -> bool:
        """Whether so much is left of it, whoever it is kept for."""
        return self.share_used_milli + share_milli <= self.spec.compute_milli and memory_bytes <= self.memory_left_bytes

    @property
    def share_left_milli(self) -> int:
        """Share that a new slice could take: nothing of a sick, vanished, withheld or restricted device."""
        if self.healthy and self.present and not self.withheld_for and not self.admits:
            return self.spec.compute_milli - self.share_used_milli
        return 0

    @property
    def memory_left_bytes(self) -> int:
        """Memory that a new slice could take; negative where foreign processes grew over what is leased."""
        return self.spec.leasable_bytes - self.foreign_bytes - self.memory_used_bytes

    def view(self, node: NodeRecord) -> DeviceView:
        """What readers may see of it."""
        return DeviceView(
            uuid=self.spec.uuid,
            node_id=self.node_id,
            model=self.spec.model,
            mig_profile=self.spec.mig_profile,
            pool=node.spec.pool,
            compute_milli=self.spec.compute_milli,
            share_used_milli=self.share_used_milli,
            memory_used_bytes=self.memory_used_bytes,
            leasable_bytes=self.spec.leasable_bytes,
            foreign_bytes=self.foreign_bytes,
            slices=self.slices,
            healthy=self.healthy,
            present=self.present,
            grantable=node.grantable,
            withheld_for=self.withheld_for,
        )

    @property
    def proportional_base_bytes(self) -> int:
        """What a share is a share of; -1 where foreign processes hold too much for "proportional" to mean anything."""
        leasable = self.spec.leasable_bytes
        if self.foreign_bytes * FOREIGN_TOLERANCE_DIVISOR > leasable:
            return -1
        return leasable - self.foreign_bytes


@dataclass(slots=True)
class NodeRecord:
    """The books of one node."""

    spec: NodeSpec
    rank: int
    devices: list[DeviceRecord]
    """Ordered by class and index, as the rows are; vanished devices that still carry slices included."""
    first_row: int = -1
    row_count: int = 0
    grantable: bool = False
    cpu_used_milli: int = 0
    host_memory_used_bytes: int = 0
    groups: dict[str, int] = field(default_factory=dict)

    @property
    def open(self) -> bool:
        """May anything be placed here? Not while every device drains for somebody: CPU is kept for them too."""
        if not self.grantable:
            return False
        return not self.devices or not all(device.withheld_for for device in self.devices)

    @property
    def cpu_left_milli(self) -> int:
        """CPU that a new member could take."""
        if self.spec.cpu_milli == UNKNOWN:
            return CPU_UNLIMITED
        return self.spec.cpu_milli - self.cpu_used_milli

    @property
    def host_memory_left_bytes(self) -> int:
        """Host memory that a new member could take."""
        if self.spec.host_memory_bytes == UNKNOWN:
            return HOST_MEMORY_UNLIMITED
        return self.spec.host_memory_bytes - self.host_memory_used_bytes

    def has_room(self, demand: Demand, members: int = 1) -> bool:
        """Whether its CPU and host memory are enough for so many members more."""
        return (
            demand.cpu_milli * members <= self.cpu_left_milli
            and demand.host_memory_bytes * members <= self.host_memory_left_bytes
        )

    def may_take(self, demand: Demand, members: int = 1) -> bool:
        """Whether so many members more would be within what the host has left, and what their group may have here."""
        of_group = self.groups.get(demand.affinity_group, 0) + members
        return self.has_room(demand, members) and not 0 < demand.max_per_node < of_group


@dataclass(slots=True, frozen=True)
class DeviceView:
    """What readers (List, Explain, metrics) may see of one device."""

    uuid: str
    node_id: str
    model: str
    mig_profile: str
    pool: str
    compute_milli: int
    share_used_milli: int
    memory_used_bytes: int
    leasable_bytes: int
    foreign_bytes: int
    slices: int
    healthy: bool
    present: bool
    grantable: bool
    withheld_for: str


@dataclass(slots=True)
class Totals:
    """Capacity and use of one (pool, model), kept incrementally."""

    devices: int = 0
    share_capacity_milli: int = 0
    share_used_milli: int = 0
    memory_capacity_bytes: int = 0
    memory_used_bytes: int = 0
