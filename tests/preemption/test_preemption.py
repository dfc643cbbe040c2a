"""Who is preempted, who never is, and what becomes of the capacity."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from aliquot.coordinator.agents.desired import nodes_to_tell
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.config import CoreConfig
from aliquot.coordinator.core.holds import evolve, readiness
from aliquot.coordinator.core.holds.facts import HoldBroken, HoldCreated
from aliquot.coordinator.core.leases.records import Lease, LeaseState
from aliquot.coordinator.core.preemption.facts import PreemptionStarted
from aliquot.coordinator.core.tenancy.specs import QueueSpec
from tests.core.harness import GIB, Books, node, request
from tests.tenancy.declaring import declare, queue, tenant


@pytest.fixture
def books() -> Books:
    books = Books()
    books.connect(node("one"))
    books.settle()
    return books


def run(books: Books, share: int = 1000, **more: object) -> Lease:
    """A lease that is granted and confirmed."""
    lease = books.allocate(request(share, **more))  # type: ignore[arg-type]
    books.settle()
    assert books.again(lease).state is LeaseState.GRANTED
    return books.activate(books.again(lease))


def ask(books: Books, share: int = 1000, **more: object) -> Lease:
    """A request, and what follows from it at once."""
    lease = books.allocate(request(share, **more))  # type: ignore[arg-type]
    books.settle()
    return books.again(lease)


def leave(books: Books, lease: Lease) -> None:
    """The agents say that the lease's processes are gone."""
    books.report(lease, c.ReportStatus.GONE)
    books.settle()


def state_of(books: Books, lease: Lease) -> LeaseState:
    return books.again(lease).state


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


def test_a_preemptor_that_goes_away_reprieves_its_victims(books: Books) -> None:
    low = run(books, count=4, preemptible=True)
    high = ask(books, count=4, priority=10)
    assert state_of(books, low) is LeaseState.PREEMPTING
    books.do(c.Release(high.lease_id))
    assert state_of(books, low) is LeaseState.ACTIVE
    assert books.again(low).preemptions == 0
    assert not books.state.holds
    books.do(c.Release(low.lease_id))
    assert state_of(books, low) is LeaseState.RELEASING


def test_a_victim_that_has_begun_to_go_is_not_called_back(books: Books) -> None:
    low = run(books, count=2, preemptible=True)
    run(books, count=2)
    high = ask(books, count=2, priority=10)
    books.report(low, c.ReportStatus.GONE, index=0)
    books.do(c.Release(high.lease_id))
    assert state_of(books, low) is LeaseState.PREEMPTING
    leave(books, low)
    assert state_of(books, low) is LeaseState.GRANTED


def test_capacity_that_comes_free_elsewhere_spares_the_victims(books: Books) -> None:
    books.connect(node("two"))
    books.settle()
    other = run(books, count=4)
    low = run(books, count=4, preemptible=True)
    high = ask(books, count=4, priority=10)
    assert state_of(books, low) is LeaseState.PREEMPTING
    books.do(c.Release(other.lease_id))
    leave(books, other)
    assert state_of(books, high) is LeaseState.GRANTED
    assert state_of(books, low) is LeaseState.ACTIVE


def test_a_lost_node_breaks_the_hold_and_it_is_decided_again(books: Books) -> None:
    books.connect(node("two"))
    books.settle()
    run(books, count=4, preemptible=True)
    run(books, count=4, preemptible=True)
    books.advance(1_000)
    high = ask(books, count=4, priority=10)
    first = books.state.holds[high.lease_id].placement.node_ids[0]
    books.do(c.NodeSilent(first, books.sessions[first], lost=True))
    books.settle()
    assert any(isinstance(fact, HoldBroken) for fact in books.facts)
    assert books.state.holds[high.lease_id].placement.node_ids[0] != first


@pytest.mark.parametrize("touches", range(4))
def test_a_node_that_returns_with_other_devices_is_looked_at_anew(touches: int) -> None:
    books = Books()
    books.connect(node("one", 1))
    run(books, preemptible=True)
    books.connect(node("two", 1))
    run(books)  # nobody may end this one
    books.advance(10_000)
    waiting = ask(books, gang_size=2, priority=9)  # whom one of the two would end is remembered
    books.do(c.NodeSilent("n-one", books.sessions["n-one"], lost=True))
    books.do(c.RemoveNode("n-one", force=True))
    returned = replace(node("one", 1), devices=node("other", 1).devices)
    books.connect(returned)
    for number in range(touches):  # up to as many changes as it had seen when it was looked at
        books.do(c.DeclareNode(replace(returned, labels=(("rack", f"r{number}"),))))
    books.settle()
    other = ask(books, gang_size=2, priority=9, tenant="b")
    assert state_of(books, other) is state_of(books, waiting) is LeaseState.QUEUED


