"""Elastic leases: they grow into what is idle, and give back before anybody is preempted."""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.elastic import LeaseGrown, LeaseShrinking, SlicesKept, members_of
from aliquot.coordinator.core.books.holds import PreemptionStarted
from aliquot.coordinator.core.books.leases.facts import LeaseReleasing
from aliquot.coordinator.core.books.leases.records import Lease, LeaseState, SliceState
from aliquot.coordinator.core.books.ledger.ledger import open_entries
from aliquot.coordinator.core.books.tenancy.specs import UNLIMITED, Amount, PoolSpec, Quota, TenantSpec
from aliquot.coordinator.core.commands.queries import Explain, ExplainLease
from aliquot.coordinator.core.deciding.admission.means import giving_back
from aliquot.coordinator.core.evolve.snapshot import state_hash
from aliquot.coordinator.core.values.errors import InvalidField
from tests.core.harness import GIB, Books, node, request
from tests.tenancy.declaring import declare, tenant

GROWTH_MS = 5_000
REST_MS = 30_000


@pytest.fixture
def books() -> Books:
    books = Books()
    books.connect(node("one", 4))
    return books


def start(books: Books, *, least: int = 0, most: int = 4, **more: Any) -> Lease:
    """An elastic lease of one device, up to four, that its agents have confirmed."""
    lease = books.allocate(request(min_count=least, max_count=most, **more))
    books.settle()
    return books.activate(lease)


def grow(books: Books, lease: Lease) -> Lease:
    """Let it grow as far as it can; its launcher acknowledges, and its agents confirm."""
    for _ in range(8):
        before = books.again(lease).shape
        books.advance(REST_MS)
        books.activate(lease)
        books.do(c.AcknowledgeShape(lease.lease_id, books.again(lease).shape))
        if books.again(lease).shape == before:
            break
    return books.again(lease)


def test_it_grows_into_what_is_idle_and_no_further_than_it_can_use(books: Books) -> None:
    lease = start(books, most=3)
    books.advance(GROWTH_MS)
    lease = books.again(lease)
    assert lease.state is LeaseState.ACTIVE, "what it had goes on while more is set up"
    assert [piece.state for piece in lease.current] == [SliceState.ACTIVE, SliceState.GRANTED, SliceState.GRANTED]
    assert lease.shape == 2, "what is gained in one go is one change"
    lease = grow(books, books.activate(lease))
    assert [piece.member for piece in lease.current] == [0, 1, 2]
    assert lease.lease_epoch == 1
    assert len({piece.slice_id for piece in lease.slices}) == 3


def test_it_does_not_grow_while_its_launcher_has_not_acknowledged(books: Books) -> None:
    other = books.activate(books.allocate(request(count=2)))
    lease = start(books)
    books.advance(GROWTH_MS)
    books.activate(lease)
    books.do(c.Release(other.lease_id))
    books.report(other, c.ReportStatus.GONE)
    books.advance(10 * REST_MS)
    assert len(books.again(lease).current) == 2
    books.do(c.AcknowledgeShape(lease.lease_id, books.again(lease).shape))
    books.settle()
    books.advance(GROWTH_MS)
    assert len(books.again(lease).current) == 4


def test_the_higher_priority_grows_first(books: Books) -> None:
    low, high = start(books, priority=1), start(books, priority=2)
    books.advance(GROWTH_MS)
    facts = [fact for fact in books.facts if isinstance(fact, LeaseGrown)]
    assert [fact.lease_id for fact in facts] == [high.lease_id] * 2
    equal = start(books, most=2, priority=1, tenant="b")  # gets one of those back
    books.advance(30_000)
    gone(books, high)
    books.settle()
    assert len(books.activate(equal).current) == 1
    assert len(books.again(low).current) == 1


def test_equals_grow_alike(books: Books) -> None:
    one, two = start(books), start(books)
    books.advance(GROWTH_MS)
    assert len(books.again(one).current) == len(books.again(two).current) == 2


def test_it_does_not_grow_into_what_is_kept_or_above_a_limit(books: Books) -> None:
    declare(books, tenant("a", limit=2))
    lease = grow(books, start(books))
    assert len(lease.current) == 2


