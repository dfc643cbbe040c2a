"""Lists that come page by page, each as data: one way to ask for them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from aliquot.client._flow import Context, Flow, send
from aliquot.client._from_proto import device_of, lease_of, node_of
from aliquot.client._methods import LEASES, POOL, Method
from aliquot.client._values.base import Page

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """A list: its call, the field of the answer that its items are in, and what each of them becomes."""

    method: Method[Any, Any]
    field: str
    read: Callable[[Any], T]
    size: int = 0
    """Of a page; 0: as the coordinator likes."""


LEASE_PAGES = Listing(LEASES["List"], "leases", lease_of, 500)
NODE_PAGES = Listing(POOL["ListNodes"], "nodes", node_of, 200)
DEVICE_PAGES = Listing(POOL["ListDevices"], "devices", device_of, 500)


def page(
    context: Context,
    listing: Listing[T],
    timeout_s: float,
    token: str = "",
    size: int = 0,
    **fields: Any,  # noqa: ANN401 - of the listing's call
) -> Flow[Page[T]]:
    """One page, of the items that these fields of the call choose."""
    answer = yield from send(
        context, listing.method, timeout_s, page_token=token, page_size=size or listing.size, **fields
    )
    items = tuple(map(listing.read, getattr(answer, listing.field)))
    return Page(items, answer.next_page_token, getattr(answer, "seq", 0))


def pages(context: Context, listing: Listing[T], timeout_s: float, **fields: Any) -> Flow[Page[T]]:  # noqa: ANN401
    """All pages as one, with the sequence number of the first: a watch from there misses nothing."""
    first = last = yield from page(context, listing, timeout_s, **fields)
    items = list(first.items)
    while last.next_token:
        last = yield from page(context, listing, timeout_s, last.next_token, **fields)
        items += last.items
    return Page(tuple(items), "", first.seq)
