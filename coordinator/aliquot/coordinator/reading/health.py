"""The health of cards as metrics, from the books: they survive a fail-over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from aliquot.common.gauges import Metric, counters_by, gauge, gauges_by, histogram
from aliquot.coordinator.core.books.health.records import (
    INTERVAL_BOUNDS_S,
    OUT,
    REPAIR_BOUNDS_S,
    HealthBooks,
    Standing,
)


def health_metrics(health: HealthBooks) -> Iterator[Metric]:
    """Read on the scraper's thread: what may change meanwhile is copied first."""
    by_state: Counter[Standing] = Counter()
    by_cause: Counter[str] = Counter()
    oldest_ms = 0
    for incident in list(health.incidents.values()):
        by_state[incident.state] += len(incident.units)
        if incident.state in OUT:
            by_cause[incident.cause] += len(incident.units)
        if not incident.back_ms:
            oldest_ms = min(oldest_ms or incident.opened_ms, incident.opened_ms)
    states = [([state.name], by_state[state]) for state in Standing if state is not Standing.HEALTHY]
    yield gauges_by(["state"], "aliquot_cards_unwell", "Cards that incidents are about, by state", states)
    causes = [([cause], count) for cause, count in sorted(by_cause.items())]
    yield gauges_by(["cause"], "aliquot_cards_out", "Cards that are out of service, by cause", causes)
    yield gauge("aliquot_incidents_open", "Incidents that are not over", value=len(health.incidents))
    yield gauge(
        "aliquot_incident_oldest_seconds",
        "Since 1970: when the oldest incident began whose cards are out of service; 0: none is",
        value=oldest_ms / 1000,
    )
    totals = sorted(list(health.totals.items()))  # noqa: C414 - the copy is made in one step
    over = [([cause], of_cause.incidents) for cause, of_cause in totals]
    yield counters_by(["cause"], "aliquot_incidents", "Incidents whose cards came back", over)
    yield counters_by(
        ["cause"],
        "aliquot_device_out_seconds",
        "Time that cards were out of service until they came back",
        [([cause], of_cause.out_ms / 1000) for cause, of_cause in totals],
    )
    for name, what, buckets, bounds_s in (
        ("aliquot_repair_seconds", "From the first bad sign until service", health.repairs, REPAIR_BOUNDS_S),
        ("aliquot_incident_interval_seconds", "Between two incidents of one card", health.intervals, INTERVAL_BOUNDS_S),
    ):
        yield histogram(name, what, bounds_s, buckets.counts, buckets.sum_ms / 1000)