def test_a_hold_does_not_outlive_its_time(books: Books) -> None:
    low = run(books, count=4, preemptible=True, grace_ms=10_000)
    high = ask(books, count=4, priority=10)
    expires_ms = books.state.holds[high.lease_id].expires_ms
    assert expires_ms == books.now_ms + 10_000 + books.config.hold_slack_ms
    books.advance(expires_ms - books.now_ms)
    assert high.lease_id not in books.state.holds or books.state.holds[high.lease_id].created_ms == books.now_ms
    assert state_of(books, low) in (LeaseState.ACTIVE, LeaseState.PREEMPTING)


def test_the_same_lease_is_not_preempted_again_and_again() -> None:
    books = Books(CoreConfig(preemptions_max=2, preemption_period_ms=3_600_000))
    books.connect(node("one"))
    books.settle()
    low = run(books, count=4, preemptible=True)
    for _ in range(2):
        high = ask(books, count=4, priority=10)
        leave(books, low)
        assert state_of(books, high) is LeaseState.GRANTED
        books.do(c.Release(high.lease_id))
        leave(books, high)
    assert books.again(low).preemptions == 2
    assert state_of(books, low) is LeaseState.QUEUED, "it waits until it can stay"
    books.advance(3_600_000)
    assert state_of(books, low) is LeaseState.GRANTED


def test_a_tenant_bounds_how_often_it_is_disturbed(books: Books) -> None:
    declare(books, tenant("a", disruptions_max=1, disruption_period_ms=600_000))
    leases = [run(books, preemptible=True, tenant="a") for _ in range(4)]
    ask(books, priority=10, tenant="b")
    ask(books, priority=10, tenant="b")
    victims = [lease for lease in leases if state_of(books, lease) is LeaseState.PREEMPTING]
    assert len(victims) == 1
    leave(books, victims[0])
    books.advance(599_000)
    assert sum(books.again(lease).preemptions for lease in leases) == 1
    books.advance(2_000)
    assert sum(books.again(lease).preemptions for lease in leases) == 2


def test_preemption_on_nodes_without_agents_takes_effect_at_once() -> None:
    books = Books()
    books.do(c.DeclareNode(node("plan", agentless=True)))
    books.settle()
    low = books.allocate(request(1000, count=4, preemptible=True))
    books.advance(1_000)
    high = ask(books, count=4, priority=1)
    assert high.state is LeaseState.GRANTED
    assert state_of(books, low) is LeaseState.QUEUED


# -- reclaiming a guarantee


def test_an_owner_that_comes_back_gets_its_guarantee_within_a_minute(books: Books) -> None:
    declare(books, tenant("owner", 3))
    borrowed = [run(books, tenant="guest", priority=900, min_run_ms=10**7, grace_ms=10**7) for _ in range(4)]
    asked_ms = books.now_ms
    wanted = ask(books, count=3, tenant="owner")
    assert wanted.state is LeaseState.QUEUED
    books.advance(books.config.reclaim_min_run_ms)
    victims = [lease for lease in borrowed if state_of(books, lease) is LeaseState.PREEMPTING]
    assert len(victims) == 3
    assert books.again(victims[0]).slices[0].deadline_ms - asked_ms < 60_000
    for lease in victims:
        leave(books, lease)
    assert state_of(books, wanted) is LeaseState.GRANTED
    started = [fact for fact in books.facts if isinstance(fact, PreemptionStarted)]
    assert [fact.reclaim for fact in started] == [True]


def test_beyond_its_guarantee_an_owner_reclaims_nothing(books: Books) -> None:
    declare(books, tenant("owner", 2))
    run(books, count=2, tenant="guest")
    run(books, count=2, tenant="owner")
    books.advance(60_000)
    assert ask(books, tenant="owner").state is LeaseState.QUEUED
    assert not any(isinstance(fact, PreemptionStarted) for fact in books.facts)


