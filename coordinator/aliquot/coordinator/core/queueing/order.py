"""Who comes first: the keys by which tenants and queues are compared, in integers.

Under every policy, requests that a guarantee covers come before borrowers; otherwise a guarantee would have to be
reclaimed from those it was just lent to.
"""

from __future__ import annotations

from typing import NamedTuple

from aliquot.coordinator.core.books.tenancy.accounts import FRACTION_BITS, Account
from aliquot.coordinator.core.books.tenancy.limits import guaranteed_in_all
from aliquot.coordinator.core.books.tenancy.specs import Amount, QueuePolicy
from aliquot.coordinator.core.books.tenancy.tenancy import Tenancy
from aliquot.coordinator.core.queueing.lines import Rank

BILLIONTHS = 1_000_000_000

Key = tuple[int, ...]
"""Smaller is tried earlier. Keys of one queue have the same length."""


class Standing(NamedTuple):
    """What is compared of a tenant's, or a queue's, first request."""

    covered: bool
    """A guarantee covers it."""
    priority: int
    """With ageing, but never above the highest priority that really waits."""
    rank: Rank


def key_of(policy: QueuePolicy, standing: Standing, share: int) -> Key:
    """The key of a tenant or queue. `share` is its `fair_share` or `capacity_share`, where the policy asks for one."""
    borrows = 0 if standing.covered else 1
    if policy is QueuePolicy.FAIR_SHARE:
        return (borrows, -standing.priority, share, *standing.rank)
    if policy is QueuePolicy.CAPACITY:
        return (borrows, share, *standing.rank)
    return (borrows, *standing.rank)


def aged(priority: int, waited_ms: int, ageing_ms: int, highest: int) -> int:
    """A priority after waiting. It never passes `highest`: among equals, fairness decides and not the time waited."""
    if not ageing_ms:
        return priority
    return max(priority, min(priority + waited_ms // ageing_ms, highest))


def fair_share(tenancy: Tenancy, account: Account, capacity: Amount, now_ms: int) -> int:
    """What an account holds and held lately, as its dominant part of the pool over its weight, in billionths."""
    share, memory = tenancy.average(account, now_ms)
    held = Amount(
        (share >> FRACTION_BITS) + account.share_milli,
        ((memory >> FRACTION_BITS) << 20) + account.memory_bytes,
    )
    return dominant(held, capacity) // account.quota.weight


def capacity_share(account: Account, capacity: Amount) -> int:
    """What an account holds of its guarantee, in billionths; without one, after all that are within theirs."""
    held = Amount(account.share_milli, account.memory_bytes)
    guaranteed = guaranteed_in_all(account.quota.guaranteed, account.quota.models)
    if not guaranteed:
        return BILLIONTHS + dominant(held, capacity) // account.quota.weight
    return dominant(held, guaranteed)


def share_for(policy: QueuePolicy, tenancy: Tenancy, account: Account, capacity: Amount, now_ms: int) -> int:
    """The share that the policy compares by."""
    if policy is QueuePolicy.FAIR_SHARE:
        return fair_share(tenancy, account, capacity, now_ms)
    if policy is QueuePolicy.CAPACITY:
        return capacity_share(account, capacity)
    return 0


def dominant(held: Amount, whole: Amount) -> int:
    """The larger of the two parts that `held` is of `whole`, in billionths; what `whole` lacks is ignored."""
    share = held.share_milli * BILLIONTHS // whole.share_milli if whole.share_milli else 0
    memory = held.memory_bytes * BILLIONTHS // whole.memory_bytes if whole.memory_bytes else 0
    return max(share, memory)
