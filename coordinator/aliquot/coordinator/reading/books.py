"""The durable books beside leases and nodes: declarations, accounts, budgets, holds, maintenance windows, the ledger.

They follow the State's by what each group changed, so that whoever asks for them asks no writer and sees nothing that
a crash could take back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from aliquot.coordinator.core.books.demand import DemandBooks
from aliquot.coordinator.core.books.enrolment import FIRST_GENERATION, Enrolled, Generation, Invite
from aliquot.coordinator.core.books.holds import Hold
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.ledger.invoice import check_period
from aliquot.coordinator.core.books.ledger.ledger import Extract, Ledger, open_entries
from aliquot.coordinator.core.books.ledger.meters import Meter
from aliquot.coordinator.core.books.ledger.rates import RateCard
from aliquot.coordinator.core.books.maintenance import Window
from aliquot.coordinator.core.books.tenancy.accounts import AccountKey
from aliquot.coordinator.core.books.tenancy.in_force import InForce
from aliquot.coordinator.core.books.tenancy.limits import (
    MILLIONTHS,
    bound_above,
    guaranteed_in_all,
    promised,
    scale_of,
)
from aliquot.coordinator.core.books.tenancy.offences import held as held_by
from aliquot.coordinator.core.books.tenancy.specs import Amount, Pool, Queue, QueueSpec, Quota, Tenant, TenantSpec
from aliquot.coordinator.core.books.tenancy.tenancy import Tenancy
from aliquot.coordinator.core.books.tenancy.tenancy import Tenancy as Accounts
from aliquot.coordinator.core.queueing.order import fair_share
from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI
from aliquot.coordinator.reading.callers import put
from aliquot.coordinator.reading.totals import Totals
from aliquot.coordinator.writing.commits import BooksChange

Spec = TypeVar("Spec", TenantSpec, QueueSpec)


@dataclass(frozen=True, slots=True)
class AccountView(Generic[Spec]):
    """What a tenant or queue was promised, holds and waits for."""

    spec: Spec
    version: int
    """0: never declared; it exists because it has or had leases."""
    share_milli: int
    memory_bytes: int
    waiting: int
    fair_share_billionths: int
    """Decayed and present dominant share over weight: what `fair_share` compares."""
    guaranteed_scaled: Amount
    """What of the guarantee the pool can keep now."""
    budget_permille: int
    offences: int = 0
    """Leases that ended as `OVER_LIMIT` and are held against the tenant."""
    held_until_ms: int = 0
    """What follows from them holds until then, in its default queue; 0: nothing follows."""
    in_force: InForce | None = None
    """None: its quota has no windows."""


@dataclass(frozen=True, slots=True)
class TenancyView:
    """Everything declared, as of one durable moment."""

    pools: tuple[Pool, ...]
    tenants: tuple[AccountView[TenantSpec], ...]
    queues: tuple[AccountView[QueueSpec], ...]
    rates: RateCard | None
    rates_version: int
    guarantee_scale_millionths: int
    alerts: tuple[str, ...]
    holds: tuple[Hold, ...]
    tenant_alerts: tuple[tuple[str, str], ...] = ()
    """Those of `alerts` that are about one tenant, with its name."""


@dataclass(frozen=True, slots=True)
class WindowView:
    """A maintenance window with the nodes it is over."""

    window: Window
    node_ids: tuple[str, ...]
    slices: int
    """What is held on them."""


class DurableBooks:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.windows: tuple[Window, ...] = ()
        """The next one first."""
        self.enrolled: dict[str, Enrolled] = {}
        """By node id: the key that speaks for it."""
        self.invites: dict[str, Invite] = {}
        """By id."""
        self.generations: tuple[Generation, ...] = (FIRST_GENERATION,)
        """Of the pool's authority, the oldest first."""
        self.demand = DemandBooks()
        self._tenancy = Tenancy()
        self.meters: dict[str, Meter] = {}
        """Of tenants with a budget."""
        self._holds: tuple[Hold, ...] = ()

    @property
    def accounts(self) -> Accounts:
        """What was declared of tenants and queues, and what each holds."""
        return self._tenancy

    @property
    def tenants(self) -> Mapping[str, Tenant]:
        """Those that were declared."""
        return self._tenancy.tenants

    def apply(self, change: BooksChange) -> None:
        """Include a durable group."""
        self._tenancy.follow(change.declared, change.accounts)
        if change.all_meters:
            self.meters.clear()
        self.meters.update(change.meters)
        if change.holds is not None:
            self._holds = change.holds
        if change.windows is not None:
            self.windows = change.windows
        for done in change.ledger:
            done(self.ledger)
        for node_id, enrolled in change.enrolled:
            put(self.enrolled, node_id, enrolled)
        for invite_id, invite in change.invites:
            put(self.invites, invite_id, invite)
        if change.generations is not None:
            self.generations = change.generations
        for number, hour in change.demand:
            self.demand.note(number, hour)

    @property
    def newest(self) -> int:
        """The number of the latest generation."""
        return self.generations[-1].number

    def extract(self, tenant: str, live: Iterable[Lease], from_ms: int, to_ms: int, now_ms: int) -> Extract:
        """See `View.extract`."""
        open_now = open_entries(live, self._queue_of, now_ms)
        extract = self.ledger.extract(tenant, open_now, from_ms, to_ms, now_ms)
        check_period(extract)
        return extract

    def _queue_of(self, lease: Lease) -> str:
        return self._tenancy.queue_of(lease.request.tenant, lease.request.queue)

    def bound_above(self, tenant: str) -> str:
        """See `core.tenancy.limits.bound_above`."""
        return bound_above(self._tenancy, tenant)

    def tenancy(self, totals: Totals, now_ms: int) -> TenancyView:
        """See `View.tenancy`."""
        books = self._tenancy
        waiting: dict[AccountKey, int] = {}
        for (tenant, queue), there in totals.queues.items():
            if there.queued:
                for key in (("t", tenant), *(("q", name) for name in books.path(books.queue_of(tenant, queue)))):
                    waiting[key] = waiting.get(key, 0) + there.queued
        used = {key for key, account in books.accounts.items() if account.slices} | set(waiting)
        tenants = sorted({*books.tenants, *books.offences, *(name for kind, name in used if kind == "t")})
        queues = sorted({*books.queues, *(name for kind, name in used if kind == "q")})
        kept, whole = totals.kept.amount, _whole(totals)
        promise = promised(books)
        scale = scale_of(promise, kept)
        of_tenants = (*self._budget_alerts(now_ms), *self._held_alerts(now_ms))

        def account(key: AccountKey, spec: Spec, declared: Tenant | Queue | None) -> AccountView[Spec]:
            account = books.account(*key)
            is_tenant = key[0] == "t"
            meter = self.meters.get(spec.name) if is_tenant else None
            held = held_by(books, spec.name, "", now_ms) if is_tenant else None
            return AccountView(
                spec=spec,
                version=declared.version if declared is not None else 0,
                share_milli=account.share_milli,
                memory_bytes=account.memory_bytes,
                waiting=waiting.get(key, 0),
                fair_share_billionths=fair_share(books, account, whole, now_ms),
                guaranteed_scaled=_scaled(account.quota, scale),
                budget_permille=meter.permille(now_ms) if meter is not None else 0,
                offences=len(books.offences.get(spec.name, ())) if is_tenant else 0,
                held_until_ms=held.until_ms if held is not None else 0,
                in_force=account.in_force,
            )

        return TenancyView(
            pools=tuple(pool for _, pool in sorted(books.pools.items())),
            tenants=tuple(account(("t", name), books.tenant_spec(name), books.tenants.get(name)) for name in tenants),
            queues=tuple(account(("q", name), books.queue_spec(name), books.queues.get(name)) for name in queues),
            rates=self.ledger.prices.latest,
            rates_version=self.ledger.prices.version,
            guarantee_scale_millionths=scale,
            alerts=(
                *_reduced(promise, kept, scale),
                *(text for _, text in of_tenants),
                *self._window_alerts(),
            ),
            tenant_alerts=of_tenants,
            holds=self._holds,
        )

    def _budget_alerts(self, now_ms: int) -> Iterable[tuple[str, str]]:
        for name, meter in sorted(self.meters.items()):
            permille = meter.permille(now_ms)
            if permille >= 800:
                word = "BUDGET_USED_UP" if permille >= 1000 else "BUDGET_NEARLY_USED_UP"
                period = meter.budget.period
                yield name, f"{word}: tenant {name} has used {permille / 10:g} % of its budget of this {period}"

    def _held_alerts(self, now_ms: int) -> Iterable[tuple[str, str]]:
        for name in sorted(self._tenancy.offences):
            held = held_by(self._tenancy, name, "", now_ms)
            if held is not None:
                yield name, f"TENANT_HELD: {held.story(now_ms)}"

    def _window_alerts(self) -> Iterable[str]:
        for (kind, name), item in sorted(self._tenancy.in_force.items()):
            if item.unknown:
                owner = f"{'queue' if kind == 'q' else 'tenant'} {name}"
                yield (
                    f"WINDOW_ZONE_UNKNOWN: {owner} has a window in a time zone that this coordinator does not know, so "
                    "its quota stays as it is: install a newer tzdata"
                )


def _reduced(promise: Amount, kept: Amount, scale: int) -> Iterable[str]:
    if scale < MILLIONTHS:
        yield (
            f"GUARANTEES_REDUCED: {promise.share_milli / 1000:g} devices are guaranteed, "
            f"{kept.share_milli / 1000:g} are left: every guarantee counts for {scale / 10_000:.1f} % of itself"
        )


def _whole(totals: Totals) -> Amount:
    share = sum(of_class.capacity_share_milli for of_class in totals.classes.values())
    memory = sum(of_class.capacity_memory_bytes for of_class in totals.classes.values())
    return Amount(max(share, WHOLE_SHARE_MILLI), max(memory, 1))


def _scaled(quota: Quota, scale: int) -> Amount:
    whole = guaranteed_in_all(quota.guaranteed, quota.models)
    return Amount(whole.share_milli * scale // MILLIONTHS, whole.memory_bytes * scale // MILLIONTHS)
