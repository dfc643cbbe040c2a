"""Somebody else decides where: `Fits` says which nodes could take a request, `GrantOn` grants it there or refuses."""

from __future__ import annotations

import itertools
import random
import sys
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.holds import HoldCreated, HoldKind
from aliquot.coordinator.core.books.leases.facts import LeaseGranted, LeaseQueued
from aliquot.coordinator.core.books.leases.records import Lease, LeaseState
from aliquot.coordinator.core.books.maintenance import WindowSpec
from aliquot.coordinator.core.books.tenancy.specs import Amount, Quota, TenantSpec
from aliquot.coordinator.core.commands.queries import Fits
from aliquot.coordinator.core.decider import Decider
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.placement.survey import NodeFit
from aliquot.coordinator.core.state import State
from aliquot.coordinator.core.values.errors import (
    DomainError,
    IdempotencyMismatch,
    InvalidField,
    PlacementRefused,
    QuotaExceeded,
)
from aliquot.coordinator.core.values.types import Placement, RequestSpec, SlicePlan, Topology
from tests.core.harness import GIB, Books, node, request
from tests.core.invariants import check
from tests.placement import histories

_ids = itertools.count(1)


def pool(*specs: object, policy: str = "price") -> Books:
    books = Books(CoreConfig(policy=policy))
    for spec in specs or (node("one", agentless=True), node("two", 2, agentless=True)):
        books.do(c.DeclareNode(spec))  # type: ignore[arg-type]
    return books


def place(books: Books, spec: RequestSpec, *places: c.MemberPlace, **more: object) -> Lease:
    command = c.GrantOn(f"g-{next(_ids):013d}", spec, places, **more)  # type: ignore[arg-type]
    return books.state.leases[books.do(command).outcome.lease_id]


def fits(books: Books, spec: RequestSpec, *node_ids: str) -> dict[str, NodeFit]:
    return {fit.node_id: fit for fit in books.ask(Fits(spec, node_ids))}


def refusal(books: Books, spec: RequestSpec, *places: c.MemberPlace) -> PlacementRefused:
    with pytest.raises(PlacementRefused) as caught:
        place(books, spec, *places)
    return caught.value


def devices_of(lease: Lease) -> list[str]:
    return [piece.plan.device_uuid for piece in lease.slices]


# -- granted exactly there


def test_it_is_granted_on_the_node_that_was_chosen_and_the_engine_picks_devices_there() -> None:
    books = pool()
    lease = place(books, request(500), c.MemberPlace("n-two"))
    assert lease.state in (LeaseState.GRANTED, LeaseState.ACTIVE)
    assert [piece.plan.node_id for piece in lease.slices] == ["n-two"]


def test_it_is_granted_on_the_devices_that_were_chosen() -> None:
    books = pool()
    wanted = ("GPU-one-3", "GPU-one-1")
    lease = place(books, request(1000, count=2), c.MemberPlace("n-one", wanted))
    assert devices_of(lease) == list(wanted)


def test_each_member_of_a_gang_goes_where_it_was_put_also_beside_others() -> None:
    books = pool()
    places = (c.MemberPlace("n-two"), c.MemberPlace("n-one", ("GPU-one-2",)), c.MemberPlace("n-two"))
    lease = place(books, request(1000, gang_size=3), *places)
    assert [(piece.member, piece.plan.node_id) for piece in lease.slices] == [(0, "n-two"), (1, "n-one"), (2, "n-two")]
    assert devices_of(lease)[1] == "GPU-one-2"
    assert len(set(devices_of(lease))) == 3


def test_members_see_one_another() -> None:
    books = pool()
    why = refusal(books, request(1000, gang_size=3), *(c.MemberPlace("n-two") for _ in range(3)))
    assert why.obstacle == "UNAVAILABLE"
    assert not books.state.leases


def test_it_is_a_lease_like_any_other() -> None:
    books = pool(node("one"))
    books.connect(node("one"))
    lease = books.activate(place(books, request(300), c.MemberPlace("n-one")))
    assert lease.state is LeaseState.ACTIVE
    books.do(c.Release(lease.lease_id))
    books.report(lease, c.ReportStatus.GONE)
    assert books.again(lease).ended


# -- and nowhere else


def two_nodes() -> Books:
    """Both with room for anything that is put on one of them."""
    books = pool(node("one", 1), node("two", 2))
    books.connect(node("one", 1))
    books.connect(node("two", 2))
    return books


