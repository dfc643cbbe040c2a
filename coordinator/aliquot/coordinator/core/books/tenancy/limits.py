"""Does a grant stay within every limit, and does a guarantee cover it? The same for grants, victims and Explain.

Limits are hard: no grant ever passes one. A guarantee holds as far as the pool can give it: when the usable
capacity is less than all guarantees, every guarantee shrinks in the same proportion, and an alert says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from aliquot.common.catalog import covers, kind_of, vendor_of
from aliquot.coordinator.core.books.tenancy.accounts import Account, Chain
from aliquot.coordinator.core.books.tenancy.in_force import OUTSIDE, most_of
from aliquot.coordinator.core.books.tenancy.ranking import Part, Sums
from aliquot.coordinator.core.books.tenancy.specs import ROOT, Amount, ModelQuota, Quota
from aliquot.coordinator.core.books.tenancy.tenancy import Tenancy
from aliquot.coordinator.core.books.tenancy.timetable import wall_text
from aliquot.coordinator.core.inventory import Inventory
from aliquot.coordinator.core.placement.matching import Match, either
from aliquot.coordinator.core.values.types import Demand, Placement

MILLIONTHS = 1_000_000


@dataclass(frozen=True, slots=True)
class OverLimit:
    """A limit that a grant would pass."""

    subject: str
    """`tenant vision` or `queue training`."""
    detail: str
    for_ever: bool = False
    """True where the request alone is above the limit."""
    model: str = ""
    """The kind of devices whose limit it is; empty: of all together."""
    until_ms: int = 0
    """When it ends by itself; 0: not by the clock alone."""
    next_ms: int = 0
    """When a window of the quota opens or closes, and what is held now no longer keeps it back; 0: not known."""


def over_limit(chain: Chain, parts: Iterable[Part]) -> OverLimit | None:
    """The first limit of the chain that slices like these would pass, or None."""
    if not chain.limited:
        return None
    parts = list(parts)
    for account in chain.limited:
        found = _over(account, parts)
        if found is not None:
            return found
    return None


def _over(account: Account, parts: list[Part]) -> OverLimit | None:
    quota = account.quota
    share, memory = sum(part[1] for part in parts), sum(part[2] for part in parts)
    held_now = (account.share_milli, account.memory_bytes)
    found = _compare(account.label, "", quota.limit, held_now, (share, memory))
    if found is not None:
        return _at_this_time(found, account, (share, memory))
    for of_model in quota.models:
        wanted = parts_of_kind(parts, of_model.model)
        if wanted:
            share, memory = sum(part[1] for part in wanted), sum(part[2] for part in wanted)
            held = held_of_kind(account, of_model.model)
            found = _compare(account.label, of_model.model, of_model.limit, held, (share, memory))
            if found is not None:
                return _at_this_time(found, account, (share, memory))
    return None


def _at_this_time(over: OverLimit, account: Account, more: tuple[int, int]) -> OverLimit:
    """The same, with what windows of the quota have to do with it."""
    ruling = account.in_force
    if ruling is None:
        return over
    most = [most_of(account.declared, over.model, memory=memory) for memory in (False, True)]
    for_ever = any(0 <= limit < amount for limit, amount in zip(most, more, strict=True))
    return replace(
        over, detail=f"{over.detail} ({_ruling(account)})", for_ever=for_ever, next_ms=_opens_ms(account, over, more)
    )


def _ruling(account: Account) -> str:
    """Which window has put a limit in force, and until when: on the wall of its zone."""
    ruling, windows = account.in_force, account.declared.windows
    assert ruling is not None
    window = windows[ruling.window].when if ruling.window != OUTSIDE else ""
    said = f"window `{window}`" if window else "outside of its windows"
    if not ruling.until_ms:
        return f"{said}, always"
    nearest = windows[ruling.window if ruling.window != OUTSIDE else max(ruling.following, 0)]
    return f"{said}, until {wall_text(nearest.when, ruling.until_ms)}"


def _opens_ms(account: Account, over: OverLimit, more: tuple[int, int]) -> int:
    """When the next window opens or closes, where that alone lets so much more be held; else 0."""
    ruling = account.in_force
    if ruling is None or not ruling.until_ms or ruling.unknown:
        return 0
    quota = account.declared.under(ruling.following)
    limits = [quota.limit] if not over.model else [of.limit for of in quota.models if of.model == over.model]
    held = held_of_kind(account, over.model)
    fits = all(
        not 0 <= limit.share_milli < held[0] + more[0] and not 0 <= limit.memory_bytes < held[1] + more[1]
        for limit in limits
    )
    return ruling.until_ms if fits else 0


def parts_of_kind(parts: Iterable[Part], kind: str) -> list[Part]:
    """Those that count as this kind of devices; all of them where it is empty."""
    return [part for part in parts if not kind or covers(kind, part[0])]


def held_of_kind(account: Account, kind: str) -> tuple[int, int]:
    """(share_milli, memory_bytes) that an account holds of a kind of devices; of all where it is empty."""
    if not kind:
        return account.share_milli, account.memory_bytes
    held = [row for model, row in account.by_model.items() if covers(kind, model)]
    return sum(row[0] for row in held), sum(row[1] for row in held)


def _compare(label: str, model: str, limit: Amount, held: tuple[int, int], more: tuple[int, int]) -> OverLimit | None:
    (held_share, held_memory), (share, memory) = held, more
    what = f" of {model}" if model else ""
    if 0 <= limit.share_milli < held_share + share:
        detail = (
            f"{label} holds {held_share / 1000:g} devices{what} and may hold {limit.share_milli / 1000:g}; "
            f"{share / 1000:g} more were asked for"
        )
        return OverLimit(label, detail, share > limit.share_milli, model)
    if 0 <= limit.memory_bytes < held_memory + memory:
        detail = (
            f"{label} holds {held_memory >> 20} MiB{what} and may hold {limit.memory_bytes >> 20} MiB; "
            f"{memory >> 20} MiB more were asked for"
        )
        return OverLimit(label, detail, memory > limit.memory_bytes, model)
    return None


def covered(quota: Quota, held: Sequence[Account | Sums], parts: Sequence[Part], scale: int) -> bool:
    """Whether what is held, with these slices more, is still within a guarantee (scaled, in millionths)."""
    share = memory = 0
    for part in parts:
        share, memory = share + part[1], memory + part[2]
    all_share, all_memory = share, memory
    for sums in held:
        all_share, all_memory = all_share + sums.share_milli, all_memory + sums.memory_bytes
    if _within(quota.guaranteed, all_share, all_memory, scale):
        return True
    if not quota.models:
        return False
    models = {part[0] for part in parts}
    covering = [of_model for of_model in quota.models if _covers_kind(of_model, held, parts, scale)]
    return bool(models) and all(any(covers(each.model, model) for each in covering) for model in models)


def _covers_kind(of_model: ModelQuota, held: Sequence[Account | Sums], parts: Sequence[Part], scale: int) -> bool:
    """Whether what is held of its kind, with these slices more, is still within its guarantee."""
    wanted = parts_of_kind(parts, of_model.model)
    share, memory = sum(part[1] for part in wanted), sum(part[2] for part in wanted)
    for sums in held:
        if isinstance(sums, Sums):
            row = sums.by_model.get(of_model.model, (0, 0))
            share, memory = share + row[0], memory + row[1]
        else:
            more = held_of_kind(sums, of_model.model)
            share, memory = share + more[0], memory + more[1]
    return bool(wanted) and _within(of_model.guaranteed, share, memory, scale)


def _within(guaranteed: Amount, share: int, memory: int, scale: int) -> bool:
    """Share or memory without a guarantee of its own is not bounded by that of the other."""
    if not guaranteed:
        return False
    if guaranteed.share_milli and share > guaranteed.share_milli * scale // MILLIONTHS:
        return False
    return not guaranteed.memory_bytes or memory <= guaranteed.memory_bytes * scale // MILLIONTHS


def entitled(chain: Chain, parts: Iterable[Part], scale: int) -> bool:
    """Whether some guarantee covers a grant of these slices."""
    if not chain.guaranteed:
        return False
    parts = list(parts)
    return any(covered(account.quota, (account,), parts, scale) for account in chain.guaranteed)


def promised(tenancy: Tenancy) -> Amount:
    """Everything that is guaranteed now: to tenants, and to the queues below the root."""
    total = Amount()
    for name in tenancy.tenants:
        total = total.plus(guaranteed_of(tenancy.quota_of("t", name)))
    for name, queue in tenancy.queues.items():
        if queue.spec.parent == ROOT and name != ROOT:
            total = total.plus(guaranteed_of(tenancy.quota_of("q", name)))
    return total


def bound_above(tenancy: Tenancy, tenant: str) -> str:
    """The nearest tenant above this one whose declaration holds it back, beyond a limit; empty: none does.

    A limit is on all that is below, too. A budget and offences are counted for the tenant that they are of, and not for
    those above it. So what is below such a tenant must be declared by somebody who is not held back themselves, or it
    would be a way around them.
    """
    above = tenant
    while "/" in above:
        above = above.rpartition("/")[0]
        declared = tenancy.tenants.get(above)
        if declared is not None and (declared.spec.budget or declared.spec.on_over_limit is not None):
            return above
    return ""


def guaranteed_of(quota: Quota) -> Amount:
    """What a quota that is in force guarantees in all."""
    return guaranteed_in_all(quota.guaranteed, quota.models)


def guaranteed_in_all(guaranteed: Amount, models: Sequence[ModelQuota]) -> Amount:
    """A quota's guarantee: its total, or the sum over models where that is more."""
    share = sum(model.guaranteed.share_milli for model in models)
    memory = sum(model.guaranteed.memory_bytes for model in models)
    return Amount(max(guaranteed.share_milli, share), max(guaranteed.memory_bytes, memory))


