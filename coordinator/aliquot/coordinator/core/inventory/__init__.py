"""The pool's books and the arrays that placement scans."""

from aliquot.coordinator.core.inventory.inventory import Inventory
from aliquot.coordinator.core.inventory.records import DeviceClass, DeviceView, InventoryError, NodeRecord, Totals
from aliquot.coordinator.core.inventory.table import DeviceTable

__all__ = [
    "DeviceClass",
    "DeviceTable",
    "DeviceView",
    "Inventory",
    "InventoryError",
    "NodeRecord",
    "Totals",
]
