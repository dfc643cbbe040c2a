"""What is placed on a card on probation, and over an island with a bad link; and what others are told of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aliquot.common.signs import Remedy, Scope, Severity
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.health.records import Sign, Standing
from aliquot.coordinator.core.books.leases.records import LeaseState
from aliquot.coordinator.core.commands.queries import Explain, Fits
from aliquot.coordinator.core.evolve.snapshot import state_hash
from aliquot.coordinator.core.values.types import NodeSpec, RequestSpec
from tests.core.harness import node, request
from tests.health.cards import ALL, XID_79, XID_95, Sick

DAY_MS = 86_400_000
LINK = Sign("links", Severity.DEGRADED, Scope.CARD, Remedy.NONE, "a link that was up is down")
FABRIC = replace(LINK, cause="fabric")


def repaired(*specs: NodeSpec) -> Sick:
    """Books in which the first card of node "one" is on probation."""
    sick = Sick(*specs)
    sick.say("GPU-one-0", XID_95)
    sick.books.advance(6_000)
    sick.obey("n-one")
    sick.obey("n-one")
    assert sick.standing("GPU-one-0") is Standing.PROBATION
    return sick


def islands(name: str, devices: int, of: int) -> NodeSpec:
    spec = node(name, devices, remedies=ALL)
    cards = (replace(device, nvlink_island=number // of) for number, device in enumerate(spec.devices))
    return replace(spec, devices=tuple(cards))


def devices_of(sick: Sick, wanted: RequestSpec) -> set[str]:
    return {piece.plan.device_uuid for piece in sick.books.allocate(wanted).slices}


def reasons(sick: Sick, wanted: RequestSpec) -> list[str]:
    return [missing.reason for missing in sick.books.ask(Explain(wanted)).missing]


def test_a_card_on_probation_takes_preemptible_leases_of_one_card_and_comes_last() -> None:
    sick = repaired(node("one", 2, remedies=ALL))
    soft = request(500, preemptible=True)
    assert devices_of(sick, soft) == {"GPU-one-1"}, "another card has room"
    assert devices_of(sick, request(500)) == {"GPU-one-1"}
    assert devices_of(sick, soft) == {"GPU-one-0"}
    waits = sick.books.allocate(request(500))
    assert waits.state is LeaseState.QUEUED
    assert sick.books.allocate(request(100, count=2, preemptible=True)).state is LeaseState.QUEUED
    assert state_hash(sick.books.replayed()) == state_hash(sick.books.state) == state_hash(sick.books.restored())
    sick.books.advance(DAY_MS)
    assert sick.books.again(waits).state is LeaseState.GRANTED, "the end of the probation lets it in"


def test_of_a_node_that_was_restarted_only_the_card_that_asked_for_it_is_on_probation() -> None:
    sick = Sick(node("one", 4, remedies=ALL))
    sick.say("GPU-one-1", XID_79)
    sick.books.advance(6_000)
    assert sick.obey("n-one") is Remedy.REBOOT
    sick.obey("n-one")
    assert {sick.standing(f"GPU-one-{number}") for number in range(4)} == {Standing.PROBATION}
    assert devices_of(sick, request(1000, count=3)) == {"GPU-one-0", "GPU-one-2", "GPU-one-3"}
    assert sick.books.allocate(request(1000)).state is LeaseState.QUEUED
    assert state_hash(sick.books.replayed()) == state_hash(sick.books.state) == state_hash(sick.books.restored())


def test_who_waits_for_a_card_on_probation_is_told_so_and_an_operator_may_return_it_at_once() -> None:
    sick = repaired(node("one", 1, remedies=ALL))
    why = sick.books.ask(Explain(request(500)))
    assert [missing.reason for missing in why.missing] == ["PROBATION"]
    assert "on probation after a repair" in why.summary
    assert "aliquot device return" in why.summary
    assert not why.impossible
    assert sick.books.ask(Explain(request(500, preemptible=True))).fits_now
    (fit,) = sick.books.ask(Fits(request(500), ()))
    assert (fit.reason, fit.score) == ("PROBATION", 0)
    assert sick.books.ask(Fits(request(500, preemptible=True), ()))[0].score
    waits = sick.books.allocate(request(500))
    sick.books.do(c.ReturnDevice("GPU-one-0", by="ann"))
    sick.books.settle()
    assert sick.books.again(waits).state is LeaseState.GRANTED


def test_a_preemptor_does_not_take_a_card_on_probation_from_a_lease_that_may_be_there() -> None:
    sick = repaired(node("one", 1, remedies=ALL))
    soft = sick.books.activate(sick.books.allocate(request(1000, preemptible=True)))
    sick.books.advance(3_600_000)
    sick.books.allocate(request(1000, priority=100))
    sick.books.advance(60_000)
    assert sick.books.again(soft).state is LeaseState.ACTIVE
    sick.books.allocate(request(1000, priority=200, preemptible=True))
    sick.books.settle()
    assert sick.books.again(soft).state is LeaseState.PREEMPTING


@pytest.mark.parametrize("sign", [LINK, FABRIC], ids=["links", "fabric"])
def test_no_lease_of_several_cards_is_placed_over_an_island_with_a_bad_link(sign: Sign) -> None:
    sick = Sick(islands("one", 8, 4))
    sick.say("GPU-one-0", sign)
    assert devices_of(sick, request(1000, count=4)) == {f"GPU-one-{number}" for number in range(4, 8)}
    pair = sick.books.allocate(request(1000, count=2))
    assert pair.state is LeaseState.QUEUED
    assert reasons(sick, request(1000, count=2)) == ["BAD_LINKS"]
    assert reasons(sick, request(1000, gang_size=2)) == ["BAD_LINKS"]
    assert devices_of(sick, request(1000)) < {f"GPU-one-{number}" for number in range(1, 4)}, "single cards go there"
    assert state_hash(sick.books.replayed()) == state_hash(sick.books.state) == state_hash(sick.books.restored())
    sick.say("GPU-one-0", None)
    assert sick.books.again(pair).state is LeaseState.GRANTED


def test_an_elastic_lease_does_not_grow_over_a_bad_link() -> None:
    sick = Sick(islands("one", 4, 4))
    sick.say("GPU-one-0", LINK)
    wanted = request(1000, gang_size=1, min_count=1, max_count=3)
    assert sick.books.allocate(wanted).state is LeaseState.QUEUED
    sick.say("GPU-one-0", None)


def test_what_a_node_is_described_anew_with_keeps_its_restrictions() -> None:
    spec = islands("one", 8, 4)
    sick = Sick(spec)
    sick.say("GPU-one-0", LINK)
    turned = tuple(replace(device, nvlink_island=1 - device.nvlink_island) for device in spec.devices)
    sick.books.connect(replace(spec, devices=turned))
    sick.say("GPU-one-0", LINK)
    assert devices_of(sick, request(1000, count=4)) == {f"GPU-one-{number}" for number in range(4, 8)}
    assert sick.books.allocate(request(1000, count=2)).state is LeaseState.QUEUED
