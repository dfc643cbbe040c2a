"""From the first bad sign until service: who is told, who goes, what is tried, and that cards return by themselves."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aliquot.common.signs import Remedy, Scope, Severity
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.health.records import OUT, IncidentOpened, Standing
from aliquot.coordinator.core.books.leases.records import LeaseState
from aliquot.coordinator.core.evolve.snapshot import state_hash
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.values.errors import CardInUse, DeviceNotFound, StillUnwell
from aliquot.coordinator.core.values.types import DeviceSpec, NodeState
from tests.core.harness import GIB, node, request
from tests.health.cards import ALL, HOT, REMAP, WORN, XID_79, XID_95, Sick

DAY_MS = 86_400_000


def test_a_fatal_fault_is_repaired_verified_watched_and_over() -> None:
    sick = Sick(node("one", remedies=ALL))
    books = sick.books
    lease = books.activate(books.allocate(request(500)))
    uuid = lease.slices[0].plan.device_uuid
    sick.say(uuid, XID_95)
    assert sick.standing(uuid) is Standing.QUARANTINED
    lease = books.again(lease)
    assert lease.state is LeaseState.RELEASING
    assert "XID 95" in lease.end_detail
    assert "XID 95" in lease.warnings[0]
    assert books.allocate(request(1000)).slices[0].plan.device_uuid != uuid
    books.report(lease, c.ReportStatus.GONE)
    books.advance(6_000)
    assert sick.standing(uuid) is Standing.REPAIRING
    sick.say(uuid, None)  # the reset has cleared it: no new incident, and no way around the verification
    assert sick.standing(uuid) is Standing.REPAIRING
    assert sick.obey("n-one") is Remedy.RESET
    assert sick.standing(uuid) is Standing.VERIFYING
    assert not sick.usable(uuid)
    assert sick.obey("n-one") is Remedy.VERIFY
    assert sick.standing(uuid) is Standing.PROBATION
    assert sick.usable(uuid)
    books.advance(DAY_MS + 1)
    assert sick.standing(uuid) is Standing.HEALTHY
    assert not sick.open
    (story,) = books.state.health.closed
    assert story.steps[0].state is Standing.QUARANTINED
    assert story.outcome == "well through its probation"
    assert books.state.health.totals["xid-95"].incidents == 1
    assert state_hash(books.replayed()) == state_hash(books.state) == state_hash(books.restored())


def test_without_a_repair_a_card_waits_for_its_sign_to_go_and_returns_by_itself() -> None:
    sick = Sick(node("one"))
    sick.say("GPU-one-0", XID_95)
    sick.books.advance(3_600_000)
    assert sick.standing("GPU-one-0") is Standing.DRAINED
    sick.say("GPU-one-0", None)
    assert sick.standing("GPU-one-0") is Standing.PROBATION
    assert sick.usable("GPU-one-0")


def test_a_degraded_card_keeps_its_leases_and_takes_no_new_ones() -> None:
    sick = Sick(node("one", 1, remedies=ALL))
    books = sick.books
    lease = books.activate(books.allocate(request(250)))
    sick.say("GPU-one-0", REMAP)
    books.advance(DAY_MS)
    assert books.again(lease).state is LeaseState.ACTIVE
    assert "remapped" in books.again(lease).warnings[0]
    assert books.allocate(request(250)).state is LeaseState.QUEUED
    assert sick.standing("GPU-one-0") is Standing.QUARANTINED
    books.do(c.Release(lease.lease_id))
    books.report(lease, c.ReportStatus.GONE)
    books.advance(6_000)
    assert sick.standing("GPU-one-0") is Standing.REPAIRING, "it is repaired once it is empty"


def test_what_can_be_moved_is_moved_and_the_preemptible_wait_again() -> None:
    sick = Sick(node("one", 2))
    books = sick.books
    movable = books.activate(books.allocate(request(500, movable=True)))
    uuid = movable.slices[0].plan.device_uuid
    books.now_ms += 3_600_000
    sick.say(uuid, REMAP)
    moved = books.again(movable)
    assert moved.moves == 1
    assert moved.current[0].plan.device_uuid != uuid
    sick = Sick(node("one", 1))
    books = sick.books
    soft = books.activate(books.allocate(request(500, preemptible=True)))
    sick.say("GPU-one-0", XID_95)
    books.report(soft, c.ReportStatus.GONE)
    books.settle()
    assert books.again(soft).state is LeaseState.QUEUED
    sick.say("GPU-one-0", None)
    books.advance(6_000)
    books.advance(6_000)
    assert books.again(soft).state is LeaseState.GRANTED


def test_signs_that_are_good_again_end_it_at_once_but_a_flapping_card_rests_for_longer_each_time() -> None:
    sick = Sick(node("one", remedies=ALL))
    rests = []
    for _ in range(5):
        sick.say("GPU-one-0", HOT)
        assert sick.standing("GPU-one-0") in OUT
        sick.say("GPU-one-0", None)
        waited = 0
        while not sick.usable("GPU-one-0"):
            sick.books.advance(60_000)
            waited += 1
            assert waited < 1_000, "it never returned"
        rests.append(waited)
        sick.books.advance(660_000)
    assert rests[0] == 0
    assert rests[1] >= 10
    assert rests == sorted(rests)
    assert rests[4] > 2 * rests[2]


def test_a_card_that_passes_its_test_with_bad_signs_does_not_return() -> None:
    sick = Sick(node("one", 1, remedies=("reset", "verify")))
    sick.say("GPU-one-0", XID_95)
    for _ in range(2):
        (order,) = sick.books.state.nodes["n-one"].care
        sick.books.do(c.ReportCare("n-one", 1, order.number))
        sick.books.settle()
    assert sick.standing("GPU-one-0") is Standing.SERVICE
    assert not sick.usable("GPU-one-0")


def test_a_card_that_fails_its_test_with_good_signs_is_repaired_before_it_is_tested_again() -> None:
    sick = Sick(node("one", 1, remedies=ALL))
    sick.say("GPU-one-0", XID_95)
    sick.books.advance(6_000)
    assert sick.obey("n-one") is Remedy.RESET
    done = []
    while sick.standing("GPU-one-0") is not Standing.SERVICE:
        if not sick.books.state.nodes["n-one"].care:
            sick.books.advance(3_601_000)  # of one card, one repair an hour
        (order,) = sick.books.state.nodes["n-one"].care
        done.append(order.action)
        assert len(done) < 8, "it is tested for ever"
        sick.obey("n-one", "memory gives back other bytes" if order.action is Remedy.VERIFY else "")
        sick.say("GPU-one-0", None)
    assert done == [Remedy.VERIFY, Remedy.REBOOT, Remedy.VERIFY]
    assert state_hash(sick.books.replayed()) == state_hash(sick.books.state) == state_hash(sick.books.restored())


def test_the_same_fault_after_two_repairs_needs_a_person() -> None:
    sick = Sick(node("one", remedies=ALL), config=CoreConfig(probation_ms=60_000, repairs_an_hour_permille=1000))
    for _ in range(2):
        sick.say("GPU-one-0", XID_95)
        sick.say("GPU-one-0", XID_95)
        assert sick.obey("n-one") is Remedy.RESET
        sick.say("GPU-one-0", None)
        assert sick.obey("n-one") is Remedy.VERIFY
        sick.books.advance(7_200_000)
        assert sick.standing("GPU-one-0") is Standing.HEALTHY
    sick.say("GPU-one-0", XID_95)
    assert sick.standing("GPU-one-0") is Standing.SERVICE
    sick.say("GPU-one-0", None)
    sick.books.advance(DAY_MS)
    assert sick.standing("GPU-one-0") is Standing.SERVICE, "it is cleared by a person"
    sick.books.do(c.ReturnDevice("GPU-one-0", by="user:ann"))
    assert sick.usable("GPU-one-0")
    assert not sick.open


def test_a_relapse_in_probation_goes_on_as_another_incident() -> None:
    sick = Sick(node("one", remedies=ALL))
    sick.say("GPU-one-0", XID_95)
    sick.obey("n-one")
    sick.say("GPU-one-0", None)
    sick.obey("n-one")
    first = sick.incident("GPU-one-0")
    sick.books.advance(3_600_001)
    sick.say("GPU-one-0", XID_95)
    assert sick.standing("GPU-one-0") in OUT
    assert sick.incident("GPU-one-0").number > first.number
    assert "relapsed" in sick.incident("GPU-one-0").reason


def test_the_ladder_a_reset_that_does_not_help_then_a_restart_of_the_node_then_a_person() -> None:
    sick = Sick(node("one", 3, remedies=ALL))
    books = sick.books
    other = books.activate(books.allocate(request(1000, preemptible=True)))
    sick_uuid = next(u for u in books.state.devices if u != other.slices[0].plan.device_uuid)
    sick.say(sick_uuid, XID_95)
    assert sick.obey("n-one", "it is as before") is Remedy.RESET
    books.advance(6_000)
    assert books.again(other).state is LeaseState.PREEMPTING, "the node is to be restarted"
    assert not any(map(sick.usable, books.state.devices))
    books.report(other, c.ReportStatus.GONE)
    books.advance(3_600_000)
    assert sick.obey("n-one", "the machine did not come back in time") is Remedy.REBOOT
    assert sick.incident(sick_uuid).state is Standing.SERVICE


def test_a_node_is_taken_out_for_one_card_only_where_its_agent_can_restart_it() -> None:
    sick = Sick(node("one"), node("two", remedies=ALL))
    sick.say("GPU-one-0", XID_79)
    assert [sick.usable(f"GPU-one-{i}") for i in range(4)] == [False, True, True, True]
    sick.say("GPU-two-0", XID_79)
    assert not any(sick.usable(f"GPU-two-{i}") for i in range(4))


def test_worn_memory_goes_to_a_person_at_once() -> None:
    sick = Sick(node("one", remedies=ALL))
    sick.say("GPU-one-1", WORN)
    assert sick.standing("GPU-one-1") is Standing.SERVICE
    with pytest.raises(StillUnwell):
        sick.books.do(c.ReturnDevice("GPU-one-1"))


def test_an_operator_overrules_what_an_agent_says_until_it_says_something_else() -> None:
    sick = Sick(node("one", remedies=ALL))
    uuid = "GPU-one-1"
    sick.say(uuid, WORN)
    sick.books.do(c.ReturnDevice(uuid, "new riser", by="user:ann", overrule=True))
    assert sick.usable(uuid)
    (over,) = sick.books.state.health.closed
    assert over.outcome.startswith(f"returned by user:ann: new riser; overruled: {uuid} is not well: ")
    sick.say(uuid, replace(WORN, reason="the same in other words"))
    sick.books.advance(3_600_000)
    assert not sick.open, "it is not looked at again and again"
    assert sick.usable(uuid)
    assert state_hash(sick.books.replayed()) == state_hash(sick.books.state) == state_hash(sick.books.restored())
    sick.say(uuid, HOT)
    assert not sick.usable(uuid), "another cause is another verdict"
    sick.say(uuid, None)
    sick.books.advance(3_600_000)
    assert sick.usable(uuid)
    sick.say(uuid, WORN)
    assert not sick.usable(uuid), "it was well meanwhile, so this is news"


@pytest.mark.parametrize("quarantined", [False, True])
def test_nobody_overrules_an_agent_that_can_not_use_a_card_and_names_no_fault_of_it(quarantined: bool) -> None:
    sick = Sick(node("one", remedies=ALL))
    uuid = "GPU-one-1"
    if quarantined:
        sick.books.do(c.QuarantineDevice(uuid, by="user:ann"))
    sick.books.do(
        c.ReportDevice(
            sick.node_of(uuid),
            sick.books.sessions[sick.node_of(uuid)],
            uuid,
            0,
            healthy=False,
            reason="no device answers this agent",
        )
    )
    with pytest.raises(StillUnwell, match="no device answers this agent") as refused:
        sick.books.do(c.ReturnDevice(uuid, by="user:ann", overrule=True))
    assert "by itself" in refused.value.hint
    sick.say(uuid, None)
    sick.books.do(c.ReturnDevice(uuid, by="user:ann"))
    assert sick.usable(uuid)


def test_who_would_overrule_is_told_of_the_card_that_nobody_can_overrule() -> None:
    sick = Sick(node("one", remedies=ALL))
    sick.say("GPU-one-0", XID_79)
    sick.say("GPU-one-1", replace(WORN, cause="", reason="no device answers this agent"))
    assert sick.incident("GPU-one-0") == sick.incident("GPU-one-1"), "the node is to be restarted"
    with pytest.raises(StillUnwell, match=r"GPU-one-1 .* no device answers this agent"):
        sick.books.do(c.ReturnDevice("GPU-one-0", by="user:ann", overrule=True))


def test_a_card_that_is_well_is_returned_as_ever_by_who_would_overrule() -> None:
    sick = Sick(node("one", remedies=ALL))
    sick.books.do(c.QuarantineDevice("GPU-one-0"))
    sick.books.do(c.ReturnDevice("GPU-one-0", by="user:ann", overrule=True))
    assert sick.usable("GPU-one-0")
    sick.say("GPU-one-0", WORN)
    assert not sick.usable("GPU-one-0"), "nothing was overruled"


def test_a_mig_sibling_is_out_with_its_card_and_an_instances_own_fault_is_its_own() -> None:
    parts = tuple(
        DeviceSpec(f"MIG-{i}", "A100-40", 10 * GIB, mig_profile="1g.10gb", parent_uuid="GPU-card", compute_milli=142)
        for i in range(3)
    )
    sick = Sick(replace(node("one"), devices=parts))
    own = replace(HOT, scope=Scope.DEVICE)
    sick.say("MIG-0", own)
    assert [sick.usable(part.uuid) for part in parts] == [False, True, True]
    sick.say("MIG-1", XID_95)
    assert [sick.usable(part.uuid) for part in parts] == [False, False, False]
    sick.say("MIG-1", None)
    sick.say("MIG-0", None)
    assert all(sick.usable(part.uuid) for part in parts)


def test_an_older_agent_says_only_healthy_or_not_and_is_served_as_ever() -> None:
    sick = Sick(node("one"))
    books = sick.books
    books.do(c.ReportDevice("n-one", 1, "GPU-one-0", 0, healthy=False, reason="XID 79"))
    books.settle()
    assert not sick.usable("GPU-one-0")
    assert not sick.open
    books.do(c.ReportDevice("n-one", 1, "GPU-one-0", 0, healthy=True))
    assert sick.usable("GPU-one-0")


def test_an_order_that_is_not_answered_fails_once_the_agent_could_have_answered() -> None:
    sick = Sick(node("one", remedies=("reset", "verify")))
    sick.say("GPU-one-0", XID_95)
    books = sick.books
    books.do(c.NodeSilent("n-one", 1, lost=False))
    books.do(c.NodeSilent("n-one", 1, lost=True))
    books.advance(3_600_000)
    assert sick.standing("GPU-one-0") is Standing.REPAIRING, "its agent may be restarting"
    books.connect(node("one", remedies=("reset", "verify")))
    assert books.state.nodes["n-one"].state is NodeState.READY
    books.advance(6_000)
    assert sick.standing("GPU-one-0") is Standing.SERVICE


def test_a_reset_has_five_minutes() -> None:
    sick = Sick(node("one", remedies=("reset", "verify")))
    sick.say("GPU-one-0", XID_95)
    assert sick.standing("GPU-one-0") is Standing.REPAIRING
    assert sick.incident("GPU-one-0").due_ms == sick.books.now_ms + 300_000


def test_two_cards_that_are_to_be_repaired_in_the_same_moment_have_an_order_each() -> None:
    """An agent carries each number out once, and answers by number."""
    sick = Sick(node("one", 40, remedies=ALL))
    uuids = ["GPU-one-0", "GPU-one-1"]
    for uuid in uuids:
        sick.say(uuid, XID_95)
    sick.books.advance(6_000)
    orders = sick.books.state.nodes["n-one"].care
    assert [order.units for order in orders] == [(uuid,) for uuid in uuids]
    assert len({order.number for order in orders}) == 2
    for order in orders:
        sick.books.do(c.ReportCare("n-one", sick.books.sessions["n-one"], order.number, ""))
    sick.books.settle()
    assert {sick.standing(uuid) for uuid in uuids} == {Standing.VERIFYING}


def test_a_stale_answer_to_an_order_is_ignored() -> None:
    sick = Sick(node("one", remedies=ALL))
    sick.say("GPU-one-0", XID_95)
    (order,) = sick.books.state.nodes["n-one"].care
    assert not sick.books.do(c.ReportCare("n-one", 1, order.number - 1)).facts
    assert not sick.books.do(c.ReportCare("n-one", 7, order.number)).facts
    sick.obey("n-one")
    assert not sick.books.do(c.ReportCare("n-one", 1, order.number)).facts


def test_a_card_that_is_not_listed_any_more_is_an_incident_until_it_is_back() -> None:
    sick = Sick(node("one"))
    books = sick.books
    books.connect(node("one", 3))
    (incident,) = sick.open
    assert incident.units == ("GPU-one-3",)
    books.advance(60_000)
    assert sick.open
    books.connect(node("one", 4))
    assert not sick.usable("GPU-one-3")
    books.advance(60_000)
    assert sick.usable("GPU-one-3")


def test_commands_by_hand() -> None:
    sick = Sick(node("one", remedies=ALL))
    books = sick.books
    lease = books.activate(books.allocate(request(1000)))
    uuid = lease.slices[0].plan.device_uuid
    books.do(c.QuarantineDevice(uuid, "smells", by="user:ann"))
    books.advance(60_000)
    assert books.again(lease).state is LeaseState.ACTIVE
    with pytest.raises(CardInUse):
        books.do(c.VerifyDevice(uuid))
    books.do(c.QuarantineDevice(uuid, "smells badly", drain=True, by="user:ann"))
    books.settle()
    books.report(lease, c.ReportStatus.GONE)
    books.advance(DAY_MS)
    assert sick.standing(uuid) is Standing.DRAINED, "what was closed by hand is opened by hand"
    books.do(c.VerifyDevice(uuid, by="user:ann"))
    sick.obey("n-one")
    assert sick.usable(uuid)
    books.do(c.QuarantineDevice(uuid))
    books.do(c.ReturnDevice(uuid))
    assert sick.usable(uuid)
    with pytest.raises(DeviceNotFound):
        books.do(c.ReturnDevice("GPU-nowhere"))


def test_a_card_in_service_is_verified_when_it_is_empty_and_returns() -> None:
    sick = Sick(node("one", 1, remedies=ALL))
    books = sick.books
    lease = books.activate(books.allocate(request(1000)))
    books.do(c.VerifyDevice("GPU-one-0"))
    books.advance(60_000)
    assert books.again(lease).state is LeaseState.ACTIVE
    books.do(c.Release(lease.lease_id))
    books.report(lease, c.ReportStatus.GONE)
    books.advance(6_000)
    assert sick.obey("n-one") is Remedy.VERIFY
    assert sick.usable("GPU-one-0")
    assert not sick.open


def test_a_removed_node_takes_its_incidents_along() -> None:
    sick = Sick(node("one", 1), node("two", 1))
    books = sick.books
    sick.say("GPU-one-0", WORN)
    books.do(c.NodeSilent("n-one", 1, lost=True))
    books.do(c.RemoveNode("n-one", force=True))
    assert not sick.open
    assert not books.state.health.out


# -- what hits leases


def hit(sick: Sick, lease_id: str, text: str = "XID 31 on GPU-one-0") -> tuple[object, ...]:
    said = c.ReportHit("n-one", 1, "GPU-one-0", lease_id, text, suspicious=True)
    return sick.books.do(said).facts


def test_a_tenants_own_faults_are_told_to_its_lease_and_never_take_a_card_out() -> None:
    sick = Sick(node("one", 1, remedies=ALL))
    lease = sick.books.activate(sick.books.allocate(request(250, tenant="a")))
    facts = [fact for _ in range(1_000) for fact in hit(sick, lease.lease_id)]
    assert len(facts) == 1
    assert sick.books.again(lease).warnings == ("XID 31 on GPU-one-0",)
    assert sick.usable("GPU-one-0")


def test_faults_of_two_tenants_on_one_card_have_it_verified_when_empty() -> None:
    sick = Sick(node("one", 1, remedies=ALL))
    books = sick.books
    leases = [books.activate(books.allocate(request(250, tenant=tenant))) for tenant in "ab"]
    for lease in leases:
        hit(sick, lease.lease_id)
    books.settle()
    assert sick.standing("GPU-one-0") is Standing.QUARANTINED
    for lease in leases:
        assert books.again(lease).state is LeaseState.ACTIVE
        books.do(c.Release(lease.lease_id))
        books.report(lease, c.ReportStatus.GONE)
    books.advance(6_000)
    assert sick.obey("n-one") is Remedy.VERIFY
    assert sick.usable("GPU-one-0")


# -- the breaker


def rack(devices: int = 40) -> Sick:
    return Sick(*(node(f"r{i}", 4, remedies=ALL) for i in range(devices // 4)))


def test_at_most_a_tenth_is_repaired_at_once_and_a_fifth_an_hour() -> None:
    sick = rack()
    books = sick.books
    for i in range(10):
        sick.say(f"GPU-r{i}-0", XID_95)
    repaired = 0
    for minute in range(60):
        busy = [n for n in books.state.nodes if books.state.nodes[n].care]
        assert len(busy) <= 4
        for node_id in busy:
            if sick.obey(node_id) is Remedy.RESET:
                repaired += 1
        books.advance(50_000)
        assert repaired <= 8 or minute > 59
    assert repaired == 8


def test_with_the_breaker_open_soft_evidence_waits_hard_evidence_and_recoveries_go_on() -> None:
    sick = rack()
    for i in range(10):
        sick.say(f"GPU-r{i}-1", HOT)
    out = [i for i in range(10) if not sick.usable(f"GPU-r{i}-1")]
    assert len(out) == 8
    sick.say("GPU-r0-0", XID_95)
    assert not sick.usable("GPU-r0-0")
    for i in out:
        sick.say(f"GPU-r{i}-1", None)
        assert sick.usable(f"GPU-r{i}-1")
    sick.books.advance(120_000)
    assert sum(not sick.usable(f"GPU-r{i}-1") for i in range(10)) == 2, "what was put aside is believed now"


def test_an_incident_opens_but_once_for_all_that_is_said_of_a_card() -> None:
    sick = Sick(node("one"))
    for _ in range(50):
        sick.say("GPU-one-0", XID_95)
    sick.say("GPU-one-0", replace(XID_95, reason="XID 95 again"))
    assert sum(isinstance(fact, IncidentOpened) for fact in sick.books.facts) == 1
    assert sick.incident("GPU-one-0").severity is Severity.FATAL
