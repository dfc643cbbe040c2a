"""Reads that must see the writer's State: they come through it like commands, and change nothing."""

from __future__ import annotations

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.decide.outcomes import AccountView, Decision, TenancyView
from aliquot.coordinator.core.evolving.counting import queue_of
from aliquot.coordinator.core.granting import guarantee_scale, whole_pool
from aliquot.coordinator.core.ledger.books import open_entries
from aliquot.coordinator.core.ledger.invoice import check_period
from aliquot.coordinator.core.planning import Planning
from aliquot.coordinator.core.queueing.order import fair_share
from aliquot.coordinator.core.tenancy.limits import (
    MILLIONTHS,
    guaranteed_in_all,
    promised,
    usable_capacity,
)
from aliquot.coordinator.core.tenancy.specs import Amount, Quota


def extract_ledger(state: Planning, command: c.ExtractLedger, now_ms: int) -> Decision:
    """What an invoice is made from. Raises InvalidField, PeriodClosed."""
    open_now = open_entries(
        (lease for lease in state.leases.values() if lease.request.tenant == command.tenant and not lease.ended),
        lambda lease: queue_of(state, lease),
        now_ms,
    )
    extract = state.ledger.extract(command.tenant, open_now, command.from_ms, command.to_ms, now_ms)
    check_period(extract)
    return Decision((), extract)


def read_tenancy(state: Planning, command: c.ReadTenancy, now_ms: int) -> Decision:
    """Everything declared, and what is held and waits."""
    tenancy = state.tenancy
    waiting: dict[tuple[str, str], int] = {}
    for lease_id in state.lines.ids():
        place = state.lines.place_of(lease_id)
        assert place is not None
        for key in (("t", place.tenant), *(("q", name) for name in tenancy.path(place.queue))):
            waiting[key] = waiting.get(key, 0) + 1
    used = {key for key, account in tenancy.accounts.items() if account.slices} | set(waiting)
    tenants = sorted({*tenancy.tenants, *(name for kind, name in used if kind == "t")})
    queues = sorted({*tenancy.queues, *(name for kind, name in used if kind == "q")})
    view = TenancyView(
        pools=tuple(pool for _, pool in sorted(tenancy.pools.items())),
        tenants=tuple(_account(state, "t", name, waiting, now_ms) for name in tenants),
        queues=tuple(_account(state, "q", name, waiting, now_ms) for name in queues),
        rates=state.ledger.prices.latest,
        rates_version=state.ledger.prices.version,
        guarantee_scale_millionths=guarantee_scale(state),
        alerts=alerts(state, now_ms),
        holds=tuple(state.holds.values()),
    )
    return Decision((), view)


def alerts(state: Planning, now_ms: int) -> tuple[str, ...]:
    """What an administrator should look at: promises that can't be kept, budgets nearly used up."""
    found = []
    scale = guarantee_scale(state)
    if scale < MILLIONTHS:
        promise, usable = promised(state.tenancy), usable_capacity(state.inventory)
        found.append(
            f"GUARANTEES_REDUCED: {promise.share_milli / 1000:g} devices are guaranteed, "
            f"{usable.share_milli / 1000:g} are usable: every guarantee counts for {scale / 10_000:.1f} % of itself"
        )
    for name, meter in sorted(state.meters.items()):
        permille = meter.permille(now_ms)
        if permille >= 800:
            word = "BUDGET_USED_UP" if permille >= 1000 else "BUDGET_NEARLY_USED_UP"
            found.append(
                f"{word}: tenant {name} has used {permille / 10:g} % of its budget of this {meter.budget.period}"
            )
    return tuple(found)


def _account(state: Planning, kind: str, name: str, waiting: dict[tuple[str, str], int], now_ms: int) -> AccountView:
    tenancy = state.tenancy
    account = tenancy.account(kind, name)
    declared = tenancy.tenants.get(name) if kind == "t" else tenancy.queues.get(name)
    spec = tenancy.tenant_spec(name) if kind == "t" else tenancy.queue_spec(name)
    meter = state.meters.get(name) if kind == "t" else None
    return AccountView(
        name=name,
        spec=spec,
        version=declared.version if declared is not None else 0,
        share_milli=account.share_milli,
        memory_bytes=account.memory_bytes,
        waiting=waiting.get((kind, name), 0),
        fair_share_billionths=fair_share(tenancy, account, whole_pool(state), now_ms),
        guaranteed_scaled=_scaled(account.quota, guarantee_scale(state)),
        budget_permille=meter.permille(now_ms) if meter is not None else 0,
    )


def _scaled(quota: Quota, scale: int) -> Amount:
    whole = guaranteed_in_all(quota.guaranteed, quota.models)
    return Amount(whole.share_milli * scale // MILLIONTHS, whole.memory_bytes * scale // MILLIONTHS)