def capacity_kept(inventory: Inventory, node_ids: Iterable[str]) -> Amount:
    """What promises rest on: the devices that are well, of these nodes."""
    share = memory = 0
    for node_id in node_ids:
        for device in inventory.node(node_id).devices:
            if device.healthy and device.present:
                share += device.spec.compute_milli
                memory += device.spec.leasable_bytes
    return Amount(share, memory)


def scale_of(promise: Amount, usable: Amount) -> int:
    """In millionths, how much of every promise the pool can keep."""
    scale = MILLIONTHS
    if promise.share_milli > usable.share_milli:
        scale = min(scale, usable.share_milli * MILLIONTHS // promise.share_milli)
    if promise.memory_bytes > usable.memory_bytes:
        scale = min(scale, usable.memory_bytes * MILLIONTHS // promise.memory_bytes)
    return scale


def parts_of_placement(inventory: Inventory, placement: Placement) -> list[Part]:
    """What a placement holds, as accounts count it."""
    device = inventory.device_record
    return [
        (kind_of(spec.model, spec.vendor), plan.share_milli, plan.memory_bytes)
        for member in placement.members
        for plan in member
        for spec in (device(plan.device_uuid).spec,)
    ]


def least_parts(inventory: Inventory, demand: Demand, matches: Sequence[Match] = ()) -> list[Part]:
    """The least that a demand will hold: on the device class where it is smallest, as one part.

    The model, or else the vendor, is named only where the demand leaves no choice. `matches`: as what MIG instances
    serve it, if they do; of one that either will do, the least of both.
    """
    count = demand.count * demand.gang_size
    models = {model for alternative in demand.models for model in alternative}
    vendors = {vendor_of(model) or "" for model in models} or set(demand.vendors) or {demand.vendor}
    model = next(iter(models)) if len(models) == 1 else next(iter(vendors)) if len(vendors) == 1 else ""
    share, memory = demand.share_milli, demand.memory_bytes
    if matches and not either(demand):
        share, memory = min(m.compute_milli for m in matches), min(m.memory_bytes for m in matches)
    elif not share or not memory or demand.mig_profile or matches:
        sizes = [
            device_class.size_of(demand)
            for device_class in inventory.classes
            if (not models or device_class.model in models)
            and demand.takes_vendor(device_class.vendor)
            and device_class.mig_profile == demand.mig_profile
        ]
        sizes += [(match.compute_milli, match.memory_bytes) for match in matches]
        if sizes:
            share, memory = min(size[0] for size in sizes), min(size[1] for size in sizes)
    return [(model, share * count, memory * count)] if count else []
