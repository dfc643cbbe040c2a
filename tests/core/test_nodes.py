"""Nodes that fall silent, come back, are drained, removed, or claim what is not theirs."""

from __future__ import annotations

import msgspec
import pytest

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import LeaseState, SliceState
from aliquot.coordinator.core.books.nodes import WRITTEN_OFF_KEPT, NodeCordoned
from aliquot.coordinator.core.values.errors import (
    DeviceClaimed,
    InvalidField,
    NodeInUse,
    NodeNameTaken,
    SessionReplaced,
    StaleLeader,
)
from aliquot.coordinator.core.values.types import NodeState
from tests.core.harness import GIB, Books, node, request


@pytest.fixture
def books() -> Books:
    books = Books()
    books.connect(node("one"))
    return books


def lose(books: Books, name: str) -> None:
    node_id = f"n-{name}"
    books.do(c.NodeSilent(node_id, books.sessions[node_id], lost=False))
    books.do(c.NodeSilent(node_id, books.sessions[node_id], lost=True))


def reports(books: Books, name: str, status: c.ReportStatus = c.ReportStatus.ACTIVE) -> tuple[c.SliceReport, ...]:
    found = []
    for slice_id in books.state.slice_ids_by_node[f"n-{name}"]:
        piece = books.state.leases[slice_id.partition(".")[0]].find(slice_id)
        assert piece is not None
        found.append(c.SliceReport(slice_id, piece.lease_epoch, status, 2))
    return tuple(found)


def test_a_suspect_node_gets_no_grants_and_recovers_when_heard(books: Books) -> None:
    books.do(c.NodeSilent("n-one", 1, lost=False))
    waiting = books.allocate(request(1000))
    assert waiting.state is LeaseState.QUEUED
    books.do(c.NodeHeard("n-one", 1))
    books.settle()
    assert books.again(waiting).state is LeaseState.GRANTED


def test_a_lost_node_keeps_its_slices_and_they_resume_when_it_returns(books: Books) -> None:
    lease = books.activate(books.allocate(request(500)))
    told = reports(books, "one")
    lose(books, "one")
    assert books.again(lease).state is LeaseState.UNREACHABLE
    assert books.state.inventory.device(lease.slices[0].plan.device_uuid).share_used_milli == 500
    books.connect(node("one"), told)
    assert books.again(lease).state is LeaseState.ACTIVE
    assert books.state.nodes["n-one"].state is NodeState.READY


def test_what_was_released_while_its_node_was_lost_ends_when_it_returns(books: Books) -> None:
    lease = books.activate(books.allocate(request(500)))
    told = reports(books, "one")
    lose(books, "one")
    books.do(c.Release(lease.lease_id))
    assert books.again(lease).state is LeaseState.RELEASING
    books.connect(node("one"), told)
    assert books.again(lease).slices[0].state is SliceState.RELEASING
    books.report(lease, c.ReportStatus.GONE)
    assert books.again(lease).state is LeaseState.ENDED


def test_an_ending_slice_that_the_agent_no_longer_holds_is_gone(books: Books) -> None:
    lease = books.activate(books.allocate(request(500)))
    lose(books, "one")
    books.do(c.Release(lease.lease_id))
    books.connect(node("one"))
    assert books.again(lease).state is LeaseState.ENDED


def test_nothing_is_placed_on_a_node_before_it_is_reconciled(books: Books) -> None:
    books.do(c.RegisterNode(node("one"), 2))
    assert books.allocate(request(100)).state is LeaseState.QUEUED


