"""What an order of the coordinator changes: first fencing, then one reservation at a time.

Three numbers protect against orders that come too late. A lower `leader_epoch` than the highest obeyed comes from a
deposed coordinator: refused whole. A `session_epoch` that is not this connection's was meant for an earlier one:
refused whole. A lower `lease_epoch` than recorded concerns an earlier shape of the lease: refused per slice. Equal
numbers are repetitions, which are harmless.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from aliquot.agent.core.model import DEFAULT_GRACE_MS, Ending, Intent, Reservation, SliceSpec, StopOrder
from aliquot.agent.core.reservations import Book, order_run, order_stop
from aliquot.agent.core.samples import DeviceInfo

_FIXED = ("lease_id", "device_uuid", "share_milli", "memory_bytes", "member")
"""Where a slice is and how much it holds: another part is another slice. The terms around it may change."""


class Fence(msgspec.Struct, frozen=True):
    """What the agent obeys at the moment."""

    leader_epoch: int
    """The highest obeyed, over all connections and restarts."""
    session_epoch: int
    """Of the present connection."""


class Order(msgspec.Struct, frozen=True):
    """What the coordinator wants of one slice."""

    spec: SliceSpec
    stop: bool
    reason: str = ""


class Batch(msgspec.Struct, frozen=True):
    """One message of desired state."""

    leader_epoch: int
    session_epoch: int
    full: bool
    """True: a reservation that is not named is unknown to the coordinator."""
    orders: tuple[Order, ...] = ()
    settled: tuple[str, ...] = ()


class Refusal(msgspec.Struct, frozen=True):
    """What was not obeyed, and why. `slice_id` is empty where the whole batch was refused."""

    reason: str
    detail: str
    slice_id: str = ""


class Verdict(msgspec.Struct, frozen=True):
    """What to write down."""

    leader_epoch: int
    """To be made durable before anything of this batch is, when it has risen."""
    records: tuple[Reservation, ...] = ()
    """New or changed: made durable before they are acted on."""
    forgotten: tuple[str, ...] = ()
    """Settled endings."""
    repeats: tuple[str, ...] = ()
    """Slices to be reported again, although nothing changed."""
    refusals: tuple[Refusal, ...] = ()
    quarantined: tuple[str, ...] = ()
    """Of `records`: those that the coordinator's full list did not name."""


def judge(book: Book, fence: Fence, batch: Batch, devices: Mapping[str, DeviceInfo], now_ms: int) -> Verdict:
    """Decide what a batch changes. Pure: the book itself is left alone. `now_ms` is the monotonic clock."""
    # A coordinator that was replaced may still send; nothing of what it wants is looked at, whatever it is.
    refused = _fenced(fence, batch)
    if refused is not None:
        return Verdict(leader_epoch=fence.leader_epoch, refusals=(refused,))
    scratch = Book(book)
    records: list[Reservation] = []
    repeats: list[str] = []
    refusals: list[Refusal] = []
    # Stops come first: a new grant of the same lease in this batch must find the old slice marked as stopping.
    for order in sorted(batch.orders, key=lambda order: not order.stop):
        known = scratch.get(order.spec.slice_id)
        stale = _stale(scratch, known, order)
        if stale is not None:
            refusals.append(stale)
            continue
        changed = _stopped(known, order, batch, now_ms) if order.stop else _run(scratch, known, order, batch, devices)
        # Batches are repeated after every reconnection: what is so already costs no write, and is confirmed again.
        if changed == known:
            repeats.append(order.spec.slice_id)
            continue
        scratch.put(changed)
        records.append(changed)
    # A full batch names all the coordinator knows here. What it does not name is kept apart rather than stopped: books
    # that were restored from a backup would otherwise end what runs.
    quarantined = _unnamed(scratch, batch) if batch.full else []
    named = set(batch.settled)
    settled = [known.slice_id for known in book if not known.holds and known.slice_id in named]
    return Verdict(
        leader_epoch=batch.leader_epoch,
        records=(*records, *quarantined),
        forgotten=tuple(settled),
        repeats=tuple(repeats),
        refusals=tuple(refusals),
        quarantined=tuple(record.slice_id for record in quarantined),
    )


def _fenced(fence: Fence, batch: Batch) -> Refusal | None:
    if batch.leader_epoch < fence.leader_epoch:
        return Refusal(
            "STALE_LEADER",
            f"an order of leader epoch {batch.leader_epoch} came after one of {fence.leader_epoch}",
        )
    if batch.session_epoch != fence.session_epoch:
        return Refusal(
            "STALE_SESSION",
            f"an order for session {batch.session_epoch} came on session {fence.session_epoch}",
        )
    return None


