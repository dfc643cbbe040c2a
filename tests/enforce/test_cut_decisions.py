"""When the coordinator has a card cut, and when it leaves it alone: on the core itself, all invariants checked."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aliquot.common.tiers import Tier
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.ledger.folding import DAY_MS
from aliquot.coordinator.core.books.ledger.invoice import make_invoice
from aliquot.coordinator.core.books.ledger.rates import ModelRate, RateCard
from aliquot.coordinator.core.books.nodes import CutOrdered, CutSettled
from aliquot.coordinator.core.books.tenancy.limits import capacity_kept
from aliquot.coordinator.core.books.tenancy.specs import UNLIMITED, Amount, Quota, TenantSpec
from aliquot.coordinator.core.commands.queries import ExplainLease
from aliquot.coordinator.core.evolve.snapshot import state_hash
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.values.errors import NeverFits, QuotaExceeded
from aliquot.coordinator.core.values.types import Cut, CutState, DeviceSpec, MigCard, MigPart, MigProfile, NodeSpec
from tests.core.harness import GIB, Books, node, request
from tests.tenancy.declaring import declare

CONFIG = CoreConfig()
PROFILES = (
    MigProfile("1g.5gb", 1, (0, 1, 2, 3, 4, 5, 6), 5 * GIB, 1),
    MigProfile("2g.10gb", 2, (0, 2, 4), 10 * GIB, 2),
    MigProfile("3g.20gb", 4, (0, 4), 20 * GIB, 3),
    MigProfile("7g.40gb", 8, (0,), 40 * GIB, 7),
)
MEMORY = {profile.name: profile.memory_bytes for profile in PROFILES}


def card(name: str, *parts: tuple[str, int]) -> MigCard:
    """A card cut in this way; its parts' UUIDs say what they are, as a driver's do."""
    there = tuple(MigPart(profile, start, f"MIG-{name}-{profile}-{start}") for profile, start in parts)
    return MigCard(f"GPU-{name}", "A100-40", PROFILES, there)


def node_of(name: str, *cards: MigCard) -> NodeSpec:
    """A node whose cards may be cut."""
    devices = tuple(
        DeviceSpec(
            part.uuid,
            "A100-40",
            MEMORY[part.profile],
            mig_profile=part.profile,
            parent_uuid=each.uuid,
            compute_milli=int(part.profile[0]) * 1000 // 7,
            best_tier=Tier.MIG,
        )
        for each in cards
        for part in each.parts
    )
    return NodeSpec(f"n-{name}", name, devices, cards=cards)


def ask(books: Books, profile: str, **more: object) -> Lease:
    """A request by profile."""
    return books.allocate(request(1000, mig_profile=profile, ttl_ms=0, **more))  # type: ignore[arg-type]


def orders(books: Books) -> list[Cut]:
    """Those under way."""
    return [cut for node in books.state.nodes.values() for cut in node.cuts if cut.state is CutState.ORDERED]


def answer(books: Books, name: str, cut: Cut, problem: str = "") -> None:
    """The agent has carried an order out, or not; it registers anew if its devices are others now."""
    node_id = f"n-{name}"
    spec = books.state.nodes[node_id].spec
    if not problem:
        cards = tuple(
            card(each.uuid.removeprefix("GPU-"), *((part.profile, part.start) for part in cut.parts))
            if each.uuid == cut.card_uuid
            else each
            for each in spec.cards
        )
        books.connect(node_of(name, *cards))
    books.do(c.ReportCut(node_id, books.sessions[node_id], cut.card_uuid, cut.number, problem))
    books.settle()


def why(books: Books, lease: Lease) -> str:
    explained = books.ask(ExplainLease(lease.lease_id))
    return "; ".join((explained.summary, *explained.notes))


def test_a_card_is_cut_only_when_somebody_has_waited_and_least_is_destroyed() -> None:
    books = Books(CONFIG)
    books.connect(node_of("a", card("a1", ("1g.5gb", 0), ("1g.5gb", 1))))
    books.connect(node_of("b", card("b1", ("3g.20gb", 0))))
    books.settle()
    lease = ask(books, "3g.20gb")
    assert books.again(lease).holding, "a part that fits is taken, nothing is cut"
    second = ask(books, "3g.20gb")
    books.advance(CONFIG.cut_patience_ms - 1_000)
    assert not orders(books)
    assert "when it has waited" in why(books, second)
    books.advance(1_000 + CONFIG.cut_look_ms)
    (cut,) = orders(books)
    assert cut.lost_uuids == (), "there was room beside what is there"
    assert cut.lease_id == second.lease_id
    assert "is being cut for it" in why(books, second)
    books.advance(30_000)
    assert orders(books) == [cut], "one order is enough"
    answer(books, cut.card_uuid[4], cut)
    assert books.again(second).holding
    assert not orders(books)


def test_nothing_is_placed_on_parts_that_go_and_they_are_given_back_when_the_cut_fails() -> None:
    books = Books(CONFIG)
    books.connect(node_of("a", card("a1", ("1g.5gb", 0), ("1g.5gb", 6))))
    whole = ask(books, "7g.40gb")
    books.advance(CONFIG.cut_patience_ms + CONFIG.cut_look_ms)
    (cut,) = orders(books)
    assert len(cut.lost_uuids) == 2
    small = ask(books, "1g.5gb")
    assert not books.again(small).holding, "both parts are about to go"
    assert state_hash(books.replayed()) == state_hash(books.state) == state_hash(books.restored())
    assert books.restored().inventory.device(cut.lost_uuids[0]).withheld_for == "the cut of GPU-a1"
    answer(books, "a", cut, problem="1g.5gb from 0 is in use")
    assert books.again(small).holding
    assert "could not be cut: 1g.5gb from 0 is in use" in why(books, whole)


def test_a_card_rests_after_a_cut_and_twice_as_long_after_each_failure() -> None:
    books = Books(CONFIG)
    books.connect(node_of("a", card("a1")))
    waiting = ask(books, "7g.40gb")
    books.advance(CONFIG.cut_patience_ms + CONFIG.cut_look_ms)
    for failures in range(4):
        (cut,) = orders(books)
        assert cut.failures == failures
        answer(books, "a", cut, problem="the driver refuses")
        rest_ms = CONFIG.cut_rest_ms << failures
        assert f"may be tried again in {rest_ms // 1000} s" in why(books, waiting)
        books.advance(rest_ms - 1_000)
        assert not orders(books)
        books.advance(1_000 + CONFIG.cut_look_ms)
    (cut,) = orders(books)
    answer(books, "a", cut)
    assert not orders(books)
    lease = ask(books, "3g.20gb")
    books.advance(CONFIG.cut_patience_ms + CONFIG.cut_look_ms)
    assert not orders(books), "it was cut just now, and what came of it is in use"
    assert "no card was found to be cut" in why(books, lease)


def test_an_order_that_nobody_answers_has_failed() -> None:
    books = Books(CONFIG)
    books.connect(node_of("a", card("a1")))
    ask(books, "7g.40gb")
    books.advance(CONFIG.cut_patience_ms + CONFIG.cut_look_ms)
    (cut,) = orders(books)
    books.advance(CONFIG.cut_timeout_ms)
    assert not orders(books)
    (settled,) = [fact for fact in books.facts if isinstance(fact, CutSettled)]
    assert "did not answer" in settled.problem
    before = len(books.facts)
    books.do(c.ReportCut("n-a", books.sessions["n-a"], cut.card_uuid, cut.number))
    assert len(books.facts) == before, "an answer that comes too late settles nothing"


def test_what_is_in_use_foreign_sick_or_kept_stays() -> None:
    books = Books(CONFIG)
    books.connect(node_of("a", card("a1", ("1g.5gb", 0)), card("a2", ("1g.5gb", 3)), card("a3", ("2g.10gb", 4))))
    books.settle()
    used = ask(books, "2g.10gb")
    assert books.again(used).holding
    books.do(c.ReportDevice("n-a", 1, "MIG-a1-1g.5gb-0", GIB, True))
    books.do(c.ReportDevice("n-a", 1, "MIG-a2-1g.5gb-3", 0, False, "XID 79"))
    ask(books, "7g.40gb")
    books.advance(CONFIG.cut_patience_ms + CONFIG.cut_look_ms)
    assert not orders(books)
    books.do(c.ReportDevice("n-a", 1, "MIG-a1-1g.5gb-0", 0, True))
    books.advance(CONFIG.cut_look_ms)
    (cut,) = orders(books)
    assert cut.card_uuid == "GPU-a1"


def test_a_gang_is_given_all_its_cards_at_once_or_none() -> None:
    books = Books(CONFIG)
    books.connect(node_of("a", card("a1")))
    books.connect(node_of("b", card("b1"), card("b2", ("1g.5gb", 0))))
    three = ask(books, "7g.40gb", gang_size=3)
    books.advance(CONFIG.cut_patience_ms + CONFIG.cut_look_ms)
    cuts = orders(books)
    assert {cut.card_uuid for cut in cuts} == {"GPU-a1", "GPU-b1", "GPU-b2"}
    assert len({fact.at_ms for fact in books.facts if isinstance(fact, CutOrdered)}) == 1
    b1, b2 = (next(cut for cut in cuts if cut.card_uuid == f"GPU-b{number}") for number in (1, 2))
    answer(books, "a", next(cut for cut in cuts if cut.card_uuid == "GPU-a1"))
    answer(books, "b", b1)
    assert not books.again(three).holding
    answer(books, "b", b2)
    assert len(books.again(three).holding) == 3


def test_constraints_of_the_request_decide_where_is_cut() -> None:
    books = Books(CONFIG)
    books.connect(node_of("a", card("a1")))
    books.connect(replace(node_of("b", card("b1")), labels=(("zone", "z"),)))
    ask(books, "7g.40gb", node_selector=(("zone", "z"),))
    books.advance(CONFIG.cut_patience_ms + CONFIG.cut_look_ms)
    (cut,) = orders(books)
    assert cut.card_uuid == "GPU-b1"


def test_a_node_that_stops_offering_its_cards_is_left_alone() -> None:
    books = Books(CONFIG)
    books.connect(node_of("a", card("a1", ("1g.5gb", 0))))
    lease = ask(books, "7g.40gb")
    books.connect(replace(node_of("a", card("a1", ("1g.5gb", 0))), cards=()))
    books.advance(CONFIG.cut_patience_ms + CONFIG.cut_look_ms)
    assert not orders(books)
    assert not books.state.cutting
    assert books.again(lease).waiting


def test_with_many_nodes_each_look_goes_on_where_the_last_one_ended() -> None:
    books = Books(CONFIG)
    full = [("1g.5gb", start) for start in range(7)]
    for number in range(70):
        books.connect(node_of(f"{number}", card(f"{number}-", *full)))
        books.do(c.ReportDevice(f"n-{number}", 1, f"MIG-{number}--1g.5gb-0", GIB, True))
    books.connect(node_of("last", card("last", *full)))
    lease = ask(books, "7g.40gb")
    books.advance(CONFIG.cut_patience_ms)
    for _ in range(4):
        books.advance(CONFIG.cut_look_ms)
    (cut,) = orders(books)
    assert (cut.card_uuid, cut.lease_id) == ("GPU-last", lease.lease_id)


def part(books: Books, share_milli: int, memory_gib: int = 0, **more: object) -> Lease:
    """A request by share and memory that asks for the tier mig."""
    wanted = {"min_tier": Tier.MIG, "ttl_ms": 0} | more
    return books.allocate(request(share_milli, memory_gib * GIB, **wanted))  # type: ignore[arg-type]


def test_a_card_is_cut_for_a_request_by_share_and_it_is_charged_the_profile() -> None:
    books = Books(CONFIG)
    books.connect(node_of("a", card("a1", ("1g.5gb", 0))))
    books.settle()
    lease = part(books, 250, 10)
    assert books.again(lease).waiting
    said = why(books, lease)
    assert "no part of a card is a 2g.10gb now, but cards here can be cut so" in said
    assert "served by a 2g.10gb of A100-40, and charged for all of that: 0.285 of the compute and 10.0Gi" in said
    books.advance(CONFIG.cut_patience_ms + CONFIG.cut_look_ms)
    (cut,) = orders(books)
    assert [each.profile for each in cut.parts] == ["1g.5gb", "2g.10gb"]
    assert "is being cut for it" in why(books, lease)
    answer(books, "a", cut)
    (piece,) = books.again(lease).holding
    assert (piece.plan.share_milli, piece.plan.memory_bytes) == (285, 10 * GIB)
    assert books.again(lease).request.demand.share_milli == 250, "what was asked for is kept as it was"


def test_an_instance_that_is_there_is_used_first_and_what_fits_no_card_is_refused() -> None:
    books = Books(CONFIG)
    books.connect(node_of("a", card("a1", ("2g.10gb", 4))))
    books.settle()
    assert books.again(part(books, 200, 6)).holding
    books.advance(CONFIG.cut_patience_ms + CONFIG.cut_look_ms)
    assert not orders(books)
    with pytest.raises(NeverFits):
        part(books, 300, 41)


def test_the_same_figures_are_in_capacity_quotas_and_bills() -> None:
    books = Books(CONFIG)
    books.now_ms = 20 * DAY_MS
    books.connect(node_of("a", card("a1", ("2g.10gb", 0), ("2g.10gb", 2), ("3g.20gb", 4))))
    books.do(c.Apply(rates=RateCard("EUR", (ModelRate("A100-40", 2_000_000, 10_000),))))
    declare(books, TenantSpec(name="a", quota=Quota(limit=Amount(500, UNLIMITED))))
    books.settle()
    assert capacity_kept(books.state.inventory, books.state.nodes) == Amount(2 * 285 + 428, 40 * GIB)
    first, second = (books.again(part(books, 250, 10, tenant="a")) for _ in range(2))
    assert first.holding
    assert second.waiting, "twice 0.285 is above the limit, twice 0.25 would not be"
    assert "holds 0.285 devices and may hold 0.5; 0.285 more were asked for" in why(books, second)
    with pytest.raises(QuotaExceeded, match="1 more"):
        part(books, 600, 10, tenant="a")
    assert books.state.tenancy.account("t", "a").share_milli == 285
    books.activate(first)
    books.now_ms += 3_600_000
    extract = books.read().extract("a", 0, 1 << 50, books.now_ms)
    assert make_invoice(extract).total_micro == round(2_000_000 * 0.285 + 10_000 * 10)


def test_a_lease_that_was_granted_before_parts_were_known_keeps_what_it_holds() -> None:
    books = Books(CONFIG)
    told = node_of("a", card("a1", ("2g.10gb", 0), ("2g.10gb", 2)))
    silent = replace(told, devices=tuple(replace(device, compute_milli=1000) for device in told.devices))
    books.connect(silent)
    lease = ask(books, "2g.10gb")
    (piece,) = books.again(lease).holding
    assert piece.plan.share_milli == 1000
    held = c.SliceReport(piece.slice_id, piece.lease_epoch, c.ReportStatus.ACTIVE, Tier.MIG)
    books.connect(told, (held,))
    assert state_hash(books.replayed()) == state_hash(books.state) == state_hash(books.restored())
    books.do(c.Release(lease.lease_id))
    books.report(lease, c.ReportStatus.GONE)
    books.connect(told)
    assert {device.compute_milli for device in books.state.nodes["n-a"].spec.devices} == {285}


def test_a_request_by_share_preempts_who_holds_the_instance_that_serves_it() -> None:
    books = Books(CONFIG)
    books.connect(replace(node_of("a", card("a1", ("2g.10gb", 0), ("3g.20gb", 4))), cards=()))
    low = books.activate(part(books, 250, 10, preemptible=True))
    part(books, 300, 10)
    assert low.holding
    high = part(books, 200, 8, priority=100)
    books.settle()
    assert books.again(low).ending, "the only instance of the smallest profile that has as much"
    books.report(low, c.ReportStatus.GONE)
    books.settle()
    (piece,) = books.again(high).holding
    assert (piece.plan.share_milli, piece.plan.memory_bytes) == (285, 10 * GIB)


def test_where_all_cards_are_cut_a_request_needs_not_ask_for_the_tier() -> None:
    books = Books(CONFIG)
    books.connect(node_of("a", card("a1", ("2g.10gb", 0))))
    books.settle()
    (piece,) = books.again(part(books, 250, 10, min_tier=0)).holding
    assert piece.plan.share_milli == 285
    waits = part(books, 500, 10, min_tier=0)
    books.connect(node("whole", 1))
    books.settle()
    (piece,) = books.again(waits).holding
    assert (piece.plan.node_id, piece.plan.share_milli) == ("n-whole", 500), "an undivided card has come"


def test_what_is_cut_lies_as_far_back_as_it_can() -> None:
    books = Books(CONFIG)
    books.connect(node_of("a", card("a1", ("3g.20gb", 0))))
    books.settle()
    assert ask(books, "3g.20gb").holding
    ask(books, "1g.5gb")
    books.advance(CONFIG.cut_patience_ms + CONFIG.cut_look_ms)
    (cut,) = orders(books)
    assert {(part.profile, part.start) for part in cut.parts} == {("3g.20gb", 0), ("1g.5gb", 6)}
