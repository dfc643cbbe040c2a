"""What is kept for the head of a line is what its request asks for: devices are chosen by the engine, and looked at
again when they are used.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.holds import HoldBroken, HoldCreated, HoldReleased
from aliquot.coordinator.core.books.leases.records import Lease, LeaseState
from aliquot.coordinator.core.deciding.admission.means.reserving import RESERVATIONS_MAX
from aliquot.coordinator.core.values.types import NodeSpec, Topology
from tests.core.harness import Books, node, request
from tests.preemption.asking import ask, leave, run, state_of
from tests.tenancy.declaring import declare, queue

PATIENCE_MS = 300_000
"""How long the default queue lets a request wait before devices are kept for it."""


def described(spec: NodeSpec, *, vendors: str = "", tiers: tuple[int, ...] = (), islands: str = "") -> NodeSpec:
    """The node with another vendor (a, n), tier or NVLink island for each of its devices."""
    devices = list(spec.devices)
    for number, letter in enumerate(vendors):
        devices[number] = replace(devices[number], vendor={"a": "amd", "n": "nvidia"}[letter])
    for number, tier in enumerate(tiers):
        devices[number] = replace(devices[number], best_tier=tier, model=f"tier-{tier}")
    for number, island in enumerate(islands):
        devices[number] = replace(devices[number], nvlink_island=int(island))
    return replace(spec, devices=tuple(devices))


def fill(books: Books) -> dict[str, Lease]:
    """A running lease on every device of the pool; by device."""
    running = {}
    for _ in list(books.state.inventory.device_uuids()):
        lease = books.activate(books.allocate(request()))
        running[lease.slices[0].plan.device_uuid] = lease
    return running


def end(books: Books, lease: Lease) -> None:
    books.do(c.Release(lease.lease_id))
    books.report(books.again(lease), c.ReportStatus.GONE)
    books.settle()


def wait_patiently(books: Books, **more: object) -> Lease:
    """A request that does not fit, once devices may be kept for it."""
    lease = books.allocate(request(**more))  # type: ignore[arg-type]
    books.settle()
    books.advance(PATIENCE_MS + 1_000)
    books.settle()
    assert books.again(lease).waiting
    return books.again(lease)


@pytest.mark.parametrize(
    ("asked", "wanted"), [({"vendor": "amd"}, "GPU-one-1"), ({"min_tier": 4}, "GPU-one-1"), ({}, "GPU-one-0")]
)
def test_a_reservation_keeps_devices_of_the_vendor_and_tier_asked_for(asked: dict[str, object], wanted: str) -> None:
    books = Books()
    books.connect(described(node("one", 2), vendors="na", tiers=(1, 4)))
    running = fill(books)

    lease = wait_patiently(books, **asked)
    for uuid in ("GPU-one-0", "GPU-one-1"):
        end(books, running[uuid])

    assert books.again(lease).state is LeaseState.GRANTED
    assert [piece.plan.device_uuid for piece in books.again(lease).holding] == [wanted]


def test_a_reservation_keeps_devices_of_one_island() -> None:
    books = Books()
    books.connect(described(node("one", 4), islands="0101"))
    running = fill(books)

    lease = wait_patiently(books, count=2, topology=Topology.REQUIRE_ISLAND)
    for uuid in ("GPU-one-0", "GPU-one-1"):
        end(books, running[uuid])
    assert books.again(lease).waiting
    for uuid in ("GPU-one-2", "GPU-one-3"):
        end(books, running[uuid])

    assert books.again(lease).state is LeaseState.GRANTED
    assert {int(piece.plan.device_uuid[-1]) % 2 for piece in books.again(lease).holding} in ({0}, {1})


def test_a_reservation_of_a_gang_keeps_to_its_members_per_node() -> None:
    books = Books()
    books.connect(node("one", 2))
    books.connect(node("two", 2))
    running = fill(books)

    lease = wait_patiently(books, gang_size=2, affinity_group="g", max_per_node=1)
    for uuid in ("GPU-one-0", "GPU-one-1", "GPU-two-0", "GPU-two-1"):
        end(books, running[uuid])

    assert books.again(lease).state is LeaseState.GRANTED
    assert len({piece.plan.node_id for piece in books.again(lease).holding}) == 2


def test_a_reservation_counts_cpu_that_comes_free() -> None:
    books = Books()
    books.connect(replace(node("one", 2), cpu_milli=8_000))
    first = books.activate(books.allocate(request(cpu_milli=6_000)))
    lease = wait_patiently(books, cpu_milli=4_000)

    end(books, first)

    assert books.again(lease).state is LeaseState.GRANTED


def test_what_is_kept_is_given_up_where_it_no_longer_suits() -> None:
    """The node's agent comes back with a weaker tier while the hold stands."""
    books = Books()
    spec = described(node("one", 1), tiers=(4,))
    books.connect(spec)
    (running,) = fill(books).values()
    lease = wait_patiently(books, min_tier=4)
    assert lease.lease_id in books.state.holds
    books.connect(
        described(spec, tiers=(1,)),
        tuple(
            c.SliceReport(piece.slice_id, piece.lease_epoch, c.ReportStatus.ACTIVE, 1)
            for piece in books.again(running).holding
        ),
    )
    books.settle()

    end(books, books.again(running))

    assert books.again(lease).waiting
    assert any(isinstance(fact, (HoldReleased, HoldBroken)) for fact in books.facts)
    assert lease.lease_id not in books.state.holds


