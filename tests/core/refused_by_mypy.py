"""What deciding may not do. Nobody runs this: mypy refuses each line, and an ignore that is not needed is an error."""

from __future__ import annotations

from aliquot.coordinator.core.known.planning import Planning
from aliquot.coordinator.core.rules.granting import chain_of
from aliquot.coordinator.core.values.types import RequestSpec, SlicePlan


def books(state: Planning, request: RequestSpec) -> None:
    """Leases, declarations, what is held, the ledger."""
    state.seq = 1  # type: ignore[misc]
    del state.leases["l-1"]  # type: ignore[attr-defined]
    state.leases = {}  # type: ignore[misc]
    state.ended.append("l-1")  # type: ignore[attr-defined]
    state.tenancy.version += 1  # type: ignore[misc]
    state.tenancy.tenants.clear()  # type: ignore[attr-defined]
    state.tenancy.redeclared()  # type: ignore[attr-defined]
    state.tenancy.account("t", "a").slices = 1  # type: ignore[misc]
    state.tenancy.accounts["t", "a"].count((("A100", 1, 1),), 1)  # type: ignore[attr-defined]
    chain_of(state, request).tenant.ranked.drop("l-1")  # type: ignore[attr-defined]
    state.ledger.closed_up_to_ms = 1  # type: ignore[misc]
    state.ledger.fold(1)  # type: ignore[attr-defined]


def indexes(state: Planning, plan: SlicePlan) -> None:
    """Who waits, what is used, what is reserved where."""
    state.ready_holds["l-1"] = None  # type: ignore[index]
    state.lines.wake("l-1")  # type: ignore[attr-defined]
    state.lines.queues["q"]["t"].lines.clear()  # type: ignore[attr-defined]
    state.meters["t"].armed_ms = 0  # type: ignore[attr-defined]
    state.meters["t"].accrue(0)  # type: ignore[attr-defined]
    state.inventory.reserve(plan)  # type: ignore[attr-defined]
    state.inventory.structure_version += 1  # type: ignore[misc]
    with state.inventory.trial() as inventory:
        inventory.reserve(plan)
