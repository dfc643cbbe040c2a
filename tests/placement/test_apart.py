"""Members of a gang on cards of their own, which libraries that join GPUs (NCCL) ask for, unless it may share cards."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pytest

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import Lease, LeaseState
from aliquot.coordinator.core.values.errors import NeverFits, PlacementRefused
from aliquot.coordinator.core.values.types import RequestSpec
from aliquot.coordinator.wire.leases import request_message
from aliquot.coordinator.wire.requests import read_request
from aliquot.v1 import types_pb2
from tests.core.harness import Books, node


@dataclass
class Site:
    """One node of two cards."""

    books: Books

    def ask(self, gpu: str = "0.4", **more: object) -> Lease:
        return self.books.allocate(asked(gpu, **more))


@pytest.fixture
def site() -> Site:
    books = Books()
    books.connect(node("one", 2))
    return Site(books)


def asked(gpu: str = "0.4", **more: object) -> RequestSpec:
    """As a launcher asks."""
    return read_request(types_pb2.LeaseRequest(gpu=gpu, tenant="a", **more), str).spec  # type: ignore[arg-type]


def cards_of(lease: Lease) -> list[str]:
    return sorted({piece.plan.device_uuid for piece in lease.current})


@pytest.mark.parametrize("gpu", ["0.4", "10Gi", "0.4,10Gi"])
def test_two_members_are_on_two_cards(site: Site, gpu: str) -> None:
    assert cards_of(site.ask(gpu, gang_size=2)) == ["GPU-one-0", "GPU-one-1"]


def test_members_that_may_share_are_packed(site: Site) -> None:
    lease = site.ask(gang_size=2, same_card=True)
    assert len(cards_of(lease)) == 1
    assert request_message(lease.request).same_card
    assert not request_message(asked(gang_size=2)).same_card


def test_it_is_said_what_would_help_where_there_are_too_few_cards(site: Site) -> None:
    with pytest.raises(NeverFits) as caught:
        site.ask(gang_size=3)
    assert "3 members on a card each" in str(caught.value)
    assert "same_card" in caught.value.shortfall.missing[0].smallest_change
    site.ask("1")
    waits = site.ask(gang_size=2)
    assert waits.state is LeaseState.QUEUED


def test_a_gang_waits_for_a_second_card_and_takes_it(site: Site) -> None:
    whole = site.ask("1")
    gang = site.ask(gang_size=2)
    site.books.do(c.Release(whole.lease_id))
    site.books.report(whole, c.ReportStatus.GONE)
    site.books.settle()
    assert len(cards_of(site.books.again(gang))) == 2


def test_a_gang_of_higher_priority_has_both_cards_cleared_for_it(site: Site) -> None:
    low = [site.books.activate(site.ask("0.8", preemptible=True)) for _ in range(2)]
    gang = site.ask(gang_size=2, priority=5)
    site.books.settle()
    assert {site.books.again(each).state for each in low} == {LeaseState.PREEMPTING}
    for each in low:
        site.books.report(each, c.ReportStatus.GONE)
    site.books.settle()
    assert len(cards_of(site.books.again(gang))) == 2


def test_an_elastic_lease_grows_on_cards_where_it_has_no_member(site: Site) -> None:
    lease = site.books.activate(site.ask(max_count=3))
    for _ in range(4):
        site.books.advance(600_000)
        lease = site.books.again(lease)
        site.books.do(c.AcknowledgeShape(lease.lease_id, lease.shape))
        site.books.activate(lease)
    assert len(site.books.again(lease).current) == len(cards_of(site.books.again(lease))) == 2


def test_two_members_are_not_put_on_one_card_either(site: Site) -> None:
    one = c.MemberPlace("n-one", ("GPU-one-1",))
    with pytest.raises(PlacementRefused, match="on the card of another member"):
        site.books.do(c.GrantOn("l-1", asked(gang_size=2), (one, one)))
    site.books.do(c.GrantOn("l-2", asked(gang_size=2, same_card=True), (one, one)))
    assert cards_of(site.books.state.leases["l-2"]) == ["GPU-one-1"]


def test_instances_of_one_card_are_not_two_cards() -> None:
    books = Books()
    spec = node("cut", 4, memory_gib=5)
    halves = tuple(
        msgspec.structs.replace(d, parent_uuid=f"GPU-{d.index // 2}", compute_milli=142, mig_profile="1g.5gb")
        for d in spec.devices
    )
    books.connect(msgspec.structs.replace(spec, devices=halves))
    gang = books.allocate(asked("1g.5gb", gang_size=2))
    parents = {books.state.inventory.device_record(uuid).spec.card for uuid in cards_of(gang)}
    assert parents == {"GPU-0", "GPU-1"}
    with pytest.raises(NeverFits):
        books.allocate(asked("1g.5gb", gang_size=3))