@pytest.mark.parametrize("status", [c.ReportStatus.FAILED, None])
def test_what_its_agent_refuses_or_never_confirms_ends_there(
    status: c.ReportStatus | None,
) -> None:
    books = two_nodes()
    lease = place(books, request(300), c.MemberPlace("n-one", ("GPU-one-0",)))
    if status is not None:
        books.report(lease, status)
    else:
        books.advance(books.config.confirm_timeout_ms)
        books.report(lease, c.ReportStatus.GONE)
    books.advance(60_000)
    lease = books.again(lease)
    assert (lease.ended, lease.end_reason, lease.requeues) == (True, "FAILED", 0)
    assert "nowhere else" in lease.end_detail


def test_what_was_preempted_or_drained_there_ends_too() -> None:
    books = two_nodes()
    preempted = books.activate(place(books, request(1000, preemptible=True), c.MemberPlace("n-one")))
    books.do(c.Cordon("n-two"))
    books.allocate(request(1000, priority=5))
    books.settle()
    assert books.again(preempted).state is LeaseState.PREEMPTING
    books.do(c.Cordon("n-two", cordoned=False))
    books.report(preempted, c.ReportStatus.GONE)
    drained = books.activate(place(books, request(1000, preemptible=True), c.MemberPlace("n-two", ("GPU-two-1",))))
    books.do(c.Cordon("n-two", drain=True))
    books.report(drained, c.ReportStatus.GONE)
    books.advance(60_000)
    ends = [(books.again(lease).end_reason, books.again(lease).requeues) for lease in (preempted, drained)]
    assert ends == [("PREEMPTED", 0), ("DRAINED", 0)]


def test_what_nobody_needs_any_more_stays_where_it_was_put() -> None:
    books = two_nodes()
    victim = books.activate(place(books, request(1000, preemptible=True), c.MemberPlace("n-one")))
    books.do(c.Cordon("n-two"))
    urgent = books.allocate(request(1000, priority=5))
    books.settle()
    books.do(c.Release(urgent.lease_id))
    assert books.again(victim).state is LeaseState.ACTIVE


def test_what_may_leave_its_place_is_not_put_on_one() -> None:
    books = two_nodes()
    for spec, field in ((request(movable=True), "movable"), (request(max_count=2), "min_count")):
        with pytest.raises(InvalidField, match=field):
            place(books, spec, c.MemberPlace("n-one"))


# -- asked twice


def test_the_same_again_is_the_same_lease_and_another_placement_is_refused() -> None:
    books = pool()
    spec = request(500)
    first = place(books, spec, c.MemberPlace("n-one"), key="k", body_sha256=b"body on n-one")
    assert place(books, spec, c.MemberPlace("n-one"), key="k", body_sha256=b"body on n-one").lease_id == first.lease_id
    with pytest.raises(IdempotencyMismatch):
        place(books, spec, c.MemberPlace("n-two"), key="k", body_sha256=b"body on n-two")
    with pytest.raises(IdempotencyMismatch):
        books.allocate(spec, key="k", body_sha256=b"body")


# -- or refused


def held(books: Books, uuid: str, share: int, memory_gib: int = 0) -> Lease:
    return place(books, request(share, memory_gib * GIB), c.MemberPlace(f"n-{uuid.split('-')[1]}", (uuid,)))