def test_extra_members_are_given_back_to_whoever_waits(books: Books) -> None:
    lease = grow(books, start(books))
    assert len(lease.current) == 4
    other = books.allocate(request(count=2, tenant="b", priority=-5))
    books.settle()
    lease = books.again(lease)
    leaving = [piece for piece in lease.slices if piece.shed]
    assert [piece.state for piece in leaving] == [SliceState.PREEMPTING] * 2
    assert {piece.member for piece in leaving} == {2, 3}, "the highest numbers go, so that those that stay count from 0"
    assert lease.state is LeaseState.ACTIVE
    assert not any(isinstance(fact, PreemptionStarted | LeaseReleasing) for fact in books.facts)
    books.do(c.AcknowledgeShape(lease.lease_id, lease.shape))
    lease = books.again(lease)
    assert [piece.state for piece in lease.slices if piece.shed] == [SliceState.RELEASING] * 2
    gone(books, lease)
    books.settle()
    assert books.again(other).state is LeaseState.GRANTED
    assert len(books.again(lease).slices) == 2


def gone(books: Books, lease: Lease) -> None:
    """The agents say that what was given back is gone."""
    for piece in books.again(lease).slices:
        if piece.shed:
            said = c.SliceReport(piece.slice_id, piece.lease_epoch, c.ReportStatus.GONE)
            books.do(c.ReportSlices(piece.plan.node_id, books.sessions[piece.plan.node_id], (said,)))


def test_who_does_not_acknowledge_loses_them_anyway(books: Books) -> None:
    lease = grow(books, start(books, grace_ms=10_000))
    books.allocate(request(count=3, tenant="b"))
    books.settle()
    books.advance(9_999)
    assert [p.state for p in books.again(lease).slices if p.shed] == [SliceState.PREEMPTING] * 3
    books.advance(1)
    leaving = [piece for piece in books.again(lease).slices if piece.shed]
    assert [piece.state for piece in leaving] == [SliceState.RELEASING] * 3
    assert {piece.deadline_ms for piece in leaving} == {books.now_ms + 5_000}


def test_below_its_start_it_gives_back_to_a_higher_priority_only(books: Books) -> None:
    lease = start(books, least=2, most=4, gang_size=4)
    assert len(lease.current) == 4
    equal = books.allocate(request(tenant="b"))
    books.settle()
    assert not any(isinstance(fact, LeaseShrinking) for fact in books.facts)
    higher = books.allocate(request(count=2, tenant="b", priority=1))
    books.settle()
    assert {p.member for p in books.again(lease).slices if p.shed} == {2, 3}
    books.advance(30_000)
    gone(books, lease)
    books.settle()
    assert books.again(higher).state is LeaseState.GRANTED
    assert books.again(equal).waiting
    more = books.allocate(request(tenant="b", priority=1))
    books.settle()
    assert books.again(more).waiting, "it keeps its least, and never said that it may be preempted"


def test_only_as_much_as_is_needed_is_given_back(books: Books) -> None:
    lease = grow(books, start(books))
    books.allocate(request(500, tenant="b"))
    books.settle()
    assert [p.member for p in books.again(lease).slices if p.shed] == [3]


def test_nobody_needs_it_any_more(books: Books) -> None:
    lease = grow(books, start(books))
    other = books.allocate(request(count=2, tenant="b"))
    books.settle()
    books.do(c.Release(other.lease_id))
    books.settle()
    lease = books.again(lease)
    assert [piece.state for piece in lease.slices] == [SliceState.ACTIVE] * 4
    assert any(isinstance(fact, SlicesKept) for fact in books.facts)
    assert not books.state.ending


def test_a_tenants_own_growth_is_not_in_its_way(books: Books) -> None:
    declare(books, tenant("a", limit=3))
    lease = grow(books, start(books))
    assert len(lease.current) == 3
    own = books.allocate(request(tenant="a"))
    books.settle()
    assert [p.member for p in books.again(lease).slices if p.shed] == [2]
    books.settle()
    assert sum(p.shed for p in books.again(lease).slices) == 1, "asked once, not with every pass"
    books.advance(30_000)
    gone(books, lease)
    books.settle()
    assert books.again(own).state is LeaseState.GRANTED


