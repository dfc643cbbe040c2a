"""A card that copies more slowly than others of its kind fails its test."""

from __future__ import annotations

from aliquot.common.signs import Remedy
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.health.records import Standing
from aliquot.coordinator.core.evolve.snapshot import state_hash
from tests.core.harness import node
from tests.health.cards import ALL, XID_95, Sick


def examined(sick: Sick, uuid: str, mb_s: int) -> None:
    """Somebody has the card tested, and it passes all that its agent can say."""
    sick.books.do(c.VerifyDevice(uuid, by="ann"))
    answered(sick, uuid, mb_s)


def answered(sick: Sick, uuid: str, mb_s: int) -> Remedy:
    sick.books.settle()
    sick.books.advance(6_000)
    node_id = sick.node_of(uuid)
    (order,) = sick.books.state.nodes[node_id].care
    copies = ((uuid, mb_s),) if mb_s else ()
    sick.books.do(c.ReportCare(node_id, sick.books.sessions[node_id], order.number, "", "tested", copies))
    sick.books.settle()
    return order.action


def test_a_repaired_card_that_is_slower_than_others_does_not_return() -> None:
    sick = Sick(node("one", 4, remedies=ALL), node("two", 1, model="H100-80", remedies=ALL))
    for number, mb_s in enumerate((1_400_000, 1_380_000, 1_420_000), 1):
        examined(sick, f"GPU-one-{number}", mb_s)
    examined(sick, "GPU-two-0", 2_600_000)
    assert {known.model for known in sick.books.state.health.copies.values()} == {"A100-40", "H100-80"}
    sick.say("GPU-one-0", XID_95)
    sick.books.advance(6_000)
    assert sick.obey("n-one") is Remedy.RESET
    assert answered(sick, "GPU-one-0", 1_100_000) is Remedy.VERIFY
    assert sick.standing("GPU-one-0") is not Standing.PROBATION
    assert any("the median of 3 A100-40 is 1400.0" in step.text for step in sick.incident("GPU-one-0").steps)
    assert "GPU-one-0" not in sick.books.state.health.copies
    sick.books.advance(3_601_000)  # of so few cards, one repair an hour
    assert sick.obey("n-one") is Remedy.REBOOT
    assert answered(sick, "GPU-one-0", 1_150_000) is Remedy.VERIFY
    assert sick.standing("GPU-one-0") is Standing.PROBATION, "within a fifth of the median"
    assert state_hash(sick.books.replayed()) == state_hash(sick.books.state) == state_hash(sick.books.restored())


def test_of_a_few_cards_nothing_follows_and_what_was_not_measured_says_nothing() -> None:
    sick = Sick(node("one", 3, remedies=ALL))
    examined(sick, "GPU-one-0", 1_400_000)
    examined(sick, "GPU-one-1", 100_000)
    examined(sick, "GPU-one-2", 0)
    assert {sick.standing(f"GPU-one-{number}") for number in range(3)} == {Standing.HEALTHY}
    assert set(sick.books.state.health.copies) == {"GPU-one-0", "GPU-one-1"}
    for lost in (False, True):
        sick.books.do(c.NodeSilent("n-one", sick.books.sessions["n-one"], lost=lost))
    sick.books.do(c.RemoveNode("n-one"))
    assert not sick.books.state.health.copies
