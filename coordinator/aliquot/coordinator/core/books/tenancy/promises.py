"""What is guaranteed to several owners together, at each time within the next week: their windows open and close."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from aliquot.coordinator.core.books.tenancy.in_force import OUTSIDE, Step, steps
from aliquot.coordinator.core.books.tenancy.limits import guaranteed_of
from aliquot.coordinator.core.books.tenancy.specs import ROOT, Amount, Quota
from aliquot.coordinator.core.books.tenancy.tenancy import Tenancy

HOUR_MS = 3_600_000


class Promised(NamedTuple):
    """From one moment on."""

    at_ms: int
    total: Amount
    own: Amount
    """Of the one that the others are compared with."""

    @property
    def exceeds(self) -> bool:
        """Whether more is promised to all together than to the one."""
        return self.total.share_milli > self.own.share_milli or self.total.memory_bytes > self.own.memory_bytes

    def when(self, now_ms: int) -> str:
        """For people: from when on; empty: it is so already."""
        if self.at_ms <= now_ms:
            return ""
        return f" from {datetime.fromtimestamp(self.at_ms // 1000, UTC):%Y-%m-%d %H:%M} UTC on"


def promised_together(quotas: Iterable[Quota], own: Quota | None, now_ms: int) -> Iterator[Promised]:
    """What is guaranteed to all of these and, beside it, to `own` (None: nothing): now, then at each change."""
    columns = [list(quotas), [own] if own is not None else []]
    totals = [Amount(), Amount()]
    changes: dict[int, list[tuple[int, Amount]]] = {now_ms: []}
    for column, members in enumerate(columns):
        for quota in members:
            if not quota.windows:
                totals[column] = totals[column].plus(guaranteed_of(quota))
                continue
            before = Amount()
            for at_ms, window in _steps(quota, now_ms):
                amount = guaranteed_of(quota.under(window))
                more = Amount(amount.share_milli - before.share_milli, amount.memory_bytes - before.memory_bytes)
                changes.setdefault(at_ms, []).append((column, more))
                before = amount
    for at_ms in sorted(changes):
        for column, more in changes[at_ms]:
            totals[column] = totals[column].plus(more)
        yield Promised(at_ms, *totals)


def too_much(quotas: Iterable[Quota], own: Quota | None, most: Amount | None, now_ms: int) -> Promised | None:
    """The first time at which more is guaranteed to all of these than to `own`, or than there is; None: never."""
    for found in promised_together(quotas, own, now_ms):
        compared = found if most is None else found._replace(own=most)
        if compared.exceeds:
            return compared
    return None


class MostPromised:
    """The most that is guaranteed to everybody at any one time within the next week; worked out once in an hour."""

    def __init__(self) -> None:
        self._key: tuple[int, int] = (-1, 0)
        self._most = Amount()

    def of(self, tenancy: Tenancy, now_ms: int) -> Amount:
        """See the class."""
        key = tenancy.version, now_ms // HOUR_MS
        if key != self._key:
            owners = [tenant.spec.quota for tenant in tenancy.tenants.values()]
            owners += [queue.spec.quota for name, queue in tenancy.queues.items() if queue.spec.parent == ROOT != name]
            found = [promise.total for promise in promised_together(owners, None, now_ms)]
            share = max(amount.share_milli for amount in found)
            self._key, self._most = key, Amount(share, max(amount.memory_bytes for amount in found))
        return self._most


def _steps(quota: Quota, now_ms: int) -> Sequence[Step]:
    try:
        return steps(quota, now_ms)
    except ValueError:  # a zone that was known when it was declared, and is not known here
        return [Step(now_ms, OUTSIDE)]
