"""What follows for a tenant when leases of it end as OVER_LIMIT: a stronger tier, or nothing at all, for a while."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.common.tiers import Tier
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import Lease, LeaseState
from aliquot.coordinator.core.books.tenancy.specs import OnOverLimit, OverLimitAction
from aliquot.coordinator.core.commands.queries import Explain, ExplainLease
from aliquot.coordinator.core.evolve.snapshot import Snapshot, state_hash
from aliquot.coordinator.core.values.errors import InvalidField, NoCapacity, TenantHeldBack
from aliquot.coordinator.core.values.types import EndReason
from tests.core.harness import GIB, Books, node, request
from tests.tenancy.declaring import declare, queue, tenant

AN_HOUR_MS = 3_600_000
STRONGER = OnOverLimit(OverLimitAction.STRONGER_TIER)
REFUSE = OnOverLimit(OverLimitAction.REFUSE)
SOFT, HARD = "n-soft", "n-hard"


@pytest.fixture
def books() -> Books:
    """A node that only watches, which is the better fit, and one whose driver denies."""
    books = Books()
    books.connect(node("soft", 1, best_tier=Tier.WATCHDOG))
    return books


def with_hard_node(books: Books) -> None:
    books.connect(node("hard", 1, best_tier=Tier.DRIVER))
    books.settle()


def ask(books: Books, share_milli: int = 250, **more: object) -> Lease:
    lease = books.allocate(request(share_milli, **more))  # type: ignore[arg-type]
    books.settle()
    return books.again(lease)


def offend(books: Books, lease: Lease | None = None, *, asks: str = "a", queue: str = "") -> Lease:
    """A lease of the tenant is active, and will not keep to its limit."""
    lease = lease if lease is not None else ask(books, tenant=asks, queue=queue)
    if not lease.active_ms:
        books.activate(lease)
    books.report(lease, c.ReportStatus.FAILED, index=0, reason="OVER_LIMIT", detail="for 1900 ms")
    lease = books.again(lease)
    assert lease.end_reason == EndReason.OVER_LIMIT
    books.settle()
    return lease


def nodes_of(lease: Lease) -> set[str]:
    return {piece.plan.node_id for piece in lease.holding}


def test_nothing_follows_unless_it_is_declared(books: Books) -> None:
    offend(books)
    declare(books, tenant("a", on_over_limit=REFUSE))
    assert ask(books).state is LeaseState.GRANTED, "what was before the policy is not held against anybody"
    assert "a" not in books.state.tenancy.offences


def test_the_next_requests_go_where_a_tier_denies_to_any_program(books: Books) -> None:
    declare(books, tenant("a", on_over_limit=STRONGER))
    offend(books)
    waits = ask(books)
    assert waits.state is LeaseState.QUEUED, "there is no such device"
    assert nodes_of(ask(books, tenant="b")) == {SOFT}, "it is nobody else's offence"
    said = books.ask(ExplainLease(waits.lease_id))
    assert not said.impossible
    assert "held to the tier driver or a stronger one for 3600 s more" in said.summary
    with_hard_node(books)
    assert nodes_of(books.again(waits)) == {HARD}
    assert state_hash(books.replayed()) == state_hash(books.restored()) == state_hash(books.state)


@pytest.mark.parametrize("slices", [1, 2])
def test_a_lease_that_is_given_back_before_it_is_ended_is_held_against_its_tenant(books: Books, slices: int) -> None:
    """Its holder sees that its programs are gone as soon as the agent can say why."""
    declare(books, tenant("a", on_over_limit=REFUSE))
    books.connect(node("beside", 1, best_tier=Tier.WATCHDOG))
    lease = books.activate(ask(books, tenant="a", gang_size=slices))
    books.do(c.Release(lease.lease_id))
    books.report(lease, c.ReportStatus.FAILED, index=slices - 1, reason="OVER_LIMIT", detail="for 1900 ms")
    books.report(lease, c.ReportStatus.GONE)
    lease = books.again(lease)
    assert (lease.state, lease.end_reason) == (LeaseState.ENDED, EndReason.OVER_LIMIT)
    assert len(books.state.tenancy.offences["a"]) == 1
    with pytest.raises(TenantHeldBack):
        books.allocate(request(250, tenant="a"))
    assert state_hash(books.replayed()) == state_hash(books.state)


def test_it_waits_no_longer_than_the_offence_counts(books: Books) -> None:
    declare(books, tenant("a", on_over_limit=msgspec.structs.replace(STRONGER, for_ms=60_000)))
    offend(books)
    waits = ask(books)
    books.advance(59_999)
    assert books.again(waits).state is LeaseState.QUEUED
    books.advance(1)
    assert nodes_of(books.again(waits)) == {SOFT}
    assert not books.state.tenancy.offences, "what does not count any more is forgotten"


def test_whole_devices_and_stronger_demands_are_as_they_were(books: Books) -> None:
    declare(books, tenant("a", on_over_limit=STRONGER))
    offend(books)
    assert nodes_of(ask(books, 1000)) == {SOFT}, "nobody is beside a lease that has all of a device"
    with_hard_node(books)
    assert nodes_of(ask(books, min_tier=int(Tier.DRIVER))) == {HARD}


def test_without_a_queue_it_is_told_why_there_is_nothing(books: Books) -> None:
    declare(books, tenant("a", on_over_limit=STRONGER))
    offend(books)
    with pytest.raises(NoCapacity, match="1 lease of it ended as OVER_LIMIT"):
        books.allocate(request(250), no_queue=True)


def test_where_the_policy_says_so_nothing_is_granted(books: Books) -> None:
    declare(books, tenant("a", on_over_limit=REFUSE))
    over, waits = ask(books), ask(books, 1000)
    offend(books, over)
    assert books.again(waits).state is LeaseState.QUEUED, "what waited before is held back too"
    with pytest.raises(TenantHeldBack, match="granted nothing for 3600 s more") as refused:
        books.allocate(request(250))
    assert refused.value.until_ms == books.now_ms + AN_HOUR_MS
    assert "forgive" in refused.value.hint
    said = books.ask(Explain(request(250)))
    assert not said.impossible
    assert said.expected_start_ms == refused.value.until_ms
    books.advance(AN_HOUR_MS)
    assert books.again(waits).state is LeaseState.GRANTED


def test_the_same_request_again_gets_the_lease_that_it_had(books: Books) -> None:
    declare(books, tenant("a", on_over_limit=REFUSE))
    first = books.allocate(request(250), key="k", body_sha256=b"1")
    offend(books)
    assert books.allocate(request(250), key="k", body_sha256=b"1").lease_id == first.lease_id


def test_an_elastic_lease_does_not_grow_where_it_may_not_begin(books: Books) -> None:
    declare(books, tenant("a", on_over_limit=STRONGER))
    grows = books.activate(ask(books, min_count=1, max_count=3))
    offend(books, ask(books))
    books.advance(600_000)
    assert len(books.again(grows).holding) == 1
    books.advance(AN_HOUR_MS)
    assert len(books.again(grows).holding) > 1


def test_what_is_kept_for_a_request_is_not_used_against_the_policy(books: Books) -> None:
    declare(books, tenant("a", on_over_limit=REFUSE))
    over = ask(books)
    victim = books.activate(ask(books, 750, tenant="b", preemptible=True))
    waits = ask(books, 750, priority=10)
    assert books.again(victim).ending
    offend(books, over)
    books.report(victim, c.ReportStatus.GONE)
    books.settle()
    assert books.again(waits).state is LeaseState.QUEUED
    assert books.again(victim).state is LeaseState.GRANTED


def test_a_queue_speaks_for_tenants_that_say_nothing(books: Books) -> None:
    declare(
        books,
        queue("above", on_over_limit=REFUSE),
        queue("below", parent="above"),
        queue("mild", parent="above", on_over_limit=OnOverLimit()),
        tenant("trusted", on_over_limit=OnOverLimit()),
    )
    for name in ("guest", "trusted"):
        offend(books, asks=name, queue="below")
    with pytest.raises(TenantHeldBack):
        books.allocate(request(250, tenant="guest", queue="below"))
    assert ask(books, tenant="guest", queue="mild").state is LeaseState.GRANTED
    assert ask(books, tenant="trusted", queue="below").state is LeaseState.GRANTED


def test_an_end_counts_once_and_from_the_moment_it_is_decided(books: Books) -> None:
    """A lease of two slices that was over its limit on one of them is one offence, though its end takes a while."""
    declare(books, tenant("a", on_over_limit=msgspec.structs.replace(REFUSE, after=2)))
    books.connect(node("two", 1, best_tier=Tier.WATCHDOG))
    books.settle()
    over = offend(books, ask(books, gang_size=2))
    assert over.state is LeaseState.RELEASING
    books.report(over, c.ReportStatus.GONE)
    books.settle()
    assert len(books.state.tenancy.offences["a"]) == 1
    other = ask(books, gang_size=2)
    assert offend(books, other).state is LeaseState.RELEASING
    with pytest.raises(TenantHeldBack, match="2 leases of it"):
        books.allocate(request(250))


def test_an_administrator_forgives(books: Books) -> None:
    declare(books, tenant("a", on_over_limit=STRONGER))
    offend(books)
    waits = ask(books)
    assert books.do(c.Forgive("a")).outcome == 1
    books.settle()
    assert nodes_of(books.again(waits)) == {SOFT}
    assert books.do(c.Forgive("a")).outcome == 0
    assert state_hash(books.replayed()) == state_hash(books.state)


def test_a_policy_that_is_withdrawn_ends_what_followed_from_it(books: Books) -> None:
    declare(books, tenant("a", on_over_limit=STRONGER))
    offend(books)
    waits = ask(books)
    declare(books, tenant("a"))
    books.settle()
    assert nodes_of(books.again(waits)) == {SOFT}
    assert not books.state.tenancy.offences


def test_readers_see_it(books: Books) -> None:
    declare(books, tenant("a", on_over_limit=REFUSE))
    offend(books)
    view = books.read().tenancy(books.now_ms)
    assert [(shown.offences, shown.held_until_ms) for shown in view.tenants] == [(1, books.now_ms + AN_HOUR_MS)]
    assert [alert for alert in view.alerts if alert.startswith("TENANT_HELD: tenant a is granted nothing")]
    assert not books.read().tenancy(books.now_ms + AN_HOUR_MS).alerts


@pytest.mark.parametrize("wrong", [{"after": 0}, {"after": 17}, {"for_ms": 999}, {"min_tier": 2}, {"min_tier": 7}])
def test_what_makes_no_sense_is_not_declared(books: Books, wrong: dict[str, int]) -> None:
    policy = msgspec.structs.replace(STRONGER, **wrong)
    for spec in (tenant("a", on_over_limit=policy), queue("q", on_over_limit=policy)):
        with pytest.raises(InvalidField, match="on_over_limit"):
            declare(books, spec)


def test_a_snapshot_of_before_has_none() -> None:
    books = Books()
    old = msgspec.to_builtins(
        Snapshot(seq=1, now_ms=1, leader_epoch=1, next_arrival=1, leases=(), nodes=(), devices=(), ended=())
    )
    del old["offences"]
    assert msgspec.to_builtins(msgspec.convert(old, Snapshot))["offences"] == ()
    assert not books.state.tenancy.offences


@pytest.mark.no_cover  # would more than double its time
@given(
    after=st.integers(1, 16),
    for_s=st.integers(1, 100),
    gaps_s=st.lists(st.integers(0, 60), min_size=1, max_size=20),
    forgiven=st.integers(-1, 30),
    pauses_s=st.lists(st.integers(0, 150), max_size=6),
)
def test_at_any_time_it_is_held_back_while_so_many_count_and_not_longer(
    after: int, for_s: int, gaps_s: list[int], forgiven: int, pauses_s: list[int]
) -> None:
    """Against a count of the ends themselves; whatever was due, at replay as live."""
    books = Books()
    books.connect(node("soft", 1, best_tier=Tier.WATCHDOG))
    books.settle()
    policy = OnOverLimit(OverLimitAction.REFUSE, for_s * 1000, after)
    declare(books, queue("refuses", on_over_limit=policy))
    leases = [books.activate(ask(books, 30, memory_bytes=GIB, queue="refuses")) for _ in gaps_s]
    ends: list[int] = []

    def agrees() -> None:
        counted = sum(at_ms + for_s * 1000 > books.now_ms for at_ms in ends)
        try:
            lease = books.allocate(request(100, queue="refuses"))
        except TenantHeldBack as refused:
            assert counted >= after
            assert refused.until_ms == ends[-after] + for_s * 1000
        else:
            assert counted < after
            books.settle()
            assert books.again(lease).state is LeaseState.GRANTED
            books.do(c.Release(lease.lease_id))
            books.report(lease, c.ReportStatus.GONE)

    for number, gap_s in enumerate(gaps_s):
        books.advance(gap_s * 1000)
        agrees()
        if number == forgiven:
            books.do(c.Forgive("a"))
            ends.clear()
        offend(books, leases.pop())
        ends.append(books.now_ms)
    agrees()
    for pause_s in pauses_s:
        books.advance(pause_s * 1000)
        agrees()
    assert state_hash(books.replayed()) == state_hash(books.restored()) == state_hash(books.state)
