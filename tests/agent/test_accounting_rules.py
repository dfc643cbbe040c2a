"""Whose memory it is: per slice, foreign, and what nobody accounts for."""

from __future__ import annotations

import pytest

from aliquot.agent.core.accounting import DeviceUsage, ProcessUse, account
from aliquot.agent.core.model import Holder, ProcessKey, Reservation, SliceSpec
from aliquot.agent.core.samples import MemorySample

UUID = "GPU-a"


def reservation(epoch: int = 1, *, lease: str = "l-1", limit: int = 100, share_milli: int = 250) -> Reservation:
    return Reservation(SliceSpec(f"{lease}.{epoch}.0", lease, epoch, UUID, share_milli, limit))


def use(pid: int, memory: int | None, *holders: Holder) -> ProcessUse:
    return ProcessUse(pid, ProcessKey(pid, 1), memory, holders)


def charged(found: DeviceUsage) -> list[str]:
    """Slices against which something counts."""
    return [piece.reservation.slice_id for piece in found.slices if piece.uses]


@pytest.mark.parametrize(
    ("epochs", "attached", "expected"),
    [((1, 2, 3), 2, 2), ((2, 3), 1, 2), ((3, 2), 1, 2), ((1, 3), 2, 3), ((1, 4), 2, 4), ((1, 2), 3, 2), ((2, 1), 3, 2)],
)
def test_a_process_counts_against_its_grant_else_the_next_later_else_the_latest_before(
    epochs: tuple[int, ...], attached: int, expected: int
) -> None:
    mine = use(5, 7, Holder("l-1", attached, 0))
    found = account(UUID, None, [mine], [reservation(epoch) for epoch in epochs])
    assert charged(found) == [f"l-1.{expected}.0"]
    assert not found.strays


def test_another_member_or_another_lease_is_a_stray() -> None:
    for holder in (Holder("l-1", 1, 1), Holder("l-2", 1, 0)):
        found = account(UUID, None, [use(5, 7, holder)], [reservation()])
        assert (charged(found), len(found.strays), found.foreign_bytes) == ([], 1, 7)


def test_where_the_memory_in_use_is_not_known_only_listed_processes_count() -> None:
    found = account(UUID, None, [use(5, 40), use(6, None)], [reservation()])
    assert (found.foreign_bytes, found.unattributed_bytes, found.used_bytes) == (40, None, None)


def test_processes_may_be_listed_with_more_than_is_in_use() -> None:
    found = account(UUID, MemorySample(1000, 0, 10), [use(5, 40)], [])
    assert (found.foreign_bytes, found.unattributed_bytes, found.used_bytes) == (40, 0, 10)


def test_a_share_of_all_that_a_partition_has_is_the_whole_of_it() -> None:
    record, mine = reservation(limit=10, share_milli=250), use(5, 30, Holder("l-1", 1, 0))
    assert account(UUID, None, [mine], [record], compute_milli=250).foreign_bytes == 0
    assert account(UUID, None, [mine], [record], compute_milli=251).foreign_bytes == 20


def test_only_slices_with_unknown_processes_explain_what_nobody_accounts_for() -> None:
    """And each as far as its limit has room: one that is beyond it makes no room for foreign memory to hide in."""
    known, other = Holder("l-1", 1, 0), Holder("l-2", 1, 0)
    records = [reservation(), reservation(lease="l-2", limit=60)]
    uses = [use(4, None), use(5, 40, known), use(6, 50, other), use(7, None, other)]
    assert account(UUID, MemorySample(1000, 0, 390), uses, records).foreign_bytes == 290
    uses[2] = use(6, 90, other)
    assert account(UUID, MemorySample(1000, 0, 430), uses, records).foreign_bytes == 300 + 30
    assert account(UUID, MemorySample(1000, 0, 430), uses[1:3], records, complete=False).foreign_bytes == 270
