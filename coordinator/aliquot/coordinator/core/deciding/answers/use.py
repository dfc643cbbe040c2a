"""What leases make of what they hold, and what that costs. Looks at `SCANNED_MAX` leases at most: 50 ms or so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.ledger.meters import MONEY_SCALE, money_slope
from aliquot.coordinator.core.books.roles import covers
from aliquot.coordinator.core.books.use import QUIET, IdlePolicy
from aliquot.coordinator.core.commands.queries import Query
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.known.use_windows import Efficiency, UseWindows
from aliquot.coordinator.core.rules.use import policy_of
from aliquot.coordinator.core.values.fact import by_kind

ROWS_MAX = 1_000
SCANNED_MAX = 10_000


@dataclass(frozen=True, slots=True)
class UseRow:
    """One lease, as it is shown."""

    lease: Lease
    efficiency: Efficiency | None
    idle_ms: int
    """For how long it has been quiet, as far as that was seen."""
    wasted_milli_ms: int
    """Of GPU time in that spell: share times `idle_ms`; 0 unless it is quiet."""
    wasted_micro: int
    """Of money, at list price."""
    borrowed_milli: int
    """Of its share, by others, now."""
    policy: IdlePolicy


@dataclass(frozen=True, slots=True)
class UseReport:
    """The answer to `GetUse`."""

    rows: tuple[UseRow, ...]
    """Those that waste most first."""
    left_out: int
    currency: str


@dataclass(frozen=True, slots=True)
class GetUse(Query[UseReport]):
    """Who holds what for nothing?"""

    tenant: str = ""
    lease_id: str = ""
    quiet_only: bool = False
    limit: int = ROWS_MAX
    visible: Callable[[Lease], bool] = lambda _: True
    """Leases that the caller may not see are as if they were not there."""


def report(known: Known, query: GetUse, now_ms: int) -> UseReport:
    """Rows of leases that hold something."""
    windows = known.memory.part(UseWindows, UseWindows)
    card = known.ledger.prices.at(now_ms)
    rows: list[UseRow] = []
    leases = [known.lease(query.lease_id)] if query.lease_id else known.leases.values()
    scanned = left_out = 0
    for lease in leases:
        if lease.ended or not lease.holding or not covers(query.tenant, lease.request.tenant):
            continue
        quiet = lease.use.state in QUIET
        if (query.quiet_only and not quiet) or not query.visible(lease):
            continue
        scanned += 1
        if scanned > SCANNED_MAX:
            left_out += 1
            continue
        window = windows.get(lease.lease_id)
        idle_ms = window.known_ms if quiet and window is not None else 0
        share = sum(piece.plan.share_milli for piece in lease.current)
        slope = sum(
            money_slope(card, piece.model, piece.plan.share_milli, piece.plan.memory_bytes) for piece in lease.current
        )
        lent = sum(
            other.plan.share_milli
            for piece in lease.current
            for slice_id in known.borrowers.get(piece.slice_id, ())
            if (other := known.leases[slice_id.partition(".")[0]].find(slice_id)) is not None
        )
        rows.append(
            UseRow(
                lease,
                window.efficiency() if window is not None else None,
                idle_ms,
                share * idle_ms,
                slope * idle_ms // MONEY_SCALE,
                lent,
                policy_of(known.tenancy, lease.request.tenant, lease.request.queue),
            )
        )
    rows.sort(key=lambda row: (-row.wasted_milli_ms, row.lease.arrival))
    currency = card.currency if card is not None else "credits"
    return UseReport(tuple(rows[: query.limit]), left_out + max(0, len(rows) - query.limit), currency)


DECIDES = Decides(queries=by_kind(report))
