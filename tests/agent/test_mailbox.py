"""What waits to be told to the coordinator is told once, in order, not too often, and all of it anew by a snapshot."""

from __future__ import annotations

import math

import pytest

from aliquot.agent.core.figures import ServedReport
from aliquot.agent.core.model import Holder, ProcessKey
from aliquot.agent.core.overtime import Record, Seen
from aliquot.agent.core.reports import LeaseHit
from aliquot.agent.core.samples import DeviceInfo, MemorySample
from aliquot.agent.mailbox import MAX_HITS, MAX_TENANTS, OVERTIME_EVERY_MS, Mailbox
from aliquot.agent.state import DeviceState, NodeState
from aliquot.agent.wire import device_report
from tests.manual_clock import ManualClock

GIB = 1 << 30
MEMBERS = [Holder("l-1", 1, 0), Holder("l-2", 1, 0)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_000_000)


@pytest.fixture
def state() -> NodeState:
    made = NodeState("node", "node", "boot")
    for uuid in ("GPU-a", "GPU-b"):
        made.devices[uuid] = DeviceState(DeviceInfo(uuid, 0, "GPU", "GPU", "any", 8 * GIB, 0))
    return made


@pytest.fixture
def mailbox(state: NodeState, clock: ManualClock) -> Mailbox:
    made = Mailbox(state, clock)
    made.take_all({uuid: device_report(device) for uuid, device in state.devices.items()})
    return made


def use(state: NodeState, uuid: str, used: int) -> None:
    state.devices[uuid].memory = MemorySample(8 * GIB, 0, used)


def test_devices_that_changed_are_told_once_and_after_the_interval(
    mailbox: Mailbox, state: NodeState, clock: ManualClock
) -> None:
    assert mailbox.devices_in_s() == math.inf
    mailbox.device_polled("GPU-a")
    mailbox.device_polled("GPU-of-nobody")
    assert mailbox.devices_in_s() == math.inf, "nothing has changed"
    before = mailbox.seq
    use(state, "GPU-a", GIB)
    mailbox.device_polled("GPU-a")
    assert mailbox.devices_in_s() == 1.0
    assert mailbox.take_devices() == ()
    clock.advance(999)
    assert mailbox.take_devices() == ()
    clock.advance(1)
    assert mailbox.devices_in_s() == 0.0
    (told,) = mailbox.take_devices()
    assert (told.uuid, told.memory_used_bytes, mailbox.seq) == ("GPU-a", GIB, before + 1)
    mailbox.device_polled("GPU-a")
    assert mailbox.devices_in_s() == math.inf
    assert mailbox.take_devices() == ()
    mailbox.set_interval(50)
    use(state, "GPU-b", GIB)
    mailbox.device_polled("GPU-b")
    assert mailbox.devices_in_s() == 0.05


def test_a_snapshot_holds_what_waited(mailbox: Mailbox, state: NodeState) -> None:
    use(state, "GPU-a", GIB)
    mailbox.device_polled("GPU-a")
    wanted = [mailbox.wants_snapshot]
    mailbox.request_snapshot()
    wanted.append(mailbox.wants_snapshot)
    mailbox.serve(MEMBERS[0], ServedReport("s-1", {"sessions": 1}, {}))
    assert len(mailbox.take_served()) == 1
    assert mailbox.take_served() == []
    mailbox.take_all({uuid: device_report(device) for uuid, device in state.devices.items()})
    assert [*wanted, mailbox.wants_snapshot] == [False, True, False]
    assert mailbox.devices_in_s() == math.inf
    assert [each.slice_id for each in mailbox.take_served()] == ["s-1"], "in no snapshot: it is sent again"


def test_of_members_that_are_served_the_latest_is_told_as_long_as_they_are(mailbox: Mailbox) -> None:
    first, second = MEMBERS
    mailbox.serve(first, ServedReport("s-1", {"ops_total": 1}, {"ops_total": 0}))
    mailbox.serve(first, ServedReport("s-1", {"ops_total": 2}, {"ops_total": 1}))
    mailbox.serve(second, ServedReport("s-2", {"ops_total": 2}, {"ops_total": 0}))
    assert (mailbox.rated(first), mailbox.rated(second), mailbox.rated(Holder("l-3", 1, 0))) == (True, False, False)
    mailbox.serve(second, None)
    mailbox.serve(second, None)
    assert [each.figures for each in mailbox.take_served()] == [{"ops_total": 2}]
    assert not mailbox.rated(second)


def test_of_more_faults_than_are_kept_the_oldest_are_dropped(mailbox: Mailbox) -> None:
    hits = [LeaseHit("GPU-a", "l-1", str(number), suspicious=False) for number in range(MAX_HITS + 2)]
    for hit in hits:
        mailbox.hit(hit)
    assert mailbox.take_hits() == tuple(hits[2:])
    assert mailbox.take_hits() == ()


def test_time_over_limits_is_told_a_few_times_a_second_and_that_all_were_killed_at_once(
    mailbox: Mailbox, clock: ManualClock
) -> None:
    def over(**records: Seen) -> dict[str, Seen]:
        mailbox.over({tenant: Record(seen) for tenant, seen in records.items()})
        return mailbox.take_overtime()

    seen = Seen(((0, 10),))
    assert over(vision=seen) == {"vision": seen}
    assert over(vision=seen) == {}
    grown = Seen(((0, 20),))
    assert over(vision=grown) == {}, "too early"
    killed = Seen(((0, 20),), 20)
    assert over(vision=killed, audio=seen) == {"vision": killed, "audio": seen}
    clock.advance(OVERTIME_EVERY_MS)
    assert over(vision=killed, audio=Seen()) == {}, "nothing new"
    assert over(vision=Seen(((0, 30),), 20)) == {"vision": Seen(((0, 30),), 20)}
    assert over(audio=seen) == {"audio": seen}, "it was forgotten with its tenant"
    mailbox.take_all({})
    assert mailbox.take_overtime() == {"audio": seen}, "another coordinator may lead"
    many = {f"t{number}": Record(seen, killed=frozenset({ProcessKey(1, 1)})) for number in range(MAX_TENANTS + 3)}
    mailbox.over(many)
    assert [len(mailbox.take_overtime()) for _ in range(3)] == [MAX_TENANTS, 3, 0]
