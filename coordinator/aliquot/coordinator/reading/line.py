"""The pool and its line as the play of starts (`aliquot.forecast.starts`) needs them, from durable records alone."""

from __future__ import annotations

from collections.abc import Iterable

from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.ledger.entries import EntryKind
from aliquot.coordinator.core.books.tenancy.accounts import Account, AccountKey
from aliquot.coordinator.core.books.tenancy.in_force import steps
from aliquot.coordinator.core.books.tenancy.specs import upwards
from aliquot.coordinator.core.books.tenancy.tenancy import Tenancy
from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI
from aliquot.coordinator.reading.view import View
from aliquot.forecast.starts import Bound, Line, Running, Waiting

LEASES_MAX = 20_000
NODES_MAX = 5_000
"""In a larger pool no starts are forecast: gathering them would hold up calls."""
WAITING_MAX = 500
"""Of the line, from its head."""
ENDED_MAX = 5_000
"""Latest entries of usage that lifetimes are learnt from."""


def waiting_of(view: View, lease_ids: Iterable[str]) -> dict[str, Lease]:
    """Those of these that there are."""
    return {lease_id: view.leases[lease_id] for lease_id in lease_ids if lease_id in view.leases}


def line_of(view: View, now_ms: int) -> Line | None:
    """None: the pool is too large, or nothing waits."""
    if view.totals.live > LEASES_MAX or len(view.nodes) > NODES_MAX:
        return None
    numbers: dict[tuple[str, str], int] = {}
    free: list[int] = []
    names: list[str] = []
    for uuid, use in view.totals.devices.items():
        node = view.nodes.get(use.node_id)
        if node is None or not use.present or not node.grantable or not view.device(uuid).usable:
            continue
        number = numbers.setdefault((use.node_id, use.spec.model), len(numbers))
        if number == len(free):
            free.append(0)
            names.append(use.spec.model)
        free[number] += use.spec.compute_milli - use.share_milli
    bounds = _Bounds(view.books.accounts, now_ms)
    running: list[Running] = []
    waiting: list[Lease] = []
    for lease in view.leases_after(0, tenant="", live_only=True):
        if lease.holding:
            running.append(_running(view, lease, numbers, bounds.of(lease), now_ms))
        elif lease.waiting:
            waiting.append(lease)
    if not waiting:
        return None
    waiting.sort(key=lambda lease: (-lease.request.priority, lease.arrival))
    asked = tuple(_waiting(lease, bounds.of(lease)) for lease in waiting[:WAITING_MAX])
    return Line(
        tuple(zip(names, (max(milli, 0) for milli in free), strict=True)),
        tuple(running),
        asked,
        _ended(view),
        tuple(bounds.found),
    )


class _Bounds:
    """Limits of tenants and queues, as far as they are on devices of all kinds together, with their times."""

    def __init__(self, tenancy: Tenancy, now_ms: int) -> None:
        self.found: list[Bound] = []
        self._tenancy = tenancy
        self._now_ms = now_ms
        self._numbers: dict[AccountKey, int | None] = {}
        self._of: dict[tuple[str, str], tuple[int, ...]] = {}

    def of(self, lease: Lease) -> tuple[int, ...]:
        """The numbers of those that a lease counts against."""
        key = lease.request.tenant, lease.request.queue
        known = self._of.get(key)
        if known is None:
            queues = self._tenancy.path(self._tenancy.queue_of(*key))
            owners = [*(("s", name) for name in upwards(key[0])), *(("q", name) for name in queues)]
            numbers = map(self._number, owners)
            known = self._of[key] = tuple(number for number in numbers if number is not None)
        return known

    def _number(self, owner: AccountKey) -> int | None:
        if owner not in self._numbers:
            account = self._tenancy.account(*owner)
            has_limit = any(quota.limit.share_milli >= 0 for quota in account.declared.variants())
            self._numbers[owner] = len(self.found) if has_limit else None
            if has_limit:
                self.found.append(Bound(account.share_milli, self._steps(account)))
        return self._numbers[owner]

    def _steps(self, account: Account) -> tuple[tuple[float, int], ...]:
        now_ms, declared = self._now_ms, account.declared
        now = (0.0, account.quota.limit.share_milli)
        try:
            later = steps(declared, now_ms)[1:]
        except ValueError:  # a zone that is not known here: nothing changes, as in what is decided
            later = []
        return now, *(((s.at_ms - now_ms) / 1000, declared.under(s.window).limit.share_milli) for s in later)


def _running(
    view: View, lease: Lease, numbers: dict[tuple[str, str], int], bounds: tuple[int, ...], now_ms: int
) -> Running:
    parts: dict[int, int] = {}
    for piece in lease.holding:
        use = view.totals.devices.get(piece.plan.device_uuid)
        number = numbers.get((piece.plan.node_id, use.spec.model)) if use is not None else None
        if number is not None:
            parts[number] = parts.get(number, 0) + piece.plan.own_share_milli
    age_ms = max(now_ms - lease.granted_ms, 0)
    left_ms = lease.request.time_limit_ms - age_ms if lease.request.time_limit_ms else 0
    if lease.ending:
        left_ms = max((piece.deadline_ms for piece in lease.holding), default=now_ms) - now_ms
    ends_in_s = max(left_ms, 1) / 1000 if lease.request.time_limit_ms or lease.ending else 0.0
    return Running(lease.request.tenant, age_ms / 1000, tuple(parts.items()), ends_in_s, bounds)


def _waiting(lease: Lease, bounds: tuple[int, ...]) -> Waiting:
    demand = lease.request.demand
    milli = demand.count * (demand.share_milli or WHOLE_SHARE_MILLI)
    models = tuple(dict.fromkeys(model for models in demand.models for model in models))
    limit_s = lease.request.time_limit_ms / 1000
    return Waiting(lease.lease_id, lease.request.tenant, milli, demand.gang_size, models, limit_s, bounds)


def _ended(view: View) -> dict[str, list[float]]:
    """How long leases ran that have ended, by tenant."""
    found: dict[str, list[float]] = {}
    seen: set[str] = set()
    for entry in reversed(view.books.ledger.entries[-ENDED_MAX:]):
        if entry.kind is EntryKind.USAGE and entry.lease_id not in seen:
            seen.add(entry.lease_id)
            found.setdefault(entry.tenant, []).append((entry.to_ms - entry.from_ms) / 1000)
    return found
