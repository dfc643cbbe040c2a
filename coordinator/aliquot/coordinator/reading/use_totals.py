"""What leases do with what they hold, as sums for a scrape: by state, and by the tenant that holds for nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from aliquot.common.gauges import Metric, counter, gauge, gauges_by
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.use import QUIET, UseState
from aliquot.coordinator.reading.outbox import Follower


class _Use(NamedTuple):
    """What one lease adds."""

    state: UseState
    tenant: str
    share_milli: int
    lent_milli: int


class UseTotals(Follower):
    """Kept up to date by differences. Read on the scraper's thread."""

    def __init__(self, leases: Iterable[Lease]) -> None:
        """`leases` are those that are known so far."""
        self._leases: Counter[UseState] = Counter()
        self._share_milli: Counter[UseState] = Counter()
        self._quiet_milli: Counter[str] = Counter()
        self._lent_milli = 0
        self._warnings = 0
        for lease in leases:
            self._add(_use_of(lease), 1)

    def lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        """See `Follower`."""
        if old is not None and new is not None:
            self._warnings += max(0, new.use.warned - old.use.warned)
        before, after = _use_of(old), _use_of(new)
        if before != after:
            self._add(before, -1)
            self._add(after, 1)

    def _add(self, use: _Use | None, sign: int) -> None:
        if use is None:
            return
        self._leases[use.state] += sign
        self._share_milli[use.state] += sign * use.share_milli
        self._lent_milli += sign * use.lent_milli
        if use.state in QUIET:
            self._quiet_milli[use.tenant] += sign * use.share_milli
            if not self._quiet_milli[use.tenant]:
                del self._quiet_milli[use.tenant]

    def collect(self) -> Iterator[Metric]:
        """As they are now."""
        for name, documentation, counts in (
            ("aliquot_leases_by_use", "Leases that hold something, by what they do with it", self._leases),
            ("aliquot_use_share_milli", "Thousandths of devices held, by what is done with them", self._share_milli),
        ):
            yield gauges_by(["use"], name, documentation, [([state.name], counts[state]) for state in UseState])
        yield gauges_by(
            ["tenant"],
            "aliquot_tenant_quiet_share_milli",
            "Thousandths of devices that a tenant holds and does nothing with",
            [([tenant], milli) for tenant, milli in Counter(dict(self._quiet_milli)).most_common()],
        )
        yield gauge(
            "aliquot_lent_share_milli", "Thousandths of devices whose idle holders lend them", value=self._lent_milli
        )
        yield counter("aliquot_idle_warnings", "Warnings of idleness", value=self._warnings)


def _use_of(lease: Lease | None) -> _Use | None:
    if lease is None or lease.ended or not (current := lease.current):
        return None
    share_milli = sum([piece.plan.share_milli for piece in current])
    return _Use(lease.use.state, lease.request.tenant, share_milli, share_milli if lease.use.lent else 0)