def test_what_stands_against_a_place_has_a_word() -> None:
    labelled = node("one", 2, agentless=True, labels=(("disk", "fast"),), best_tier=2)
    books = pool(labelled, node("h", 1, model="H100-80", memory_gib=80, agentless=True), node("dead", 1))
    books.do(c.DeclareNode(node("shut", 1, agentless=True)))
    books.do(c.Cordon("n-shut", reason="new fan"))
    held(books, "GPU-one-0", 800, 30)
    held(books, "GPU-one-1", 100, 30)
    whole = request(1000)
    one = c.MemberPlace("n-one")
    for spec, there, obstacle in (
        (whole, c.MemberPlace("n-none"), "NODE_UNKNOWN"),
        (whole, c.MemberPlace("n-one", ("GPU-h-0",)), "DEVICE_UNKNOWN"),
        (whole, c.MemberPlace("n-dead"), "NOT_READY"),
        (whole, c.MemberPlace("n-shut"), "CORDONED"),
        (request(1000, models=(("A100-40",),)), c.MemberPlace("n-h"), "OTHER_MODEL"),
        (request(1000, models=(("A100-40",),)), c.MemberPlace("n-h", ("GPU-h-0",)), "OTHER_MODEL"),
        (request(1000, vendor="amd"), one, "OTHER_VENDOR"),
        (request(0, mig_profile="1g.5gb"), one, "OTHER_PROFILE"),
        (request(100, 50 * GIB), one, "MEMORY_OVER_DEVICE"),
        (request(1000, pool="other"), one, "OTHER_POOL"),
        (request(1000, count=3), one, "TOO_FEW_DEVICES_ON_NODE"),
        (request(1000, count=2, topology=Topology.REQUIRE_ISLAND), one, "NO_ISLAND"),
        (request(100, node_selector=(("disk", "slow"),)), one, "SELECTOR"),
        (request(100, min_tier=4), one, "TIER"),
        (request(100, node_ids=("n-h",)), one, "NODE_LIST"),
        (request(100, avoid_node_ids=("n-one",)), one, "NODE_LIST"),
        (whole, one, "SHARE_HELD"),
        (request(500), c.MemberPlace("n-one", ("GPU-one-0",)), "SHARE_HELD"),
        (request(100, 20 * GIB), one, "MEMORY_HELD"),
        (request(100, 20 * GIB), c.MemberPlace("n-one", ("GPU-one-1",)), "MEMORY_HELD"),
        (request(300, 1 * GIB, count=2), one, "FRAGMENTED"),
    ):
        why = refusal(books, spec, there)
        assert why.obstacle == obstacle, (spec, there, str(why))
        assert len(str(why)) > len("node n: ")
        if not there.device_uuids:
            said = fits(books, spec, there.node_id)[there.node_id]
            assert (said.reason, said.score) == (obstacle, 0)
            assert said.detail in str(why)


def test_a_group_is_kept_apart() -> None:
    books = pool()
    spec = request(100, affinity_group="g", max_per_node=1)
    place(books, spec, c.MemberPlace("n-one"))
    assert refusal(books, spec, c.MemberPlace("n-one")).obstacle == "ANTI_AFFINITY"
    apart = request(100, gang_size=2, max_per_node=1)
    assert "this gang" in str(refusal(books, apart, c.MemberPlace("n-two"), c.MemberPlace("n-two")))
    place(books, spec, c.MemberPlace("n-two"))


def test_places_that_are_not_whole_are_refused() -> None:
    books = pool()
    with pytest.raises(InvalidField, match="1 places for 2 members"):
        place(books, request(1000, gang_size=2), c.MemberPlace("n-one"))
    with pytest.raises(InvalidField, match="1 devices for 2 slices"):
        place(books, request(1000, count=2), c.MemberPlace("n-one", ("GPU-one-0", "GPU-one-0")))