def test_what_a_guarantee_covers_is_out_of_reach_even_of_high_priority(books: Books) -> None:
    declare(books, tenant("owner", 2), tenant("other", 2))
    kept = run(books, count=2, tenant="owner", preemptible=True)
    lent = run(books, count=2, tenant="owner", preemptible=True)
    books.advance(60_000)
    assert ask(books, count=2, tenant="other", priority=900).state is LeaseState.QUEUED
    assert state_of(books, lent) is LeaseState.PREEMPTING
    leave(books, lent)
    assert ask(books, tenant="vip", priority=1000).state is LeaseState.QUEUED
    assert state_of(books, kept) is LeaseState.ACTIVE


def test_a_reservation_is_made_for_the_head_and_short_leases_fit_in_before_it(books: Books) -> None:
    books.connect(node("two"))
    books.settle()
    long = run(books, count=4, time_limit_ms=3_600_000)
    run(books, count=3, time_limit_ms=7_200_000)
    big = ask(books, count=4)
    books.advance(300_000)
    ask(books, count=4, tenant="b")
    holds = [fact for fact in books.facts if isinstance(fact, HoldCreated)]
    assert [fact.owner for fact in holds] == [big.lease_id]
    assert holds[0].start_ms == long.granted_ms + 3_600_000
    assert {plan.node_id for plan in holds[0].placement.members[0]} == {long.slices[0].plan.node_id}
    books.do(c.Release(long.lease_id))
    books.report(long, c.ReportStatus.GONE)
    one = ask(books)
    assert one.state is LeaseState.GRANTED, "what is not reserved is for everybody"
    assert state_of(books, big) is LeaseState.GRANTED


def test_backfill_uses_reserved_devices_only_until_their_owner_can_start(books: Books) -> None:
    run(books, count=3, time_limit_ms=3_600_000)
    big = ask(books, count=4)
    books.advance(300_000)
    short = ask(books, tenant="b", time_limit_ms=600_000)
    assert big.lease_id in books.state.holds
    assert short.state is LeaseState.GRANTED
    leave_ms = short.granted_ms + 600_000
    assert leave_ms < books.state.holds[big.lease_id].start_ms
    books.advance(600_000)
    leave(books, short)
    long = ask(books, tenant="c", time_limit_ms=3_600_000)
    assert long.state is LeaseState.QUEUED, "it would delay the head"
    assert ask(books, tenant="d").state is LeaseState.QUEUED, "nobody knows when it ends"


def test_borrowers_below_a_limit_end_for_whoever_is_owed_a_guarantee(books: Books) -> None:
    declare(books, tenant("owner", 2), queue("shared", 0, 3))
    borrowed = [run(books, tenant="guest", queue="shared", grace_ms=10**7) for _ in range(3)]
    books.advance(books.config.reclaim_min_run_ms)
    wanted = [books.allocate(request(1000, tenant="owner", queue="shared")) for _ in range(3)]
    books.settle()
    victims = [lease for lease in borrowed if state_of(books, lease) is LeaseState.PREEMPTING]
    assert len(victims) == 2, "the third is not covered, and one device was idle all the time"
    assert books.again(victims[0]).slices[0].deadline_ms <= books.now_ms + books.config.reclaim_grace_ms
    for lease in victims:
        leave(books, lease)
    assert [state_of(books, lease) for lease in wanted] == [LeaseState.GRANTED] * 2 + [LeaseState.QUEUED]


def test_room_below_a_limit_is_made_for_the_first_of_equals_where_there_is_none_for_all(books: Books) -> None:
    declare(books, tenant("owner", 2), queue("shared", 0, 3))
    endable = run(books, tenant="guest", queue="shared")
    books.advance(books.config.reclaim_min_run_ms)
    young = [run(books, tenant="guest", queue="shared", min_run_ms=10**7) for _ in range(2)]
    for _ in range(2):
        books.allocate(request(1000, tenant="owner", queue="shared"))
    books.settle()
    assert state_of(books, endable) is LeaseState.PREEMPTING
    assert [state_of(books, lease) for lease in young] == [LeaseState.ACTIVE] * 2, "they have not run their time yet"


def test_equal_requests_do_not_wait_for_one_another_s_victims(books: Books) -> None:
    declare(books, tenant("owner", 3))
    for _ in range(4):
        run(books, tenant="guest")
    books.advance(books.config.reclaim_min_run_ms)
    wanted = [books.allocate(request(1000, tenant="owner")) for _ in range(4)]
    books.settle()
    assert [lease.lease_id in books.state.holds for lease in wanted] == [True] * 3 + [False]


