"""What has happened to prices, money and the books."""

from __future__ import annotations

from aliquot.coordinator.core.books.ledger.rates import RateCard
from aliquot.coordinator.core.values.fact import Fact


class RatesApplied(Fact, frozen=True, tag="rates"):
    """Prices that hold from now on."""

    card: RateCard
    version: int


class CreditPosted(Fact, frozen=True, tag="credit"):
    """A tenant paid, or was given, this much (negative: paid back)."""

    tenant: str
    money_micro: int
    reference: str
    """Given by whoever posts it; the same reference is never posted twice."""
    note: str = ""


class UsageCorrected(Fact, frozen=True, tag="correct"):
    """What was charged was wrong by this much. The wrong entries stay as they are."""

    tenant: str
    queue: str
    model: str
    share_milli_ms: str
    """Decimal, signed: quantities of the ledger know no bound."""
    memory_byte_ms: str
    reference: str
    note: str = ""


class UseObserved(Fact, frozen=True, tag="observed"):
    """Measured use of what was reserved, of one lease or of all leases of a tenant."""

    lease_id: str
    busy_milli_ms: str
    memory_byte_ms: str
    interval_ms: int
    tenant: str = ""
    up_bytes: str = "0"
    """From programs elsewhere to the processes that served their leases; a decimal, as the others are."""
    down_bytes: str = "0"
    energy_mj: str = "0"
    energy_interval_ms: int = 0


class BudgetCrossed(Fact, frozen=True, tag="budget"):
    """A tenant has used up so many thousandths of its budget for this period."""

    tenant: str
    permille: int
    period_start_ms: int


class BooksClosed(Fact, frozen=True, tag="closed"):
    """Entries up to here are summed up by day; invoices of that time are by whole days from now on."""

    up_to_ms: int


class UsageFolded(Fact, frozen=True, tag="folded"):
    """Entries of usage up to this number are summed up by hour; invoices of that time are by whole hours from now."""

    up_to_number: int
