"""How much of the pool may be under automatic repair at once: a fault of the monitoring, or of a driver's version,
looks like a fault of every card.

Above the bound, soft evidence takes no more cards out of service and no further repair begins. Hard evidence goes on,
and so do recoveries: what is well again returns whatever the state of the breaker.
"""

from __future__ import annotations

from aliquot.coordinator.core.health.records import HOUR_MS, Incident
from aliquot.coordinator.core.planning import Planning


def may_repair(state: Planning, incident: Incident, now_ms: int) -> str:
    """Why no repair may begin now; empty: one may."""
    key = (incident.pool, incident.model)
    cards = state.health.cards.get(key, 0)
    units = len(incident.units)
    config = state.config
    at_once = max(1, cards * config.repairs_at_once_permille // 1000)
    busy = state.health.under_repair.get(key, 0)
    # What one incident covers is repaired together, even where that is more than the bound.
    if busy and busy + units > at_once:
        return (
            f"{busy} of {cards} {incident.model} in pool {incident.pool} are being repaired; at most {at_once} at once"
        )
    an_hour = max(1, cards * config.repairs_an_hour_permille // 1000)
    lately = sum(
        start.units
        for start in state.health.starts
        if start.at_ms > now_ms - HOUR_MS and (start.pool, start.model) == key
    )
    if lately and lately + units > an_hour:
        return f"{lately} of {cards} {incident.model} in pool {incident.pool} were repaired within the hour"
    return ""


def believes_soft(state: Planning, pool: str, model: str, units: int) -> bool:
    """Whether soft evidence may still take cards out of service."""
    cards = state.health.cards.get((pool, model), 0)
    most = max(1, cards * state.config.soft_out_permille // 1000)
    return state.health.out.get((pool, model), 0) + units <= most