def test_reports_of_an_older_session_are_not_believed(books: Books) -> None:
    lease = books.allocate(request(500))
    books.connect(node("one"))
    piece = lease.slices[0]
    said = c.SliceReport(piece.slice_id, piece.lease_epoch, c.ReportStatus.ACTIVE, 2)
    assert books.do(c.ReportSlices("n-one", 1, (said,))).facts == ()
    stale = c.SliceReport(piece.slice_id, piece.lease_epoch + 7, c.ReportStatus.ACTIVE, 2)
    assert books.do(c.ReportSlices("n-one", 2, (stale,))).facts == ()
    assert books.do(c.ReportDevice("n-one", 1, "GPU-one-0", 0, healthy=False)).facts == ()
    assert books.do(c.ReportDevice("n-other", 1, "GPU-one-0", 0, healthy=False)).facts == ()
    with pytest.raises(SessionReplaced):
        books.do(c.RegisterNode(node("one"), 2))


def test_two_nodes_cannot_have_one_name_or_one_device(books: Books) -> None:
    with pytest.raises(NodeNameTaken):
        books.connect(msgspec.structs.replace(node("one"), node_id="n-other"))
    with pytest.raises(DeviceClaimed):
        books.connect(msgspec.structs.replace(node("one"), node_id="n-other", name="other"))


def test_draining_ends_leases_and_requeues_the_preemptible(books: Books) -> None:
    firm = books.activate(books.allocate(request(500)))
    soft = books.activate(books.allocate(request(500, preemptible=True)))
    books.do(c.Cordon("one", drain=True, reason="firmware"))
    assert books.again(firm).state is LeaseState.RELEASING
    assert books.again(soft).state is LeaseState.PREEMPTING
    for lease in (firm, soft):
        books.report(lease, c.ReportStatus.GONE)
    books.settle()
    assert books.again(firm).state is LeaseState.ENDED
    assert books.again(soft).state is LeaseState.QUEUED
    books.do(c.Cordon("one", cordoned=False))
    books.settle()
    assert books.again(soft).state is LeaseState.GRANTED


def test_a_node_that_an_older_journal_closes_is_not_drained(books: Books) -> None:
    lease = books.activate(books.allocate(request(500)))
    books.tell(NodeCordoned(at_ms=books.now_ms, node_id="n-one", cordoned=True))
    books.settle()
    assert books.again(lease).state is LeaseState.ACTIVE
    assert not books.state.nodes["n-one"].draining


def test_a_node_in_use_is_not_removed_but_a_lost_one_can_be_written_off(books: Books) -> None:
    books.connect(node("two"))
    lease = books.activate(books.allocate(request(1000, count=4, gang_size=2)))
    with pytest.raises(NodeInUse):
        books.do(c.RemoveNode("n-one"))
    with pytest.raises(NodeInUse):
        books.do(c.RemoveNode("n-one", force=True))
    lose(books, "one")
    books.do(c.RemoveNode("n-one", force=True))
    assert books.again(lease).state is LeaseState.RELEASING
    books.report(lease, c.ReportStatus.GONE)
    assert books.again(lease).state is LeaseState.ENDED
    assert set(books.state.nodes) == {"n-two"}


def test_only_what_no_lease_holds_is_written_off_and_of_that_the_latest_is_remembered(books: Books) -> None:
    lease = books.activate(books.allocate(request(1000)))
    with pytest.raises(InvalidField, match="is known"):
        books.do(c.WriteOff("n-one", ("l-old.1.0", lease.slices[0].slice_id)))
    assert list(books.state.nodes["n-one"].written_off) == [], "all of them, or none"
    for number in range(WRITTEN_OFF_KEPT + 2):
        books.do(c.WriteOff("n-one", (f"l-old.1.{number}",)))
    kept = books.state.nodes["n-one"].written_off
    assert (len(kept), kept[0], kept[-1]) == (WRITTEN_OFF_KEPT, "l-old.1.2", f"l-old.1.{WRITTEN_OFF_KEPT + 1}")
    before = books.state.seq
    books.do(c.WriteOff("n-one", (kept[0], kept[-1])))
    assert books.state.seq == before, "the same again changes nothing"
    assert books.again(lease).state is LeaseState.ACTIVE


def test_slices_on_a_device_that_vanished_are_failed(books: Books) -> None:
    lease = books.activate(books.allocate(request(1000, count=4)))
    told = reports(books, "one")
    books.connect(node("one", 3), told)
    lease = books.again(lease)
    assert lease.state is LeaseState.RELEASING
    assert sum(piece.state is SliceState.FAILED for piece in lease.slices) == 1


