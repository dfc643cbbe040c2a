"""Which cards of a node a sign covers, and which devices and slices are on them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from aliquot.common.signs import Remedy, Scope
from aliquot.coordinator.core.books.health.records import Sign
from aliquot.coordinator.core.books.leases.records import Lease, Slice, lease_id_of
from aliquot.coordinator.core.values.types import UNKNOWN, DeviceSpec, NodeSpec


def unit_of(device: DeviceSpec) -> str:
    """The card that a device is, or is a part of."""
    return device.parent_uuid or device.uuid


def cards_of(spec: NodeSpec) -> dict[str, DeviceSpec | None]:
    """The cards of a node, in order, with one of their devices where they have any."""
    found: dict[str, DeviceSpec | None] = {}
    for device in spec.devices:
        found.setdefault(unit_of(device), device)
    for card in spec.cards:
        found.setdefault(card.uuid, None)
    return found


def classes_of(spec: NodeSpec) -> Iterator[tuple[str, str]]:
    """The (pool, model) of each card that has devices."""
    for device in cards_of(spec).values():
        if device is not None:
            yield spec.pool, device.model


def units_of(spec: NodeSpec, device: DeviceSpec, sign: Sign) -> tuple[str, ...]:
    """What a sign on a device takes out of service. A whole node only where its agent can do something about it:
    without that, the other cards would be lost for nothing.
    """
    scope = sign.scope
    if scope is Scope.NODE and sign.remedy is Remedy.REBOOT and "reboot" not in spec.remedies:
        scope = Scope.CARD
    if scope is Scope.DEVICE:
        return (device.uuid,)
    if scope is Scope.NODE:
        return tuple(cards_of(spec))
    if scope is Scope.ISLAND and device.nvlink_island != UNKNOWN:
        found = {unit_of(other): None for other in spec.devices if other.nvlink_island == device.nvlink_island}
        return tuple(found)
    return (unit_of(device),)


def devices_on(spec: NodeSpec, units: Collection[str]) -> list[DeviceSpec]:
    """The devices of a node that are these units, or parts of them."""
    wanted = set(units)
    return [device for device in spec.devices if device.uuid in wanted or device.parent_uuid in wanted]


def leases_on(
    leases: Mapping[str, Lease], slice_ids: Collection[str], devices: Collection[str]
) -> dict[str, list[Slice]]:
    """The slices on these devices that hold something, by lease."""
    found: dict[str, list[Slice]] = {}
    for slice_id in slice_ids:
        lease_id = lease_id_of(slice_id)
        piece = leases[lease_id].find(slice_id)
        if piece is not None and piece.plan.device_uuid in devices:
            found.setdefault(lease_id, []).append(piece)
    return found
