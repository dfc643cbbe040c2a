"""What is told of owners, by tenant and queue: what became of their leases, and how much is used of what is theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from aliquot.common.gauges import LABELS_MAX, OTHER, Metric, counter, gauge, gauges_by
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.tenancy.limits import guaranteed_in_all
from aliquot.coordinator.core.books.tenancy.specs import Amount
from aliquot.coordinator.core.books.tenancy.tenancy import Tenancy
from aliquot.coordinator.core.values.types import EndReason
from aliquot.coordinator.reading.books import DurableBooks
from aliquot.coordinator.reading.telemetry import Telemetry

_KINDS = {"t": "tenant", "q": "queue"}
_GIVES_WAY: dict[str, str] = {EndReason.PREEMPTED: "RECALL", EndReason.DRAINED: "DRAINED", EndReason.IDLE: "IDLE"}
"""What else than a preemption sends a lease back: its lender has its share back, its node closes, or it is idle."""


class OwnerCounts:
    """Counts of words by tenant and queue: of as many owners as labels may name, and of all others together."""

    def __init__(self) -> None:
        self._owners: set[tuple[str, str]] = set()
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def count(self, lease: Lease, word: str, times: int = 1) -> None:
        """Count a word. 0 times: from now on it is shown, so that its first time is seen as a rise."""
        owner = lease.request.tenant, lease.request.queue
        if owner not in self._owners:
            if len(self._owners) < LABELS_MAX:
                self._owners.add(owner)
            else:
                owner = OTHER, OTHER
        self._counts[(*owner, word)] += times

    def collect(self, name: str, documentation: str, label: str) -> Metric:
        """As a counter; on any thread."""
        family = counter(name, documentation, labels=["tenant", "queue", label])
        for key, value in list(self._counts.items()):
            family.add_metric(key, value)
        return family


def preemption_of(old: Lease, new: Lease) -> str:
    """Why a lease has just been told to give way and to wait again; empty: it has not."""
    if new.preemptions > old.preemptions:
        return "RECLAIM" if new.reclaims > old.reclaims else "PRIORITY"
    if old.requeue or new.moves > old.moves:
        return ""
    # On a node without an agent nobody confirms: it waits again in the same step.
    told = new.end_reason if new.requeue else new.note if new.requeues > old.requeues else ""
    return _GIVES_WAY.get(told, "")


def outcome_of(lease: Lease) -> str:
    """What became of what ran in a lease that has ended; empty: it never had a place."""
    if not lease.granted_ms:
        return ""
    if lease.end_reason != EndReason.RELEASED:
        return "STOPPED"
    if lease.exit_code is None:
        return "UNKNOWN"
    return "FAILED" if lease.exit_code else "SUCCEEDED"


def unknown_slices(telemetry: Telemetry) -> Iterator[Metric]:
    """What nobody owns any more."""
    by_node = Counter(node_id for node_id, _ in telemetry.unknown_slices()).most_common()
    yield gauges_by(
        ["node"],
        "aliquot_slices_unknown",
        "Slices that an agent holds and the books do not know",
        [([node_id], count) for node_id, count in by_node],
    )


def quota_metrics(books: DurableBooks, now_ms: int) -> Iterator[Metric]:
    """What was declared of tenants and queues, beside what they hold: read on the scraper's thread."""
    shown = [("t", name) for name in list(books.tenants)[:LABELS_MAX]]
    shown += [("q", name) for name in list(books.accounts.queues)[:LABELS_MAX]]
    amounts = [amount for kind, name in shown for amount in _amounts(books.accounts, kind, name)]
    for unit, name, what in (
        ("share_milli", "aliquot_quota_share_milli", "Thousandths of devices"),
        ("memory_bytes", "aliquot_quota_memory_bytes", "Device memory"),
    ):
        family = gauge(name, f"{what}: guaranteed, the limit, and held of it", labels=["kind", "name", "bound"])
        for labels, amount in amounts:
            if (value := getattr(amount, unit)) >= 0:
                family.add_metric(labels, value)
        yield family
    used = gauge(
        "aliquot_budget_used_ratio", "Part of its budget of this period that a tenant has used up", labels=["tenant"]
    )
    for name, meter in list(books.meters.items())[:LABELS_MAX]:
        used.add_metric([name], meter.permille(now_ms) / 1000)
    yield used


def _amounts(accounts: Tenancy, kind: str, name: str) -> Iterator[tuple[list[str], Amount]]:
    account = accounts.account(kind, name)
    # A limit of a tenant is one of all tenants below it, too.
    whole = accounts.account("s", name) if kind == "t" and ("s", name) in accounts.accounts else account
    labels, quota = [_KINDS[kind], name], account.quota
    yield [*labels, "guaranteed"], guaranteed_in_all(quota.guaranteed, quota.models)
    yield [*labels, "limit"], quota.limit
    yield [*labels, "held"], Amount(whole.share_milli, whole.memory_bytes)
