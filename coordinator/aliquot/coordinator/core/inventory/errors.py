"""The one error of the inventory, apart so that every module of the package can raise it."""

from __future__ import annotations


class InventoryError(ValueError):
    """A mutation that would make the books wrong: an unknown device, a UUID on two nodes, more held than there is.

    It always means that the caller's facts contradict the inventory; nothing has been changed when it is raised.
    """
