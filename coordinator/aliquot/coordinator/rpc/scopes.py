"""Which declarations a caller may make, and which of them it sees: what is its tenant's, or below."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from aliquot.coordinator.core.books.roles import Action, covers
from aliquot.coordinator.core.books.tenancy.ceilings import check_within
from aliquot.coordinator.core.books.tenancy.specs import Tenant
from aliquot.coordinator.core.commands import Apply, Declared, Withdraw
from aliquot.coordinator.reading.books import TenancyView
from aliquot.coordinator.rpc.caller import Caller

_NAMED = 3


BoundAbove = Callable[[str], str]
"""See `core.tenancy.limits.bound_above`."""


def may_declare(who: Caller, command: Apply, declared: Mapping[str, Tenant], bound_above: BoundAbove) -> None:
    """A manager declares tenants below its own declared one, within their ceilings and as far as nothing is limited or
    guaranteed there; all else is the administrator's.

    Raises RoleMissing and InvalidField.
    """
    if command.pools or command.queues or command.rates is not None:
        who.must(Action.DECLARE)
    for number, (spec, _) in enumerate(command.tenants):
        _may_change(who, spec.name, declared, bound_above)
        if spec.quota.guarantees:  # it is taken from what everybody shares
            who.must(Action.DECLARE)
        if not who.may(Action.DECLARE):
            check_within(declared, spec, f"tenants[{number}]")


def may_withdraw(who: Caller, command: Withdraw, declared: Mapping[str, Tenant], bound_above: BoundAbove) -> None:
    """The same of taking a declaration back. Raises RoleMissing."""
    if command.kind is Declared.TENANT:
        _may_change(who, command.name, declared, bound_above)
    else:
        who.must(Action.DECLARE)


def _may_change(who: Caller, tenant: str, declared: Mapping[str, Tenant], bound_above: BoundAbove) -> None:
    parent, _, _ = tenant.rpartition("/")
    # The first declaration shuts out everybody who has none, and the end of the last lets all in: no manager says that.
    known = any(covers(above, parent) for above in declared)
    if parent and known and not bound_above(tenant) and who.may(Action.DECLARE_BELOW, parent):
        return
    who.must(Action.DECLARE)


def declared_names(command: Apply) -> str:
    """For the record."""
    names = [
        *(f"pool {spec.name}" for spec, _ in command.pools),
        *(f"tenant {spec.name}" for spec, _ in command.tenants),
        *(f"queue {spec.name}" for spec, _ in command.queues),
        *(["rates"] if command.rates is not None else []),
    ]
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def seen_by(who: Caller, view: TenancyView) -> TenancyView:
    """Without other tenants: those of the caller, those above them, their alerts, and what is declared for all."""
    if who.sees_all:
        return view
    scopes = [grant.scope for grant in who.grants]
    tenants = tuple(
        each
        for each in view.tenants
        if who.may(Action.READ_LEASES, each.spec.name) or any(covers(each.spec.name, scope) for scope in scopes)
    )
    names = {each.spec.name for each in tenants}
    alerts = tuple(text for name, text in view.tenant_alerts if name in names)
    return replace(view, tenants=tenants, alerts=alerts, holds=())