def test_foreign_memory_and_bad_health_take_capacity_away(books: Books) -> None:
    for index in range(4):
        books.do(c.ReportDevice("n-one", 1, f"GPU-one-{index}", 30 * GIB, healthy=True))
    waiting = books.allocate(request(250, 20 * GIB))
    assert waiting.state is LeaseState.QUEUED
    books.do(c.ReportDevice("n-one", 1, "GPU-one-2", 0, healthy=False, reason="XID 79"))
    books.settle()
    assert books.again(waiting).state is LeaseState.QUEUED
    books.do(c.ReportDevice("n-one", 1, "GPU-one-2", 0, healthy=True))
    books.settle()
    assert books.again(waiting).slices[0].plan.device_uuid == "GPU-one-2"


def test_a_new_leader_needs_a_higher_epoch_and_finds_its_nodes_suspect(books: Books) -> None:
    with pytest.raises(StaleLeader):
        books.do(c.StartLeading(1))
    books.do(c.StartLeading(2))
    assert books.state.nodes["n-one"].state is NodeState.SUSPECT


def test_a_machine_with_none_of_a_nodes_devices_is_not_believed_while_that_holds_slices(books: Books) -> None:
    lease = books.activate(books.allocate(request(500)))
    lose(books, "one")
    copy = msgspec.structs.replace(node("other"), node_id="n-one", name="one")
    with pytest.raises(NodeInUse, match="none of its devices"):
        books.do(c.RegisterNode(copy, 2))
    assert books.again(lease).state is LeaseState.UNREACHABLE
    books.do(c.RegisterNode(msgspec.structs.replace(node("one"), devices=()), 2))
    assert books.again(lease).state is LeaseState.ENDED, "it is the machine, without its cards"
    books.do(c.RegisterNode(copy, 3))
    assert books.state.nodes["n-one"].spec.devices == copy.devices, "nothing is held that it could end"


def test_a_machine_that_has_partitioned_its_cards_anew_is_the_same(books: Books) -> None:
    (whole,) = node("parts", 1).devices
    first = msgspec.structs.replace(whole, uuid="MIG-1", parent_uuid=whole.uuid)
    second = msgspec.structs.replace(first, uuid="MIG-2")
    books.connect(msgspec.structs.replace(node("parts"), devices=(first,)))
    books.do(c.Cordon("n-one"))
    lease = books.activate(books.allocate(request(1000)))
    assert lease.slices[0].plan.device_uuid == "MIG-1"
    books.connect(msgspec.structs.replace(node("parts"), devices=(second,)))
    assert books.again(lease).state is LeaseState.ENDED


def test_what_is_declared_together_becomes_known_or_none_of_it(books: Books) -> None:
    two, three = node("two", agentless=True), node("three", agentless=True)
    taken = msgspec.structs.replace(three, devices=node("one").devices)
    for others, error in (((taken,), DeviceClaimed), ((three, three), InvalidField)):
        with pytest.raises(error):
            books.do(c.DeclareNode(two, others))
        assert set(books.state.nodes) == {"n-one"}
    books.do(c.DeclareNode(two, (three,)))
    assert set(books.state.nodes) == {"n-one", "n-two", "n-three"}


def test_a_lease_that_loses_devices_of_several_nodes_at_once_ends_once(books: Books) -> None:
    two, three = node("two", 1, agentless=True), node("three", 1, agentless=True)
    books.do(c.DeclareNode(two, (three,)))
    books.do(c.Cordon("n-one"))
    lease = books.allocate(request(1000, gang_size=2))
    assert {piece.plan.node_id for piece in lease.slices} == {"n-two", "n-three"}
    bare = [msgspec.structs.replace(spec, devices=()) for spec in (two, three)]
    books.do(c.DeclareNode(bare[0], (bare[1],)))
    assert not books.again(lease).holding
