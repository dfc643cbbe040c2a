"""Who is preempted: the fewest that are enough, who lose the least, and never those who may not be."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import LeaseState
from aliquot.coordinator.core.books.tenancy.specs import QueueSpec
from aliquot.coordinator.core.rules.preemption.exact import SLICES_MAX
from tests.core.harness import GIB, Books, node, request
from tests.preemption.asking import ask, leave, run, state_of
from tests.tenancy.declaring import declare


def test_lower_priority_gives_way_and_goes_back_to_its_place(books: Books) -> None:
    low = run(books, count=4, preemptible=True)
    books.advance(10_000)
    high = ask(books, count=2, priority=10)
    victim = books.again(low)
    assert victim.state is LeaseState.PREEMPTING
    assert victim.slices[0].deadline_ms == books.now_ms + low.request.grace_ms
    assert high.lease_id in victim.end_detail
    assert books.state.holds[high.lease_id].victims == (low.lease_id,)

    books.report(low, c.ReportStatus.GONE)
    newcomer = books.allocate(request(1000, tenant="z", count=4))
    assert newcomer.state is LeaseState.QUEUED, "what is freed is kept for the preemptor"
    books.settle()
    assert state_of(books, high) is LeaseState.GRANTED
    victim = books.again(low)
    assert victim.state is LeaseState.QUEUED
    assert (victim.arrival, victim.requeues, victim.preemptions) == (low.arrival, 1, 1)
    assert not books.state.holds


@pytest.mark.parametrize(
    ("victim", "preemptor"),
    [
        ({"preemptible": False}, {"priority": 10}),
        ({"preemptible": True}, {"priority": 0}),
        ({"preemptible": True, "priority": 10}, {"priority": 10}),
        ({"preemptible": True, "min_run_ms": 60_000}, {"priority": 10}),
        ({"preemptible": True}, {"priority": 10, "queue": "meek"}),
    ],
)
def test_these_are_never_victims(books: Books, victim: dict[str, Any], preemptor: dict[str, Any]) -> None:
    declare(books, QueueSpec("meek", preempts=False))
    running = run(books, count=4, **victim)
    books.advance(30_000)
    assert ask(books, **preemptor).state is LeaseState.QUEUED
    assert state_of(books, running) is LeaseState.ACTIVE


def test_a_minimum_run_time_is_waited_for(books: Books) -> None:
    running = run(books, count=4, preemptible=True, min_run_ms=60_000)
    ask(books, priority=10)
    books.advance(59_000)
    assert state_of(books, running) is LeaseState.ACTIVE
    books.advance(2_000)
    assert state_of(books, running) is LeaseState.PREEMPTING


def test_the_fewest_leases_then_the_least_lost_work(books: Books) -> None:
    old = run(books, 1000, preemptible=True)
    books.advance(100_000)
    pair = [run(books, 500, preemptible=True) for _ in range(2)]
    books.advance(1_000)
    young = run(books, 1000, preemptible=True)
    whole = run(books, 1000, preemptible=True, tenant="b")
    books.advance(1_000)
    ask(books, priority=1)
    assert state_of(books, young) is LeaseState.PREEMPTING or state_of(books, whole) is LeaseState.PREEMPTING
    assert [state_of(books, lease) for lease in (old, *pair)] == [LeaseState.ACTIVE] * 3


def test_one_lease_on_many_devices_is_cheaper_than_many_on_one(books: Books) -> None:
    books.connect(node("two"))
    books.settle()
    gang = run(books, count=4, preemptible=True)
    singles = [run(books, preemptible=True) for _ in range(4)]
    books.advance(60_000)
    ask(books, count=4, priority=1)
    assert state_of(books, gang) is LeaseState.PREEMPTING
    assert all(state_of(books, lease) is LeaseState.ACTIVE for lease in singles)


@pytest.mark.parametrize(("head_start_ms", "ends"), [(59_000, "half"), (61_000, "whole")])
def test_work_that_would_be_lost_is_a_share_for_a_time(head_start_ms: int, ends: str) -> None:
    """Half a device for twice the time is as much as a whole one."""
    books = Books()
    books.connect(node("one", 2))
    books.settle()
    half = run(books, 500, preemptible=True)
    run(books, 500)
    books.advance(head_start_ms)
    whole = run(books, 1000, preemptible=True)
    books.advance(60_000)
    ask(books, 500, priority=1)
    ending = {"half": half, "whole": whole}[ends]
    assert [lease for lease in (half, whole) if state_of(books, lease) is LeaseState.PREEMPTING] == [ending]


def test_nobody_is_ended_where_it_would_not_be_enough(books: Books) -> None:
    movable = run(books, count=2, preemptible=True)
    run(books, count=2, preemptible=False)
    assert ask(books, count=3, priority=10).state is LeaseState.QUEUED
    assert state_of(books, movable) is LeaseState.ACTIVE


def test_a_gang_gets_all_its_members_or_ends_nobody(books: Books) -> None:
    books.connect(node("two"))
    books.settle()
    low = [run(books, count=2, preemptible=True) for _ in range(4)]
    gang = ask(books, count=4, gang_size=2, priority=5)
    assert all(state_of(books, lease) is LeaseState.PREEMPTING for lease in low)
    for lease in low:
        leave(books, lease)
    assert state_of(books, gang) is LeaseState.GRANTED
    assert ask(books, count=4, gang_size=2, priority=4).state is LeaseState.QUEUED


def test_preemption_on_nodes_without_agents_takes_effect_at_once() -> None:
    books = Books()
    books.do(c.DeclareNode(node("plan", agentless=True)))
    books.settle()
    low = books.allocate(request(1000, count=4, preemptible=True))
    books.advance(1_000)
    high = ask(books, count=4, priority=1)
    assert high.state is LeaseState.GRANTED
    assert state_of(books, low) is LeaseState.QUEUED


def test_host_memory_is_counted_for_each_member_of_a_gang() -> None:
    books = Books()
    books.connect(node("one", host_memory_bytes=64 * GIB))
    books.settle()
    low = run(books, 250, gang_size=2, host_memory_bytes=24 * GIB, preemptible=True)
    run(books, 250, host_memory_bytes=8 * GIB)
    much = ask(books, 250, gang_size=2, host_memory_bytes=28 * GIB + 1, priority=5)
    assert (state_of(books, much), state_of(books, low)) == (LeaseState.QUEUED, LeaseState.ACTIVE)
    books.do(c.Release(much.lease_id))
    high = ask(books, 250, gang_size=2, host_memory_bytes=28 * GIB, priority=5)
    assert state_of(books, low) is LeaseState.PREEMPTING
    leave(books, low)
    assert state_of(books, high) is LeaseState.GRANTED


@pytest.mark.parametrize(("name", "unit"), [("cpu_milli", 1000), ("host_memory_bytes", GIB)])
@pytest.mark.parametrize("sizes", [(16, 32, 8), (32, 16, 16), (16, 16, 32)])
@pytest.mark.parametrize("count", [1, SLICES_MAX + 1])
def test_whoever_frees_most_of_the_host_ends_and_the_others_are_spared(
    name: str, unit: int, sizes: tuple[int, ...], count: int
) -> None:
    books = Books()
    books.connect(replace(node("one", SLICES_MAX + 1), **{name: 64 * unit}))
    books.settle()
    low = [run(books, 250, preemptible=True, **{name: size * unit}) for size in sizes]
    ask(books, 250, count=count, priority=5, **{name: (96 - sum(sizes)) * unit})
    ending = [size for size, lease in zip(sizes, low, strict=True) if state_of(books, lease) is LeaseState.PREEMPTING]
    assert ending == [32]


@pytest.mark.parametrize(("name", "unit"), [("cpu_milli", 1000), ("host_memory_bytes", GIB)])
def test_all_end_whose_part_of_the_host_the_members_of_a_gang_need(name: str, unit: int) -> None:
    books = Books()
    books.connect(replace(node("one"), **{name: 16 * unit}))
    books.settle()
    low = [run(books, 250, preemptible=True, **{name: 6 * unit}) for _ in range(2)]
    ask(books, 250, gang_size=2, priority=5, **{name: 7 * unit})
    assert [state_of(books, lease) for lease in low] == [LeaseState.PREEMPTING] * 2


@pytest.mark.parametrize(
    ("large", "small", "asked"),
    [((50, 30), (70, 3), (100, 40)), ((450, 2), (40, 5), (500, 2))],
    ids=["memory", "share"],
)
@pytest.mark.parametrize("count", [1, SLICES_MAX + 1])
def test_where_one_of_the_two_is_short_whoever_holds_most_of_it_ends(
    large: tuple[int, int], small: tuple[int, int], asked: tuple[int, int], count: int
) -> None:
    books = Books()
    books.connect(node("one", count, memory_gib=80))
    books.settle()
    most = run(books, large[0], memory_bytes=large[1] * GIB, preemptible=True)
    books.advance(60_000)
    others = [run(books, small[0], memory_bytes=small[1] * GIB, preemptible=True) for _ in range(11)]
    ask(books, asked[0], memory_bytes=asked[1] * GIB, count=count, priority=5)
    ending = [lease for lease in (most, *others) if state_of(books, lease) is LeaseState.PREEMPTING]
    assert ending == [most]


def test_room_is_made_for_more_members_than_an_exact_search_looks_at() -> None:
    books = Books()
    for number in range(SLICES_MAX + 1):
        books.connect(node(f"n{number}", 1))
    books.settle()
    low = [run(books, preemptible=True) for _ in range(SLICES_MAX + 1)]
    ask(books, gang_size=SLICES_MAX + 1, priority=5)
    assert {state_of(books, lease) for lease in low} == {LeaseState.PREEMPTING}


def test_of_those_on_one_device_the_fewest_end_whatever_the_number_of_devices() -> None:
    books = Books()
    books.connect(node("one", SLICES_MAX + 1))
    books.settle()
    large = run(books, 500, preemptible=True)
    books.advance(60_000)
    small = [run(books, 250, preemptible=True) for _ in range(2)]
    assert len({lease.slices[0].plan.device_uuid for lease in (large, *small)}) == 1
    ask(books, 500, count=SLICES_MAX + 1, priority=5)
    assert [lease for lease in (large, *small) if state_of(books, lease) is LeaseState.PREEMPTING] == [large]
