"""Holds: capacity kept for a named waiting request until a stated time.

A hold keeps *devices*: while it stands, nothing else is placed on those it names, and what is freed there stays for
its owner. It is made together with a preemption, or for the first request in line when that has waited for long; it
ends with the grant it was made for, by its expiry, or by being broken (a device of it was lost).
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping

import msgspec

from aliquot.coordinator.core.books.leases.records import Lease, lease_id_of
from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.core.values.types import Demand, Placement


class HoldKind(enum.StrEnum):
    """Why capacity is kept."""

    PREEMPTION = "preemption"
    """Victims are leaving; their capacity goes to the preemptor."""
    RESERVATION = "reservation"
    """The head of the line waits for running leases to end by themselves."""


class Hold(msgspec.Struct, frozen=True):
    """See the module's docstring."""

    owner: str
    """The lease it is for."""
    kind: HoldKind
    placement: Placement
    """What the owner will be granted."""
    created_ms: int
    expires_ms: int
    victims: tuple[str, ...] = ()
    start_ms: int = 0
    """When it should be complete; 0: not known. Short leases may use its devices until then."""
    shed: tuple[str, ...] = ()
    """Slices of elastic leases that are given back for it."""

    @property
    def device_uuids(self) -> tuple[str, ...]:
        """The devices that are kept, each once."""
        return tuple(dict.fromkeys(plan.device_uuid for member in self.placement.members for plan in member))


# --------------------
# What has happened to holds.


class HoldCreated(Fact, frozen=True, tag="hold"):
    """These devices are kept for the owner until `expires_ms`."""

    owner: str
    kind: HoldKind
    placement: Placement
    expires_ms: int
    victims: tuple[str, ...] = ()
    start_ms: int = 0
    shed: tuple[str, ...] = ()


class HoldReleased(Fact, frozen=True, tag="hold-"):
    """The hold is over: its owner no longer needs it, or its time is up."""

    owner: str
    reason: str = ""


class HoldBroken(Fact, frozen=True, tag="holdx"):
    """The hold can't be kept: a device of it was lost."""

    owner: str
    reason: str


# --------------------
# Preemptions and reprieves.


class PreemptionStarted(Fact, frozen=True, tag="preempt"):
    """Victims were chosen for a lease. Their ends (`LeaseReleasing`) and the hold are facts of the same group."""

    preemptor: str
    victims: tuple[str, ...]
    deadline_ms: int
    reclaim: bool
    """True: a guarantee is being reclaimed from borrowers; False: by priority."""
    kept: int = 3
    """How many of a victim's preemption times are remembered."""


class LeaseReprieved(Fact, frozen=True, tag="reprieve"):
    """A victim that had not given up anything yet goes on: nobody needs its capacity any more."""

    lease_id: str
    reason: str = ""


# --------------------
# Whether a hold can be granted now, or ever.


def is_complete(leases: Mapping[str, Lease], inventory: Inventory, hold: Hold) -> bool:
    """Whether everything the hold is for could be granted this moment."""
    members = Counter(hold.placement.node_ids)
    for uuid, (share_milli, memory_bytes) in hold.placement.by_device().items():
        if not inventory.has_device(uuid):
            return False
        device = inventory.device_record(uuid)
        if not device.works or not device.has_room(share_milli, memory_bytes):
            return False
    lease = leases.get(hold.owner)
    demand = lease.request.demand if lease is not None else Demand()
    return all(
        inventory.has_node(node_id)
        and inventory.node(node_id).grantable
        and inventory.node(node_id).may_take(demand, count)
        for node_id, count in members.items()
    )


def can_complete(leases: Mapping[str, Lease], inventory: Inventory, hold: Hold) -> bool:
    """Whether it may still become complete: its devices and nodes are there, well, and open."""
    for uuid in hold.device_uuids:
        if not inventory.has_device(uuid):
            return False
        device = inventory.device_record(uuid)
        if not device.works or not inventory.node(device.node_id).grantable:
            return False
    if hold.kind is HoldKind.RESERVATION:
        return True
    return all(
        lease_id not in leases or leases[lease_id].ending or leases[lease_id].waiting for lease_id in hold.victims
    ) and all(_gives_way(leases, slice_id) for slice_id in hold.shed)


def _gives_way(leases: Mapping[str, Lease], slice_id: str) -> bool:
    """Whether a slice of an elastic lease is gone, or on its way out."""
    lease = leases.get(lease_id_of(slice_id))
    piece = lease.find(slice_id) if lease is not None else None
    return piece is None or piece.ending