def test_a_long_notice_is_cut_short_for_whoever_is_owed_a_guarantee(books: Books) -> None:
    declare(books, tenant("owner", 4))
    borrowed = run(books, count=4, tenant="guest", grace_ms=10**7)
    books.advance(books.config.reclaim_min_run_ms)
    books.do(c.Release(borrowed.lease_id))
    before = books.again(borrowed)
    assert before.slices[0].deadline_ms == books.now_ms + 10**7
    ask(books, count=4, tenant="owner")
    assert {piece.deadline_ms for piece in books.again(borrowed).slices} == {books.now_ms + 30_000}
    assert state_of(books, borrowed) is LeaseState.RELEASING
    assert set(nodes_to_tell(before, books.again(borrowed))) == {"n-one"}, "its agent hears of it"
    assert books.restored().leases == books.state.leases


def test_a_victim_gains_no_time_by_being_released(books: Books) -> None:
    declare(books, tenant("owner", 4))
    borrowed = run(books, count=4, tenant="guest", grace_ms=10**7)
    books.advance(books.config.reclaim_min_run_ms)
    ask(books, count=4, tenant="owner")
    deadline_ms = books.again(borrowed).slices[0].deadline_ms
    books.do(c.Release(borrowed.lease_id))
    assert {piece.deadline_ms for piece in books.again(borrowed).slices} == {deadline_ms}


def test_what_is_kept_for_a_borrower_gives_way_to_a_guarantee(books: Books) -> None:
    declare(books, tenant("owner", 4))
    low = run(books, count=4, tenant="guest", preemptible=True, grace_ms=10**7)
    books.advance(books.config.reclaim_min_run_ms)
    high = ask(books, count=4, tenant="guest", priority=10)
    assert books.state.holds[high.lease_id].start_ms == books.now_ms + 10**7
    wanted = ask(books, count=4, tenant="owner")
    assert list(books.state.holds) == [wanted.lease_id]
    assert books.again(low).slices[0].deadline_ms == books.now_ms + 30_000
    leave(books, low)
    assert state_of(books, wanted) is LeaseState.GRANTED
    assert state_of(books, high) is LeaseState.QUEUED


def test_a_hold_is_looked_at_once_for_what_changes_on_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    books = Books()
    books.connect(node("one", 8, cpu_milli=64_000))
    low = run(books, count=8, cpu_milli=1_000, preemptible=True)
    books.advance(10_000)
    high = ask(books, count=8, cpu_milli=1_000, priority=10)
    assert len(books.state.holds[high.lease_id].device_uuids) == 8
    books.report(low, c.ReportStatus.GONE, index=0)
    right, looks = readiness.is_complete, 0

    def is_complete(*asked: Any) -> bool:
        nonlocal looks
        looks += 1
        return right(*asked)

    monkeypatch.setattr(evolve, "is_complete", is_complete)
    leave(books, low)
    assert books.again(high).state is LeaseState.GRANTED
    assert looks == 7 + 1, "for each slice that goes, and for the member that goes with the last"


def all_leave(books: Books, leases: list[Lease]) -> int:
    """Those of them that are told to go do so, and whoever gets their devices begins. How many preemptions there have
    been of them all.
    """
    for lease in leases:
        if state_of(books, lease) is LeaseState.PREEMPTING:
            leave(books, lease)
    for lease in tuple(books.state.leases.values()):
        if lease.state is LeaseState.GRANTED:
            books.activate(lease)
    return sum(books.again(lease).preemptions for lease in leases)


def test_each_disruption_of_a_budget_comes_back_in_its_own_time(books: Books) -> None:
    declare(books, tenant("a", disruptions_max=2, disruption_period_ms=600_000))
    leases = [run(books, preemptible=True, tenant="a") for _ in range(4)]
    for wait_ms, total in ((0, 1), (100_000, 2), (0, 2), (0, 2), (499_999, 2), (1, 3), (99_999, 3), (1, 4)):
        books.advance(wait_ms)
        if wait_ms in (0, 100_000):
            ask(books, priority=10, tenant="b")
        assert all_leave(books, leases) == total


def test_who_needs_more_than_is_left_of_a_budget_has_it_once_it_is_back(books: Books) -> None:
    declare(books, tenant("a", disruptions_max=2, disruption_period_ms=600_000))
    leases = [run(books, preemptible=True, tenant="a") for _ in range(4)]
    ask(books, priority=10, tenant="b")
    assert all_leave(books, leases) == 1
    ask(books, count=2, priority=10, tenant="b")
    for wait_ms, total in ((0, 1), (599_999, 1), (1, 3)):
        books.advance(wait_ms)
        assert all_leave(books, leases) == total, "never more than two within ten minutes"


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