def test_leases_of_others_are_not_in_the_way_of_ones_own_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many of them could give something back before one's own: a search looks at so many members."""
    monkeypatch.setattr(giving_back, "MEMBERS_MAX", 2)
    books = Books()
    books.connect(node("one", 8))
    declare(books, tenant("a", limit=3))
    grow(books, start(books, tenant="b"))
    own = grow(books, start(books, tenant="a", priority=1))
    assert len(own.current) == 3
    books.allocate(request(tenant="a", priority=1))
    books.settle()
    assert [piece.member for piece in books.again(own).slices if piece.shed] == [2], "the others are in no limit's way"


def test_what_is_missing_below_a_limit_is_given_back_to_the_last_byte(books: Books) -> None:
    limit = Amount(UNLIMITED, 40 * GIB - 1)
    declare(books, TenantSpec("a", Quota(limit=limit)))
    lease = grow(books, start(books, most=3, share_milli=250, memory_bytes=10 * GIB))
    assert len(lease.current) == 3
    books.allocate(request(250, 10 * GIB, tenant="a"))
    books.settle()
    assert [piece.member for piece in books.again(lease).slices if piece.shed] == [2]
    books.advance(60_000)
    assert [piece.state for piece in books.again(lease).slices if piece.shed] == [SliceState.RELEASING], "however late"


def test_nothing_is_given_back_for_what_a_pool_keeps_free(books: Books) -> None:
    lease = start(books, most=1)
    declare(books, PoolSpec("default", limit=Amount(3000, UNLIMITED)))
    other = books.allocate(request(count=3, tenant="b"))
    books.settle()
    assert books.again(other).waiting
    assert not any(piece.shed for piece in books.again(lease).slices)


def test_growth_uses_up_nobodys_guarantee(books: Books) -> None:
    declare(books, tenant("a", guaranteed=2), tenant("b", guaranteed=2))
    lease = grow(books, start(books))
    assert len(lease.current) == 4
    owed = books.allocate(request(count=2, tenant="b"))
    books.settle()
    books.advance(30_000)
    gone(books, lease)
    books.settle()
    assert books.again(owed).state is LeaseState.GRANTED
    assert len(books.again(lease).current) == 2
    own = books.allocate(request(tenant="a"))
    books.settle()
    books.advance(30_000)
    gone(books, lease)
    books.settle()
    assert books.again(own).state is LeaseState.GRANTED


def test_an_extra_member_that_fails_is_dropped_and_the_rest_goes_on(books: Books) -> None:
    lease = start(books, most=2)
    books.advance(GROWTH_MS)
    books.report(lease, c.ReportStatus.FAILED, index=1, reason="ECC")
    lease = books.again(lease)
    assert lease.state is LeaseState.ACTIVE
    assert len(lease.slices) == 1
    books.do(c.AcknowledgeShape(lease.lease_id, lease.shape))
    books.advance(REST_MS)
    assert len(books.again(lease).current) == 2
    assert books.again(lease).avoid_device_uuids[0] not in {p.plan.device_uuid for p in books.again(lease).current}


def test_a_member_that_is_never_confirmed_is_given_up(books: Books) -> None:
    lease = start(books, most=2)
    books.advance(GROWTH_MS)
    books.advance(30_000)
    assert [piece.state for piece in books.again(lease).slices] == [SliceState.ACTIVE, SliceState.RELEASING]
    assert books.again(lease).state is LeaseState.ACTIVE


def test_a_rigid_lease_still_fails_as_a_whole(books: Books) -> None:
    lease = books.activate(books.allocate(request(count=2)))
    books.report(lease, c.ReportStatus.FAILED, index=1, reason="ECC")
    assert books.again(lease).end_reason == "FAILED"


def test_where_no_agent_is_notice_and_billing_are_the_same() -> None:
    books = Books()
    books.do(c.DeclareNode(node("bare", 2, agentless=True)))
    lease = books.allocate(request(max_count=2, grace_ms=10_000))
    books.advance(GROWTH_MS)
    assert len(books.again(lease).current) == 2
    books.advance(20_000)
    other = books.allocate(request(tenant="b"))
    books.settle()
    books.advance(10_000)
    assert books.again(other).state is LeaseState.GRANTED
    open_now = open_entries(books.state.leases.values(), lambda _: "default", books.now_ms)
    held = sum(entry.share_milli_ms for entry in (*books.state.ledger.entries, *open_now) if entry.tenant == "a")
    assert held == 1000 * (35_000 + 30_000), "one device for 35 s, the other from its growth to the end of its notice"


