"""Everything of an inventory that facts determine, to compare two by."""

from __future__ import annotations

from typing import Any

from aliquot.coordinator.core.inventory import Inventory


def canonical(inventory: Inventory) -> tuple[Any, ...]:
    """What there is and what is held, in an order that does not depend on history."""
    nodes = sorted((inventory.node(node_id) for node_id in inventory.node_ids()), key=lambda node: node.spec.node_id)
    return tuple(
        (
            node.spec.node_id,
            node.spec,
            node.grantable,
            node.cpu_used_milli,
            node.host_memory_used_bytes,
            tuple(sorted(node.groups.items())),
            tuple(
                sorted(
                    (
                        d.spec.uuid,
                        d.share_used_milli,
                        d.memory_used_bytes,
                        d.slices,
                        d.foreign_bytes,
                        d.healthy,
                        d.present,
                        d.withheld_for,
                        d.admits,
                    )
                    for d in node.devices
                )
            ),
        )
        for node in nodes
    )