def _stale(book: Book, known: Reservation | None, order: Order) -> Refusal | None:
    epoch = order.spec.lease_epoch
    if known is not None:
        if epoch < known.spec.lease_epoch:
            detail = f"lease epoch {epoch} is older than the recorded {known.spec.lease_epoch}"
            return Refusal("STALE_LEASE", detail, order.spec.slice_id)
        changed = [name for name in _FIXED if getattr(known.spec, name) != getattr(order.spec, name)]
        if known.holds and not order.stop and changed:
            detail = f"a slice's {', '.join(changed)} can't change while it lives; grant another slice"
            return Refusal("SLICE_CHANGED", detail, order.spec.slice_id)
        return None
    if order.stop:
        return None
    # A slice of an earlier grant must not start beside one of a later grant; it may still be stopped.
    newest = max((record.spec.lease_epoch for record in book.of_lease(order.spec.lease_id)), default=0)
    if epoch < newest:
        detail = f"lease {order.spec.lease_id} is at epoch {newest}; a slice of epoch {epoch} is too late"
        return Refusal("STALE_LEASE", detail, order.spec.slice_id)
    return None


def _stopped(known: Reservation | None, order: Order, batch: Batch, now_ms: int) -> Reservation:
    if known is None:
        return Reservation(
            spec=order.spec,
            intent=Intent.ENDED,
            leader_epoch=batch.leader_epoch,
            ending=Ending.GONE,
            detail="this node holds nothing for it",
        )
    stop = StopOrder(now_ms, order.spec.grace_ms or DEFAULT_GRACE_MS, order.reason)
    return order_stop(known, stop, batch.leader_epoch)


def _run(
    book: Book, known: Reservation | None, order: Order, batch: Batch, devices: Mapping[str, DeviceInfo]
) -> Reservation:
    fresh = Reservation(spec=order.spec, leader_epoch=batch.leader_epoch)
    if known is None:
        return _admit(book, fresh, devices)
    if known.holds:
        known = msgspec.structs.replace(known, spec=order.spec)
    return order_run(known, batch.leader_epoch)


def _admit(book: Book, fresh: Reservation, devices: Mapping[str, DeviceInfo]) -> Reservation:
    """Check again what the coordinator has calculated: no device is reserved beyond what it has."""
    spec = fresh.spec
    device = devices.get(spec.device_uuid)
    if device is None:
        return _failed(fresh, "DEVICE_UNKNOWN", f"this node has no device {spec.device_uuid}")
    if spec.memory_bytes <= 0 or not 0 < spec.share_milli <= 1000:
        return _failed(
            fresh, "INVALID_SLICE", f"{spec.share_milli}/1000, {spec.memory_bytes} bytes is not a part of a device"
        )
    if spec.lender:
        return _admit_on(book, fresh, device)
    load = book.load_of(spec.device_uuid)
    if load.share_milli + spec.share_milli > 1000:
        detail = f"{load.share_milli}/1000 of {spec.device_uuid} is taken, no room for {spec.share_milli}"
        return _failed(fresh, "OVERCOMMITTED", detail)
    if load.memory_bytes + spec.memory_bytes > device.leasable_bytes:
        free = device.leasable_bytes - load.memory_bytes
        detail = f"{spec.device_uuid} has {free} bytes free here, not {spec.memory_bytes}"
        return _failed(fresh, "OVERCOMMITTED", detail)
    return fresh


def _admit_on(book: Book, fresh: Reservation, device: DeviceInfo) -> Reservation:
    """The same for a slice that uses another one's share, and perhaps its memory."""
    spec = fresh.spec
    lender = next((record for record in book.on_device(spec.device_uuid) if record.slice_id == spec.lender), None)
    if lender is None:
        return _failed(fresh, "OVERCOMMITTED", f"{spec.lender}, whose share it is to use, is not on {spec.device_uuid}")
    share_milli, memory_bytes = book.left_of(lender)
    if not spec.lender_memory:
        memory_bytes = device.leasable_bytes - book.load_of(spec.device_uuid).memory_bytes
    if spec.share_milli > share_milli or spec.memory_bytes > memory_bytes:
        detail = f"{share_milli}/1000 and {memory_bytes} bytes are left for it on {spec.lender}"
        return _failed(fresh, "OVERCOMMITTED", detail)
    return fresh


def _failed(fresh: Reservation, reason: str, detail: str) -> Reservation:
    return msgspec.structs.replace(fresh, intent=Intent.ENDED, ending=Ending.FAILED, reason=reason, detail=detail)


def _unnamed(book: Book, batch: Batch) -> list[Reservation]:
    named = {order.spec.slice_id for order in batch.orders}
    return [
        msgspec.structs.replace(record, quarantined=True)
        for record in book.holding()
        if record.slice_id not in named and not record.quarantined
    ]
