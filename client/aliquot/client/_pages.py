"""Lists that come page by page, each as data: one way to ask for them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from aliquot.client._from_proto import device_of, lease_of, node_of
from aliquot.client._methods import LEASES, POOL, Method

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A list: its call, the field of the answer that its items are in, and what each of them becomes."""

    method: Method[Any, Any]
    field: str
    read: Callable[[Any], T]
    size: int = 0
    """Of a page; 0: as the coordinator likes."""


PAGE_SIZE = 100
"""Of a page that is asked for alone."""
LEASE_PAGES = Listing(LEASES["List"], "leases", lease_of, 500)
NODE_PAGES = Listing(POOL["ListNodes"], "nodes", node_of, 200)
DEVICE_PAGES = Listing(POOL["ListDevices"], "devices", device_of, 500)
