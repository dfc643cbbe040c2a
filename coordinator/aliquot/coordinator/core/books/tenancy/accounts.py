"""What one tenant or queue holds, and the average of what it held."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import isqrt
from typing import NamedTuple

import msgspec

from aliquot.coordinator.core.books.tenancy.in_force import InForce
from aliquot.coordinator.core.books.tenancy.ranking import Part, RankedHoldings
from aliquot.coordinator.core.books.tenancy.specs import Quota

# --------------------
# Usage that fades: an average of what was held, in which the past counts for half after each half-life. In
# integers, so that a replay on any machine gives the same order of tenants. An average moves from `old` towards
# `held` as new = held + (old - held) * 2^(-elapsed / half_life) which is exact for a constant `held`, however often
# it is brought up to date in between (but for rounding).


FRACTION_BITS = 20
"""Averages carry so many bits behind the point."""
_FACTOR_BITS = 64
_STEPS = 256
_LN2_MILLIONTHS = 693_147


def _factors() -> tuple[int, ...]:
    """2^(-i / 256), by repeated square roots of one half."""
    bits = 2 * _FACTOR_BITS
    root = 1 << (bits - 1)
    for _ in range(8):
        root = isqrt(root << bits)
    factors = [1 << bits]
    for _ in range(_STEPS - 1):
        factors.append(factors[-1] * root >> bits)
    return tuple(factor >> _FACTOR_BITS for factor in factors)


_FACTORS = _factors()


def remaining(elapsed_ms: int, half_life_ms: int) -> int:
    """2^(-elapsed / half_life) in units of 2^-64."""
    halves, rest = divmod(elapsed_ms, half_life_ms)
    if halves >= _FACTOR_BITS:
        return 0
    step, rest = divmod(rest * _STEPS, half_life_ms)
    factor = _FACTORS[step] >> halves
    # What is left is under 1/256 of a half-life, where 1 - x ln 2 is right to one part in 250,000.
    return factor - factor * rest * _LN2_MILLIONTHS // (half_life_ms * _STEPS * 1_000_000)


def faded(average: int, held: int, elapsed_ms: int, half_life_ms: int) -> int:
    """The average (with `FRACTION_BITS`) after `held` (without) was held for so long."""
    if elapsed_ms <= 0:
        return average
    target = held << FRACTION_BITS
    return target + ((average - target) * remaining(elapsed_ms, half_life_ms) >> _FACTOR_BITS)


AccountKey = tuple[str, str]
"""("t", tenant), ("s", tenant) with all below it, or ("q", queue)."""


class Owner(NamedTuple):
    """Who holds slices: a lease, and what its request says of tenant and queue."""

    lease_id: str
    tenant: str
    queue: str


class Average(msgspec.Struct, frozen=True, array_like=True):
    """The faded average use of one account, as of `at_ms`, in thousandths of devices and in MiB; see `decay`."""

    kind: str
    name: str
    share: int
    memory: int
    at_ms: int


@dataclass(slots=True)
class Account:
    """What one tenant or queue holds."""

    kind: str
    name: str
    quota: Quota
    """What is in force."""
    share_milli: int = 0
    memory_bytes: int = 0
    slices: int = 0
    by_model: dict[str, list[int]] = field(default_factory=dict)
    """Model -> [share_milli, memory_bytes, slices]."""
    share_average: int = 0
    memory_average: int = 0
    average_ms: int = 0
    version: int = 0
    """Moves with every change of what is held."""
    published: bool = False
    """Whether nothing has changed since `Tenancy.take_changes`."""
    holders: dict[str, int] = field(default_factory=dict)
    """Leases that hold something, and how many slices each; kept only where there is a limit."""
    ranked: RankedHoldings = field(default_factory=RankedHoldings)
    """What counts against its guarantee: what each lease holds without extra members. Kept only where there is one."""
    coming: RankedHoldings = field(default_factory=RankedHoldings)
    """And what will be granted to leases for which others are ending."""
    declared: Quota = field(default_factory=Quota)
    """With its windows."""
    in_force: InForce | None = None
    """None: it has no windows."""

    @property
    def label(self) -> str:
        """`tenant vision` or `queue training`."""
        return f"{'queue' if self.kind == 'q' else 'tenant'} {self.name}"

    def count(self, parts: Iterable[Part], sign: int) -> None:
        """Slices are held (`sign` 1), or not any more (-1)."""
        self.version += 1
        for model, share_milli, memory_bytes in parts:
            self.share_milli += sign * share_milli
            self.memory_bytes += sign * memory_bytes
            self.slices += sign
            of_model = self.by_model.get(model)
            if of_model is None:
                self.by_model[model] = [sign * share_milli, sign * memory_bytes, sign]
                continue
            of_model[0] += sign * share_milli
            of_model[1] += sign * memory_bytes
            of_model[2] += sign
            if not of_model[2]:
                del self.by_model[model]

    def enlist(self, lease_id: str, slices: int) -> None:
        """A lease holds so many slices more, or fewer."""
        left = self.holders.get(lease_id, 0) + slices
        if left:
            self.holders[lease_id] = left
        else:
            self.holders.pop(lease_id, None)

    def accrue(self, at_ms: int, half_life_ms: int) -> None:
        """Bring the averages up to this moment."""
        elapsed_ms = at_ms - self.average_ms
        if elapsed_ms <= 0:
            return
        if self.average_ms:
            self.share_average = faded(self.share_average, self.share_milli, elapsed_ms, half_life_ms)
            self.memory_average = faded(self.memory_average, self.memory_bytes >> 20, elapsed_ms, half_life_ms)
        self.average_ms = at_ms

    def publish(self) -> Held:
        """As it is now, for readers."""
        self.published = True
        return Held(
            self.kind,
            self.name,
            self.quota,
            self.share_milli,
            self.memory_bytes,
            self.slices,
            self.share_average,
            self.memory_average,
            self.average_ms,
        )

    def forget_held(self) -> None:
        """Set all that it holds to nothing, before it is recounted."""
        self.share_milli = self.memory_bytes = self.slices = 0
        self.by_model = {}
        self.holders = {}
        models = [model.model for model in self.quota.models]
        self.ranked, self.coming = RankedHoldings(models), RankedHoldings(models)

    def youngest(self) -> Iterator[str]:
        """The leases that hold something, who came last first."""
        return reversed(self.holders)

    def held(self) -> tuple[int, int, int, dict[str, list[int]]]:
        """What is recounted from the leases, for comparison."""
        return self.share_milli, self.memory_bytes, self.slices, self.by_model


class Chain(NamedTuple):
    """The accounts that a lease counts against: of its tenant, its queue and those above, and of trees of tenants."""

    tenant: Account
    queues: tuple[Account, ...]
    """From the leaf to the root."""
    trees: tuple[Account, ...]
    """Of the tenant with all below it, and so of each above it: those that have a limit."""
    limited: tuple[Account, ...]
    guaranteed: tuple[Account, ...]
    accounts: tuple[Account, ...]
    """Its tenant's and its queues'."""


class Held(NamedTuple):
    """What an account holds in all, and its averages, as of one moment; see `Account`."""

    kind: str
    name: str
    quota: Quota
    share_milli: int
    memory_bytes: int
    slices: int
    share_average: int
    memory_average: int
    average_ms: int