def test_an_acknowledgement_of_an_older_shape_stops_nothing(books: Books) -> None:
    lease = grow(books, start(books))
    old = lease.shape
    books.allocate(request(tenant="b"))
    books.settle()
    books.do(c.AcknowledgeShape(lease.lease_id, old))
    assert [p.state for p in books.again(lease).slices if p.shed] == [SliceState.PREEMPTING]
    with pytest.raises(InvalidField):
        books.do(c.AcknowledgeShape(lease.lease_id, old + 7))


def test_replay_and_snapshot_give_the_same_books_in_the_middle_of_it(books: Books) -> None:
    lease = grow(books, start(books))
    books.allocate(request(count=2, tenant="b"))
    books.settle()
    assert state_hash(books.replayed()) == state_hash(books.state)
    books.start(books.restored())
    books.advance(30_000)
    assert [p.state for p in books.again(lease).slices if p.shed] == [SliceState.RELEASING] * 2
    assert list(members_of(books.again(lease))) == [0, 1]


def test_why_says_what_would_be_given_back_and_when_it_can_start_then(books: Books) -> None:
    grow(books, start(books, grace_ms=10_000))
    asked = request(count=2, tenant="b")
    for query in (Explain(asked), ExplainLease(books.allocate(asked).lease_id)):
        found = books.ask(query)
        assert found.expected_start_ms == books.now_ms + 15_000
        assert not found.would_preempt
        assert "elastic leases give back 2 slices" in found.notes[-1]
        books.settle()


def test_a_whole_lease_may_go_while_it_gives_something_back(books: Books) -> None:
    lease = grow(books, start(books))
    waiting = books.allocate(request(count=2, tenant="b"))
    books.settle()
    books.do(c.Release(lease.lease_id))
    assert not any(piece.shed for piece in books.again(lease).slices)
    books.report(lease, c.ReportStatus.GONE)
    books.settle()
    assert books.again(lease).ended
    assert books.again(waiting).state is LeaseState.GRANTED


def over(books: Books, lease: Lease) -> None:
    """A lease is released, and its agents say that it is gone."""
    books.do(c.Release(lease.lease_id))
    for piece in books.again(lease).slices:
        said = c.SliceReport(piece.slice_id, piece.lease_epoch, c.ReportStatus.GONE)
        books.do(c.ReportSlices(piece.plan.node_id, books.sessions[piece.plan.node_id], (said,)))