def test_what_is_kept_waits_while_the_group_that_came_meanwhile_is_at_its_limit() -> None:
    books = Books()
    books.connect(node("one", 2))
    running = fill(books)
    lease = wait_patiently(books, affinity_group="g", max_per_node=1)
    (kept,) = books.state.holds[lease.lease_id].device_uuids
    (other,) = {"GPU-one-0", "GPU-one-1"} - {kept}
    early = books.allocate(request(affinity_group="g", priority=9))
    end(books, running[other])
    early = books.activate(books.again(early))
    assert early.slices[0].plan.device_uuid == other

    end(books, running[kept])

    assert books.again(lease).waiting
    end(books, early)
    assert books.again(lease).state is LeaseState.GRANTED


@pytest.mark.parametrize(
    ("mixed", "asked"), [({"vendors": "an"}, {"vendor": "amd"}), ({"tiers": (4, 1)}, {"min_tier": 4})]
)
def test_room_is_made_on_a_node_of_several_vendors_or_tiers(mixed: dict[str, str], asked: dict[str, object]) -> None:
    """The device that would be cheaper to empty is one that the request could not use."""
    books = Books()
    books.connect(described(node("one", 2), **mixed))  # type: ignore[arg-type]
    dear = books.activate(books.allocate(request(preemptible=True)))
    books.advance(20_000)
    books.activate(books.allocate(request(preemptible=True)))
    books.advance(20_000)
    assert dear.slices[0].plan.device_uuid == "GPU-one-0"

    high = books.allocate(request(priority=9, **asked))  # type: ignore[arg-type]
    books.settle()

    assert books.again(dear).state is LeaseState.PREEMPTING
    assert books.state.holds[high.lease_id].device_uuids == ("GPU-one-0",)


def test_devices_are_kept_once_a_request_has_waited_so_long_and_for_so_many_queues() -> None:
    books = Books()
    books.connect(node("one", RESERVATIONS_MAX + 2))
    names = [f"q{number}" for number in range(RESERVATIONS_MAX + 2)]
    declare(books, *(queue(name) for name in names))
    running = fill(books)
    for name in names:
        books.allocate(request(queue=name))
    books.settle()
    books.advance(PATIENCE_MS - 1)
    assert not books.state.holds
    books.advance(1)
    assert len(books.state.holds) == RESERVATIONS_MAX
    for lease in running.values():
        end(books, lease)
    assert not any(lease.waiting for lease in books.state.leases.values())


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