def test_devices_that_don_t_go_together_are_refused() -> None:
    spec = node("n", 4, agentless=True)
    islands = tuple(msgspec.structs.replace(d, nvlink_island=d.index // 2) for d in spec.devices)
    books = pool(msgspec.structs.replace(spec, devices=islands))
    wanted = request(1000, count=2, topology=Topology.REQUIRE_ISLAND)
    assert refusal(books, wanted, c.MemberPlace("n-n", ("GPU-n-1", "GPU-n-2"))).obstacle == "MISMATCH"
    assert devices_of(place(books, wanted, c.MemberPlace("n-n", ("GPU-n-2", "GPU-n-3")))) == ["GPU-n-2", "GPU-n-3"]


def test_a_limit_stands_against_it_as_against_any_other() -> None:
    books = pool()
    books.do(c.Apply(tenants=((TenantSpec("a", Quota(limit=Amount(1500, -1))), 0),)))
    place(books, request(1000), c.MemberPlace("n-one"))
    with pytest.raises(QuotaExceeded):
        place(books, request(1000), c.MemberPlace("n-one"))
    assert fits(books, request(1000), "n-one")["n-one"].reason == "FITS"
    place(books, request(500), c.MemberPlace("n-one"))


# -- what is kept for others


def reserved(books: Books, start_ms: int) -> Lease:
    """All of n-two is reserved for somebody who waits."""
    for uuid in ("GPU-two-0", "GPU-two-1"):
        held(books, uuid, 900)
    for uuid in ("GPU-one-0", "GPU-one-1", "GPU-one-2", "GPU-one-3"):
        held(books, uuid, 900)
    waits = books.allocate(request(1000, count=2))
    plans = tuple(SlicePlan("n-two", f"GPU-two-{i}", 1000, 40 * GIB) for i in range(2))
    fact = HoldCreated(
        at_ms=books.now_ms,
        owner=waits.lease_id,
        kind=HoldKind.RESERVATION,
        placement=Placement((plans,), ("n-two",)),
        expires_ms=books.now_ms + 1_000_000,
        start_ms=start_ms,
    )
    books.tell(fact)
    return waits


def test_what_is_kept_for_somebody_is_not_taken_but_by_what_ends_before() -> None:
    books = pool()
    reserved(books, books.now_ms + 100_000)
    part = request(100, 1 * GIB)
    assert fits(books, part)["n-two"].reason == "WITHHELD"
    assert refusal(books, part, c.MemberPlace("n-two")).obstacle == "WITHHELD"
    assert refusal(books, part, c.MemberPlace("n-two", ("GPU-two-1",))).obstacle == "WITHHELD"
    short = request(100, 1 * GIB, time_limit_ms=60_000)
    assert fits(books, short)["n-two"].reason == "FITS"
    assert devices_of(place(books, short, c.MemberPlace("n-two", ("GPU-two-1",)))) == ["GPU-two-1"]
    long = request(100, 1 * GIB, time_limit_ms=90_000)
    assert refusal(books, long, c.MemberPlace("n-two")).obstacle == "WITHHELD"


def test_a_node_that_closes_takes_what_ends_in_time() -> None:
    books = pool()
    start = datetime.fromtimestamp(books.now_ms // 1000 + 300, UTC).replace(tzinfo=None)
    end = start + timedelta(hours=1)
    books.do(c.DeclareMaintenance(WindowSpec("w", start.isoformat(), end.isoformat(), lead_ms=600_000, pool="default")))
    books.settle()
    long, short = request(100), request(100, time_limit_ms=60_000)
    assert fits(books, long)["n-one"].reason == "MAINTENANCE"
    why = refusal(books, long, c.MemberPlace("n-one", ("GPU-one-0",)))
    assert why.obstacle == "MAINTENANCE"
    assert "window w" in str(why)
    assert fits(books, short)["n-one"].reason == "FITS"
    assert devices_of(place(books, short, c.MemberPlace("n-one", ("GPU-one-2",)))) == ["GPU-one-2"]


def test_it_passes_those_who_wait_for_more_as_allocate_without_queueing_does() -> None:
    books = pool(node("one", 1, agentless=True))
    held(books, "GPU-one-0", 500)
    assert books.allocate(request(1000)).state is LeaseState.QUEUED
    books.settle()
    place(books, request(500), c.MemberPlace("n-one"))


# -- comparing nodes


def test_the_best_node_is_where_the_engine_would_place() -> None:
    rng = random.Random(3)
    books = Books()
    pool_ = histories.mixed_pool(30)
    for node_id in pool_.node_ids():
        spec = msgspec.structs.replace(pool_.node(node_id).spec, agentless=True)
        books.do(c.DeclareNode(spec))
    for _ in range(60):
        demand = msgspec.structs.replace(histories.random_demand(rng), gang_size=1, spread_domains=False)
        found = fits(books, RequestSpec(demand, "a"))
        best = max((fit.score for fit in found.values()), default=0)
        placement = books.decider.engine.place(demand)
        assert (placement is None) == (best == 0)
        if placement is not None:
            assert found[placement.node_ids[0]].score == best
            if demand.count:  # no lease holds nothing
                books.allocate(RequestSpec(demand, "a"))


def test_nodes_come_back_in_the_order_in_which_they_were_asked_about_also_twice() -> None:
    books = pool()
    found = books.ask(Fits(request(), ("n-two", "n-none", "n-one", "n-two")))
    assert [fit.node_id for fit in found] == ["n-two", "n-none", "n-one", "n-two"]
    assert [fit.reason for fit in found] == ["FITS", "NODE_UNKNOWN", "FITS", "FITS"]


def test_of_alternatives_the_preferred_model_is_the_better_node() -> None:
    books = pool(node("a", 1, agentless=True), node("h", 1, model="H100-80", memory_gib=80, agentless=True))
    found = fits(books, request(500, models=(("H100-80",), ("A100-40",))))
    assert found["n-h"].score > found["n-a"].score > 0


@pytest.mark.no_cover  # would more than double its time
@pytest.mark.parametrize("policy", ["price", "binpack", "spread"])
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 1 << 30))
def test_what_fits_is_granted_and_what_does_not_is_refused(policy: str, seed: int) -> None:
    rng = random.Random(seed)
    books = Books(CoreConfig(policy=policy))
    inventory = histories.mixed_pool(12)
    for node_id in inventory.node_ids():
        books.do(c.DeclareNode(msgspec.structs.replace(inventory.node(node_id).spec, agentless=True)))
    for _ in range(12):
        agree(books, RequestSpec(msgspec.structs.replace(histories.random_demand(rng), gang_size=1), "a"), rng)


def agree(books: Books, spec: RequestSpec, rng: random.Random) -> None:
    found = fits(books, spec)
    granted = [node_id for node_id, fit in found.items() if fit.score]
    for node_id, fit in found.items():
        try:
            decision = books.decider.decide(c.GrantOn("l-x", spec, (c.MemberPlace(node_id),)), books.now_ms)
        except DomainError as error:
            assert not fit.score, (node_id, str(error))
            assert isinstance(error, PlacementRefused)
            assert error.obstacle == fit.reason
        else:
            assert fit.score, (node_id, fit)
            assert [type(fact) for fact in decision.facts] == [LeaseQueued, LeaseGranted]
    if granted and spec.demand.count:
        place(books, spec, c.MemberPlace(rng.choice(granted)))


@pytest.mark.no_cover
@pytest.mark.parametrize("policy", ["price", "binpack"])
@settings(max_examples=15)
@given(seed=st.integers(0, 1 << 30))
def test_as_many_members_as_are_said_are_granted_one_after_another(policy: str, seed: int) -> None:
    rng = random.Random(seed)
    books = Books(CoreConfig(policy=policy))
    inventory = histories.mixed_pool(8)
    for node_id in inventory.node_ids():
        books.do(c.DeclareNode(msgspec.structs.replace(inventory.node(node_id).spec, agentless=True)))
    for _ in range(6):
        demand = msgspec.structs.replace(histories.random_demand(rng), gang_size=1)
        spec = RequestSpec(demand, "a")
        found = fits(books, spec)
        assert all((fit.members > 0) == (fit.score > 0) for fit in found.values())
        fitting = [fit for fit in found.values() if fit.score]
        if not fitting or demand.count != 1:
            continue  # several devices for each: which ones a policy takes may leave less
        said = rng.choice(fitting)
        granted = 0
        while granted <= said.members:
            command = c.GrantOn(f"g-{next(_ids):013d}", spec, (c.MemberPlace(said.node_id),))
            try:
                decision = books.decider.decide(command, books.now_ms)
            except PlacementRefused:
                break
            # Hundreds a node: what a grant changes is checked elsewhere after each, and here when all are made.
            books.decider.carry_out(decision, books.now_ms)
            granted += 1
        check(books.state)
        if len(demand.models) < 2:
            assert granted == said.members
        else:
            assert granted >= said.members  # then as another model


def test_members_of_several_devices_and_of_groups_are_counted_as_they_can_be_put() -> None:
    books = pool()
    held(books, "GPU-one-0", 800)
    for spec, members in (
        (request(250), 12),
        (request(1000), 3),
        (request(1000, count=2), 1),
        (request(500, count=2), 3),
        (request(250, max_per_node=2, affinity_group="g"), 2),
    ):
        assert fits(books, spec, "n-one")["n-one"].members == members
    place(books, request(250, affinity_group="g"), c.MemberPlace("n-one"))
    assert fits(books, request(250, max_per_node=2, affinity_group="g"), "n-one")["n-one"].members == 1


def calls_for(nodes: int, asked: int) -> int:
    """How many functions of Python are called to answer, once the engine knows the request."""
    decider = Decider(State.fresh())
    for command in (c.StartLeading(1), *(c.DeclareNode(node(f"{n:04d}", 2, agentless=True)) for n in range(nodes))):
        decider.carry_out(decider.decide(command, 1), 1)
    query = Fits(request(250, models=(("A100-40",),)), tuple(f"n-{n:04d}" for n in range(asked)))
    decider.answer(query, 1)
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        decider.answer(query, 1)
    finally:
        sys.setprofile(None)
    return calls


def test_what_it_costs_depends_on_the_nodes_asked_about_and_not_on_the_pool() -> None:
    few, many = calls_for(60, 50), calls_for(600, 50)
    assert many == few
    assert calls_for(600, 550) - many <= 3 * 500


def test_what_is_said_of_memory_is_about_devices_with_the_share() -> None:
    books = pool(node("one", 2, agentless=True))
    held(books, "GPU-one-0", 800, 10)
    held(books, "GPU-one-1", 100, 30)
    said = fits(books, request(300, 20 * GIB), "n-one")["n-one"]
    assert said.reason == "MEMORY_HELD"
    assert said.detail == "20.0Gi was asked for; devices with the share left have at most 10.0Gi"