def test_a_search_in_vain_rests_however_much_is_freed_and_is_made_again_then(
    books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = grow(books, start(books, most=3))
    rigid = books.allocate(request())
    books.settle()
    books.activate(rigid)
    books.connect(node("two", 1))
    searches: list[int] = []
    search = giving_back._search

    def counted(*args: Any, **more: Any) -> Any:
        searches.append(books.now_ms)
        return search(*args, **more)

    monkeypatch.setattr(giving_back, "_search", counted)
    other = books.allocate(request(count=3, tenant="b"))
    books.settle()
    assert len(searches) == 1
    for _ in range(20):
        small = books.allocate(request(100, node_ids=("n-two",)))
        books.settle()
        over(books, books.activate(small))
        books.advance(10)
    assert len(searches) == 1, "it is made at most once a second, by equal requests together"
    over(books, rigid)
    books.advance(1_000)
    assert len([piece for piece in books.again(lease).slices if piece.shed]) == 2
    books.do(c.AcknowledgeShape(lease.lease_id, books.again(lease).shape))
    gone(books, lease)
    books.settle()
    assert books.again(other).state is LeaseState.GRANTED


def test_a_member_that_its_agent_never_confirmed_is_not_active_after_a_reprieve(books: Books) -> None:
    lease = start(books, most=2, preemptible=True)
    books.advance(GROWTH_MS)
    assert [piece.state for piece in books.again(lease).slices] == [SliceState.ACTIVE, SliceState.GRANTED]
    other = books.allocate(request(count=4, tenant="b", priority=5))
    books.settle()
    assert books.again(lease).state is LeaseState.PREEMPTING
    books.do(c.Release(other.lease_id))
    books.settle()
    lease = books.again(lease)
    assert lease.state is LeaseState.PREEMPTING, "it is granted again when its agents have let go"
    books.report(lease, c.ReportStatus.GONE)
    books.settle()
    assert books.again(lease).state is LeaseState.GRANTED


def two_nodes() -> tuple[Books, Lease]:
    """An elastic lease with two members, each on a node of its own."""
    books = Books()
    for name in ("one", "two"):
        books.connect(node(name, 1))
    lease = grow(books, start(books, most=2))
    assert {piece.plan.node_id for piece in lease.current} == {"n-one", "n-two"}
    return books, lease


def test_a_node_that_is_drained_has_its_members_back_with_notice_and_the_rest_goes_on() -> None:
    books, lease = two_nodes()
    books.do(c.Cordon("n-two", drain=True, grace_ms=7_000))
    lease = books.again(lease)
    assert lease.state is LeaseState.ACTIVE
    assert [(p.plan.node_id, p.deadline_ms) for p in lease.slices if p.shed] == [("n-two", books.now_ms + 7_000)]
    books.advance(7_000)
    gone(books, lease)
    assert [piece.plan.node_id for piece in books.again(lease).slices] == ["n-one"]
    books.do(c.Cordon("n-one", drain=True))
    assert books.again(lease).end_reason == "DRAINED", "its least is all that is left"


def test_a_node_that_is_lost_for_good_takes_its_members_along_and_no_more() -> None:
    for leaving in (False, True):
        books, lease = two_nodes()
        (second,) = [piece for piece in lease.current if piece.plan.node_id == "n-two"]
        if leaving:
            books.allocate(request(tenant="b", node_ids=("n-two",)))
            books.settle()
            assert books.again(lease).find(second.slice_id).shed  # type: ignore[union-attr]
        books.do(c.NodeSilent("n-two", books.sessions["n-two"], lost=True))
        books.do(c.RemoveNode("n-two", force=True))
        assert books.again(lease).state is LeaseState.ACTIVE
        assert [piece.plan.node_id for piece in books.again(lease).slices] == ["n-one"]
        assert state_hash(books.replayed()) == state_hash(books.state)


def test_a_guarantee_can_be_reclaimed_from_a_lease_that_is_giving_something_back(books: Books) -> None:
    """Otherwise its owner would wait for one notice after the other, longer than it was promised."""
    declare(books, tenant("b", guaranteed=4))
    lease = grow(books, start(books))
    first = books.allocate(request(tenant="b"))
    books.settle()
    assert sum(piece.shed for piece in books.again(lease).slices) == 1
    whole = books.allocate(request(count=3, tenant="b"))
    books.settle()
    lease = books.again(lease)
    assert lease.state is LeaseState.PREEMPTING
    assert max(piece.deadline_ms for piece in lease.slices) <= books.now_ms + 30_000
    books.report(lease, c.ReportStatus.GONE)
    books.settle()
    assert books.again(first).state is books.again(whole).state is LeaseState.GRANTED
    assert state_hash(books.replayed()) == state_hash(books.state)


def test_what_is_given_back_goes_at_once_where_the_grant_is_given_up(books: Books) -> None:
    lease = books.allocate(request(gang_size=4, min_count=2, max_count=4))
    for index in (1, 2, 3):
        books.report(lease, c.ReportStatus.ACTIVE, index=index)  # the first one's agent says nothing
    books.advance(20_000)
    other = books.allocate(request(count=2, tenant="b", priority=5))
    books.settle()
    assert [piece.state for piece in books.again(lease).slices if piece.shed] == [SliceState.PREEMPTING] * 2
    books.advance(books.config.confirm_timeout_ms - 20_000)
    assert books.again(lease).waiting
    assert {piece.state for piece in books.again(lease).holding} == {SliceState.RELEASING}
    books.do(c.Release(other.lease_id))  # nobody needs its devices any more: what has been told to go goes
    books.settle()
    assert not [fact for fact in books.facts if isinstance(fact, SlicesKept)]
    books.report(lease, c.ReportStatus.GONE)
    books.settle()
    assert not [piece for piece in books.again(lease).holding if piece.lease_epoch == 1]
