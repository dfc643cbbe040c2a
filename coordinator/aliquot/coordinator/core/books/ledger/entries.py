"""Entries: what the ledger is made of. Each is one amount, from the pool to a tenant or from a tenant to its credit."""

from __future__ import annotations

import enum

import msgspec


class EntryKind(enum.IntEnum):
    """What an entry records."""

    USAGE = 1
    """A slice was held, and charged, from one moment to another."""
    CREDIT = 2
    """A tenant paid, or was given, money."""
    CORRECTION = 3
    """Usage that was charged wrongly, made good."""


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One entry. Never changed; a wrong one is made good by another."""

    number: int
    kind: EntryKind
    from_ms: int
    to_ms: int
    tenant: str
    queue: str = ""
    model: str = ""
    lease_id: str = ""
    slice_id: str = ""
    share_milli: int = 0
    memory_bytes: int = 0
    money_micro: int = 0
    fixed_share_milli_ms: str = ""
    """Of corrections: a signed decimal, because these quantities know no bound."""
    fixed_memory_byte_ms: str = ""
    reference: str = ""
    note: str = ""

    @property
    def share_milli_ms(self) -> int:
        """Thousandths of a device times milliseconds."""
        return int(self.fixed_share_milli_ms or 0) + self.share_milli * (self.to_ms - self.from_ms)

    @property
    def memory_byte_ms(self) -> int:
        """Bytes times milliseconds."""
        return int(self.fixed_memory_byte_ms or 0) + self.memory_bytes * (self.to_ms - self.from_ms)

    def within(self, from_ms: int, to_ms: int) -> Entry | None:
        """The part of it that lies in [from, to), exactly; None where there is none. Moments count where they fall."""
        if self.from_ms == self.to_ms:
            return self if from_ms <= self.from_ms < to_ms else None
        start, end = max(self.from_ms, from_ms), min(self.to_ms, to_ms)
        if start >= end:
            return None
        if (start, end) == (self.from_ms, self.to_ms):
            return self
        return msgspec.structs.replace(self, from_ms=start, to_ms=end)


class Total(msgspec.Struct, frozen=True, array_like=True):
    """Folded usage: what fell into one hour or, in closed books, one day (UTC), of one tenant, queue and model at one
    price, summed up exactly. In decimals, because these quantities know no bound.
    """

    from_ms: int
    """The beginning of the hour or day or, where prices changed within it, of these prices."""
    tenant: str
    queue: str
    model: str
    share_milli_ms: str
    memory_byte_ms: str
    billable_share_milli_ms: str
    """With the minimum billing period applied to each slice."""
    billable_memory_byte_ms: str
    entries: int
    """Those that ended within it."""


QUANTITIES = (
    "busy_milli_ms",
    "memory_byte_ms",
    "interval_ms",
    "up_bytes",
    "down_bytes",
    "energy_mj",
    "energy_interval_ms",
)
"""What is measured and added up, by the names that it has wherever it goes: from commands to invoices."""


class Observed(msgspec.Struct, frozen=True, array_like=True):
    """What was measured of one tenant's use on one day (UTC), beside what it reserved. Never charged."""

    tenant: str
    busy_milli_ms: str = "0"
    """Thousandths of a device's time that were busy, times milliseconds."""
    memory_byte_ms: str = "0"
    interval_ms: int = 0
    """Time measured, added up over slices."""
    day_start_ms: int = 0
    """Of the day on which it was reported: reports come within minutes."""
    up_bytes: str = "0"
    """From programs elsewhere to the processes that served their leases."""
    down_bytes: str = "0"
    energy_mj: str = "0"
    """That cards drew, in millijoules, where they count it."""
    energy_interval_ms: int = 0
    """Of `interval_ms`, the time of slices on such cards."""

    def plus(self, more: object) -> Observed:
        """With the QUANTITIES of something else, in its own types: what knows no bound are decimals."""
        sums = {name: int(getattr(self, name)) + int(getattr(more, name)) for name in QUANTITIES}
        return msgspec.structs.replace(self, **{name: type(getattr(self, name))(n) for name, n in sums.items()})