def test_whoever_frees_most_host_memory_ends_and_the_others_are_spared() -> None:
    books = Books()
    books.connect(node("one", host_memory_bytes=64 * GIB))
    books.settle()
    sizes = (16, 32, 8)
    low = [run(books, 250, host_memory_bytes=size * GIB, preemptible=True) for size in sizes]
    ask(books, 250, host_memory_bytes=40 * GIB, priority=5)
    assert [state_of(books, lease) for lease in low] == [LeaseState.ACTIVE, LeaseState.PREEMPTING, LeaseState.ACTIVE]


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


def test_where_one_tenants_budget_is_too_small_others_give_way_elsewhere() -> None:
    books = Books()
    for name in ("one", "two"):
        books.connect(node(name, 2))
    books.settle()
    declare(books, tenant("a", disruptions_max=1))
    old = [run(books, preemptible=True, tenant="c") for _ in range(2)]
    books.advance(60_000)
    cheap = [run(books, preemptible=True, tenant="a") for _ in range(2)]
    ask(books, count=2, priority=10, tenant="b")
    assert [state_of(books, lease) for lease in (*old, *cheap)] == [LeaseState.PREEMPTING] * 2 + [LeaseState.ACTIVE] * 2


@pytest.mark.parametrize("left", [1, 2])
def test_where_one_tenants_budget_is_too_small_others_give_way_on_the_same_device(left: int) -> None:
    """Two leases of one tenant would be the cheapest; as many of them end as its budget allows."""
    books = Books()
    books.connect(node("one", 1))
    books.settle()
    declare(books, tenant("a", disruptions_max=left))
    old = [run(books, 250, preemptible=True, tenant="c") for _ in range(2)]
    books.advance(60_000)
    cheap = [run(books, 250, preemptible=True, tenant="a") for _ in range(2)]
    books.advance(60_000)
    ask(books, 500, priority=10, tenant="b")
    ends = [sum(state_of(books, lease) is LeaseState.PREEMPTING for lease in some) for some in (old, cheap)]
    assert ends == [2 - left, left]


def test_other_nodes_are_preferred_to_dearer_leases_where_a_budget_is_too_small() -> None:
    books = Books()
    for name in ("one", "two"):
        books.connect(node(name, 1))
    books.settle()
    declare(books, tenant("a", disruptions_max=1))
    dear = [run(books, 250, preemptible=True, tenant="c", node_ids=("n-one",)) for _ in range(2)]
    books.advance(60_000)
    others = [run(books, 500, preemptible=True, tenant="d", node_ids=("n-two",)) for _ in range(2)]
    books.advance(30_000)
    cheap = [run(books, 250, preemptible=True, tenant="a", node_ids=("n-one",)) for _ in range(2)]
    books.advance(30_000)
    ask(books, 1000, memory_bytes=0, priority=10, tenant="b", node_ids=("n-one", "n-two"))
    assert [state_of(books, lease) for lease in others] == [LeaseState.PREEMPTING] * 2
    assert {state_of(books, lease) for lease in (*dear, *cheap)} == {LeaseState.ACTIVE}


@pytest.mark.parametrize(("name", "unit"), [("cpu_milli", 1000), ("host_memory_bytes", GIB)])
def test_all_end_whose_part_of_the_host_the_members_of_a_gang_need(name: str, unit: int) -> None:
    books = Books()
    books.connect(replace(node("one"), **{name: 16 * unit}))
    books.settle()
    low = [run(books, 250, preemptible=True, **{name: 6 * unit}) for _ in range(2)]
    ask(books, 250, gang_size=2, priority=5, **{name: 7 * unit})
    assert [state_of(books, lease) for lease in low] == [LeaseState.PREEMPTING] * 2


def test_who_was_preempted_too_often_may_start_all_the_same_where_a_guarantee_covers_it() -> None:
    books = Books(CoreConfig(preemptions_max=1, preemption_period_ms=3_600_000))
    books.connect(node("one"))
    books.settle()
    low = run(books, count=4, preemptible=True, tenant="a")
    high = ask(books, count=4, priority=10, tenant="b")
    leave(books, low)
    books.do(c.Release(high.lease_id))
    leave(books, high)
    assert state_of(books, low) is LeaseState.QUEUED
    declare(books, tenant("a", 4))
    books.settle()
    assert state_of(books, low) is LeaseState.GRANTED
