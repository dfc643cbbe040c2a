"""Who used what: what was reserved and for how long, from the leases, and peak use, from the agents."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from rich.table import Table

from aliquot.cli import _words as words
from aliquot.cli._table import table
from aliquot.cli.top.snapshot import observe
from aliquot.client import Lease, Pool
from aliquot.common.limits import GIB

SAMPLE_EVERY_S = 0.3


class PeakSampler:
    """Remembers the most memory that each slice was seen to use. Use it in a `with` block."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak-sampler", daemon=True)
        self.peak_bytes: dict[str, int] = {}
        self.now_bytes: dict[str, int | None] = {}
        """The use of the slices at the last sample."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._ending.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._ending.wait(SAMPLE_EVERY_S):
            self.now_bytes = observe(self._pool)
            for slice_id, observed_bytes in self.now_bytes.items():
                self.peak_bytes[slice_id] = max(self.peak_bytes.get(slice_id, 0), observed_bytes or 0)


@dataclass(frozen=True, slots=True)
class LeaseUsage:
    """One ended lease. Integers, as in a bill: thousandths of a device and bytes, times milliseconds."""

    tenant: str
    name: str
    lease_id: str
    gpu: str
    held_ms: int
    share_milli_ms: int
    reserved_byte_ms: int
    reserved_bytes: int
    peak_bytes: int
    outcome: str


def usage_of(lease: Lease, name: str, outcome: str, peaks: Mapping[str, int]) -> LeaseUsage:
    """The usage of an ended lease."""
    held_ms = max(0, lease.ended_ms - lease.granted_ms)
    share = sum(part.share_milli for part in lease.slices)
    reserved = sum(part.memory_bytes for part in lease.slices)
    return LeaseUsage(
        tenant=lease.tenant,
        name=name,
        lease_id=lease.lease_id,
        gpu=lease.gpu,
        held_ms=held_ms,
        share_milli_ms=share * held_ms,
        reserved_byte_ms=reserved * held_ms,
        reserved_bytes=reserved,
        peak_bytes=sum(peaks.get(part.slice_id, 0) for part in lease.slices),
        outcome=outcome,
    )


def usage_table(usages: Sequence[LeaseUsage]) -> Table:
    """By tenant, with sums."""
    made = table(
        "TENANT",
        "JOB",
        "ASKED FOR",
        ("HELD", "right"),
        ("GPU·S", "right"),
        ("GIB·S", "right"),
        ("RESERVED", "right"),
        ("PEAK REPORTED", "right"),
        "OUTCOME",
    )
    for tenant in sorted({usage.tenant for usage in usages}):
        own = [usage for usage in usages if usage.tenant == tenant]
        for usage in own:
            made.add_row(
                usage.tenant,
                usage.name,
                usage.gpu,
                f"{usage.held_ms / 1000:.1f}s",
                _gpu_seconds([usage]),
                _gib_seconds([usage]),
                words.amount(usage.reserved_bytes),
                words.amount(usage.peak_bytes),
                usage.outcome,
            )
        made.add_row(
            tenant,
            f"all {len(own)}",
            "",
            "",
            _gpu_seconds(own),
            _gib_seconds(own),
            "",
            "",
            "",
            style="bold",
            end_section=True,
        )
    return made


def _gpu_seconds(usages: Iterable[LeaseUsage]) -> str:
    return f"{sum(usage.share_milli_ms for usage in usages) / 1_000_000:.1f}"


def _gib_seconds(usages: Iterable[LeaseUsage]) -> str:
    return f"{sum(usage.reserved_byte_ms for usage in usages) / GIB / 1000:.0f}"
