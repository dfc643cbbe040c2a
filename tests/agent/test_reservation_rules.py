"""Whatever orders come in whatever order: fences hold, no device is overcommitted, nothing ends without an
order.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from aliquot.agent.core import reservations
from aliquot.agent.core.desired import Batch, Fence, Order, Verdict, judge
from aliquot.agent.core.model import DEFAULT_GRACE_MS, Actual, Ending, Intent, Reservation, SliceSpec, StopOrder
from aliquot.agent.core.reservations import TRANSITIONS, Book, Event, SliceStatus, Step, next_step, status_of
from aliquot.agent.core.samples import DeviceInfo

GIB = 1 << 30


def device(uuid: str, gib: int = 40) -> DeviceInfo:
    return DeviceInfo(uuid, 0, "A100", "A100-40", "nvidia", gib * GIB, GIB)


DEVICES = {uuid: device(uuid) for uuid in ("GPU-a", "GPU-b")}


def spec(slice_id: str = "l-1.1.0", **changes: object) -> SliceSpec:
    lease_id, epoch, _ = slice_id.split(".")
    fields: dict[str, object] = {
        "slice_id": slice_id,
        "lease_id": lease_id,
        "lease_epoch": int(epoch),
        "device_uuid": "GPU-a",
        "share_milli": 250,
        "memory_bytes": 8 * GIB,
        **changes,
    }
    return SliceSpec(**fields)  # type: ignore[arg-type]


def apply(book: Book, verdict: Verdict) -> None:
    for record in verdict.records:
        book.put(record)
    for slice_id in verdict.forgotten:
        book.forget(slice_id)


def run(*specs: SliceSpec, leader: int = 1, session: int = 1, full: bool = False) -> Batch:
    return Batch(leader, session, full, tuple(Order(each, stop=False) for each in specs))


def stop(*specs: SliceSpec, leader: int = 1, session: int = 1) -> Batch:
    return Batch(leader, session, full=False, orders=tuple(Order(each, stop=True) for each in specs))


FENCE = Fence(leader_epoch=1, session_epoch=1)


def test_a_deposed_leader_is_not_obeyed() -> None:
    verdict = judge(Book(), Fence(5, 1), run(spec(), leader=4), DEVICES, 0)
    assert [refusal.reason for refusal in verdict.refusals] == ["STALE_LEADER"]
    assert not verdict.records
    assert verdict.leader_epoch == 5


def test_an_order_of_another_session_is_not_obeyed() -> None:
    for session in (0, 2):
        verdict = judge(Book(), FENCE, run(spec(), session=session), DEVICES, 0)
        assert [refusal.reason for refusal in verdict.refusals] == ["STALE_SESSION"]


def test_a_higher_leader_is_obeyed_and_remembered() -> None:
    assert judge(Book(), FENCE, run(spec(), leader=7), DEVICES, 0).leader_epoch == 7


def test_a_late_grant_of_an_earlier_shape_is_refused_but_its_leftovers_can_be_stopped() -> None:
    book = Book([Reservation(spec("l-1.1.0")), Reservation(spec("l-1.2.0"))])
    late = judge(book, FENCE, run(spec("l-1.1.1")), DEVICES, 0)
    assert [refusal.reason for refusal in late.refusals] == ["STALE_LEASE"]
    leftover = judge(book, FENCE, stop(spec("l-1.1.0")), DEVICES, 0)
    assert [record.intent for record in leftover.records] == [Intent.STOP]


def test_a_slice_cannot_change_what_it_holds() -> None:
    book = Book([Reservation(spec())])
    verdict = judge(book, FENCE, run(spec(memory_bytes=9 * GIB)), DEVICES, 0)
    assert [refusal.reason for refusal in verdict.refusals] == ["SLICE_CHANGED"]


def test_a_full_list_quarantines_what_it_does_not_name_and_naming_it_again_adopts_it() -> None:
    book = Book([Reservation(spec("l-1.1.0")), Reservation(spec("l-2.1.0"))])
    verdict = judge(book, FENCE, run(spec("l-2.1.0"), full=True), DEVICES, 0)
    apply(book, verdict)
    unknown = book.get("l-1.1.0")
    assert verdict.quarantined == ("l-1.1.0",)
    assert unknown is not None
    assert unknown.quarantined
    assert unknown.intent is Intent.RUN
    assert book.load_of("GPU-a").slices == 2
    apply(book, judge(book, FENCE, run(spec("l-1.1.0")), DEVICES, 0))
    adopted = book.get("l-1.1.0")
    assert adopted is not None
    assert not adopted.quarantined


def test_a_stop_of_what_is_not_here_is_answered_gone() -> None:
    (record,) = judge(Book(), FENCE, stop(spec()), DEVICES, 0).records
    assert status_of(record, Actual()) is SliceStatus.GONE


def test_a_second_stop_keeps_the_clock_and_may_only_shorten_the_grace() -> None:
    record = reservations.order_stop(Reservation(spec()), StopOrder(100, 5000), 1)
    again = reservations.order_stop(record, StopOrder(900, 9000), 1)
    assert again.stop is not None
    assert (again.stop.learned_ms, again.stop.grace_ms) == (100, 5000)
    shorter = reservations.order_stop(record, StopOrder(900, 1000), 1)
    assert shorter.stop is not None
    assert (shorter.stop.learned_ms, shorter.stop.grace_ms) == (100, 1000)


def test_an_unknown_device_and_too_much_fail_with_a_reason() -> None:
    unknown = judge(Book(), FENCE, run(spec(device_uuid="GPU-z")), DEVICES, 0).records[0]
    assert (unknown.ending, unknown.reason) == (Ending.FAILED, "DEVICE_UNKNOWN")
    full = Book([Reservation(spec("l-9.1.0", share_milli=900, memory_bytes=36 * GIB))])
    more = judge(full, FENCE, run(spec(share_milli=200)), DEVICES, 0).records[0]
    assert (more.ending, more.reason) == (Ending.FAILED, "OVERCOMMITTED")
    memory = judge(full, FENCE, run(spec(share_milli=50)), DEVICES, 0).records[0]
    assert (memory.ending, memory.reason) == (Ending.FAILED, "OVERCOMMITTED")


def test_the_steps_of_a_slice_from_grant_to_gone() -> None:
    record = Reservation(spec())
    assert next_step(record, Actual(), 0) is Step.SET_LIMIT
    assert next_step(record, Actual(limit_set=True), 0) is Step.NOTHING
    stopping = reservations.order_stop(record, StopOrder(1_000, 500), 1)
    alive = Actual(limit_set=True, live_processes=2)
    asked = Actual(limit_set=True, live_processes=2, asked_to_end=True)
    assert next_step(stopping, alive, 1_000) is Step.ASK_TO_END
    assert next_step(stopping, asked, 1_499) is Step.WAIT
    assert next_step(stopping, asked, 1_500) is Step.KILL
    assert next_step(stopping, Actual(limit_set=True, live_processes=None), 9_999) is Step.WAIT
    assert next_step(stopping, Actual(limit_set=True), 1_001) is Step.CLEAR_LIMIT
    assert next_step(stopping, Actual(), 1_001) is Step.CONCLUDE
    assert next_step(reservations.conclude(stopping), Actual(), 1_001) is Step.NOTHING


@given(st.sampled_from(list(Intent)), st.sampled_from(list(Event)))
def test_what_has_ended_stays_ended(intent: Intent, event: Event) -> None:
    assert (Intent.ENDED, event) not in TRANSITIONS
    if (intent, event) in TRANSITIONS and TRANSITIONS[intent, event] is Intent.ENDED:
        assert event in (Event.CLEARED, Event.SETUP_FAILED)


def test_what_could_not_be_served_fails_once_its_processes_are_gone_and_its_limit_is_cleared() -> None:
    record = reservations.give_up(Reservation(spec(serve="remote")), StopOrder(100, 500), "HOST_FAILED", "it broke")
    held = Actual(limit_set=True, live_processes=1)
    assert record.holds
    assert status_of(record, held) is SliceStatus.STOPPING
    assert next_step(record, held, 100) is Step.ASK_TO_END
    assert next_step(record, Actual(limit_set=True), 100) is Step.CLEAR_LIMIT
    assert reservations.order_run(record, 1) == record, "an order to run that comes too late is no reprieve"
    ended = reservations.conclude(record)
    assert status_of(ended, Actual()) is SliceStatus.FAILED
    assert (ended.reason, ended.detail) == ("HOST_FAILED", "it broke")
    stopped = reservations.conclude(reservations.order_stop(record, StopOrder(200, 500), 1))
    assert status_of(stopped, Actual()) is SliceStatus.GONE, "an order to stop is answered as every other"
    assert (stopped.reason, stopped.detail) == ("", "")


specs = st.builds(
    lambda lease, epoch, index, uuid, share, gib: spec(
        f"l-{lease}.{epoch}.{index}", device_uuid=uuid, share_milli=share, memory_bytes=gib * GIB
    ),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 1),
    st.sampled_from(["GPU-a", "GPU-b", "GPU-gone"]),
    st.integers(0, 1000),
    st.integers(0, 40),
)


class Agent(RuleBasedStateMachine):
    """Random orders to one book, as a coordinator that has lost its mind would send them."""

    def __init__(self) -> None:
        super().__init__()
        self.book = Book()
        self.fence = Fence(1, 1)
        self.now_ms = 0
        self.stopped: set[str] = set()
        self.failed: set[str] = set()

    def obey(self, batch: Batch) -> Verdict:
        before = {record.slice_id: record for record in self.book}
        verdict = judge(self.book, self.fence, batch, DEVICES, self.now_ms)
        assert {record.slice_id: record for record in self.book} == before, "judging must not change the book"
        assert verdict.leader_epoch >= self.fence.leader_epoch
        for record in verdict.records:
            known = before.get(record.slice_id)
            if known is not None and known.holds and record.holds:
                assert record.spec.device_uuid == known.spec.device_uuid
                assert record.spec.memory_bytes == known.spec.memory_bytes
            if record.intent is Intent.STOP:
                self.stopped.add(record.slice_id)
        self.fence = Fence(verdict.leader_epoch, self.fence.session_epoch)
        apply(self.book, verdict)
        return verdict

    @rule(wanted=st.lists(specs, max_size=4), full=st.booleans(), leader=st.integers(0, 3), session=st.integers(0, 3))
    def order_runs(self, wanted: list[SliceSpec], full: bool, leader: int, session: int) -> None:
        batch = Batch(leader, session, full, tuple(Order(each, stop=False) for each in wanted))
        held = {record.slice_id for record in self.book.holding()}
        verdict = self.obey(batch)
        if leader < self.fence.leader_epoch or session != self.fence.session_epoch:
            assert verdict.refusals
            assert not verdict.records
        assert held == held & {record.slice_id for record in self.book.holding()}, "a list never ends a slice"

    @rule(wanted=st.lists(specs, min_size=1, max_size=3))
    def order_stops(self, wanted: list[SliceSpec]) -> None:
        orders = tuple(Order(each, stop=True, reason="released") for each in wanted)
        self.obey(Batch(self.fence.leader_epoch, self.fence.session_epoch, full=False, orders=orders))

    @rule(session=st.integers(1, 3))
    def reconnect(self, session: int) -> None:
        self.fence = Fence(self.fence.leader_epoch, session)

    @rule(data=st.data())
    def advance(self, data: st.DataObject) -> None:
        self.now_ms += data.draw(st.integers(0, 40_000))
        for record in list(self.book):
            actual = Actual(limit_set=data.draw(st.booleans()), live_processes=data.draw(st.sampled_from([0, 1, None])))
            if next_step(record, actual, self.now_ms) is Step.CONCLUDE:
                given_up = record.ending is Ending.FAILED
                assert given_up or record.slice_id in self.stopped, "nothing ends without an order"
                ended = reservations.conclude(record)
                assert (status_of(ended, actual) is SliceStatus.FAILED) == given_up
                self.book.put(ended)

    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        for record in list(self.book):
            if data.draw(st.booleans()):
                stop = StopOrder(self.now_ms, record.spec.grace_ms)
                self.book.put(reservations.give_up(record, stop, "HOST_FAILED", "it broke"))

    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        ids = tuple(record.slice_id for record in self.book if data.draw(st.booleans()))
        batch = Batch(self.fence.leader_epoch, self.fence.session_epoch, full=False, settled=ids)
        held = {record.slice_id for record in self.book.holding()}
        self.obey(batch)
        assert held == {record.slice_id for record in self.book.holding()}, "only endings can be settled"

    @invariant()
    def never_overcommitted(self) -> None:
        for uuid, info in DEVICES.items():
            load = self.book.load_of(uuid)
            assert load.share_milli <= 1000
            assert load.memory_bytes <= info.leasable_bytes
        assert self.book.load_of("GPU-gone").slices == 0

    @invariant()
    def every_stop_has_an_order(self) -> None:
        for record in self.book:
            assert (record.stop is not None) == (record.intent is Intent.STOP) or record.intent is Intent.ENDED
            given_up = record.intent is Intent.STOP and record.ending is Ending.FAILED
            assert (record.ending is not None) == (record.intent is Intent.ENDED) or given_up


Agent.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestAgent = pytest.mark.no_cover(Agent.TestCase)  # would more than double its time


def test_what_was_exceeded_stays_so_when_it_is_given_back() -> None:
    record = reservations.give_up(Reservation(spec()), StopOrder(100, 0), reservations.OVER_LIMIT, "for 1900 ms")
    ended = reservations.conclude(reservations.order_stop(record, StopOrder(200, 500), 1))
    assert (ended.ending, ended.reason, ended.detail) == (Ending.FAILED, "OVER_LIMIT", "for 1900 ms")


def test_what_fills_a_device_to_the_last_byte_is_taken() -> None:
    device = DEVICES["GPU-a"]
    book = Book([Reservation(spec("l-9.1.0", share_milli=900, memory_bytes=36 * GIB))])
    rest = device.leasable_bytes - 36 * GIB
    (last,) = judge(book, FENCE, run(spec(share_milli=100, memory_bytes=rest)), DEVICES, 0).records
    assert last.holds
    for part in (spec(share_milli=101, memory_bytes=rest), spec(share_milli=100, memory_bytes=rest + 1)):
        (refused,) = judge(book, FENCE, run(part), DEVICES, 0).records
        assert refused.reason == "OVERCOMMITTED"


def test_what_is_no_part_of_a_device_is_refused() -> None:
    for part in (spec(memory_bytes=0), spec(share_milli=0), spec(share_milli=1001), spec(memory_bytes=-1)):
        (record,) = judge(Book(), FENCE, run(part), DEVICES, 0).records
        assert (record.ending, record.reason) == (Ending.FAILED, "INVALID_SLICE")
    for share_milli in (1, 1000):
        (part_of_it,) = judge(Book(), FENCE, run(spec(share_milli=share_milli, memory_bytes=1)), DEVICES, 0).records
        assert part_of_it.holds


def test_an_order_to_stop_has_its_reason_its_time_and_its_grace() -> None:
    book = Book([Reservation(spec())])
    for grace_ms, expected in ((0, DEFAULT_GRACE_MS), (7, 7)):
        order = Order(spec(grace_ms=grace_ms), stop=True, reason="released")
        (record,) = judge(book, FENCE, Batch(1, 1, full=False, orders=(order,)), DEVICES, 42).records
        assert record.stop == StopOrder(42, expected, "released")


def test_an_order_that_changes_nothing_is_answered_again_and_the_rest_is_obeyed() -> None:
    book = Book([Reservation(spec("l-1.2.0"), leader_epoch=1)])
    late, known, fresh = spec("l-1.2.0", lease_epoch=1), spec("l-1.2.0"), spec("l-2.1.0")
    verdict = judge(book, FENCE, run(late, known, fresh), DEVICES, 0)
    assert [refusal.reason for refusal in verdict.refusals] == ["STALE_LEASE"]
    assert verdict.repeats == ("l-1.2.0",)
    assert [record.slice_id for record in verdict.records] == ["l-2.1.0"]


def test_where_a_slice_is_and_what_it_holds_is_fixed_but_its_terms_are_not() -> None:
    book = Book([Reservation(spec())])
    where: dict[str, Any] = {"lease_id": "l-2", "device_uuid": "GPU-b", "member": 1}
    held = {"share_milli": 251, "memory_bytes": 1}
    for name, value in {**where, **held}.items():
        verdict = judge(book, FENCE, run(spec(**{name: value})), DEVICES, 0)
        assert [(refusal.reason, name in refusal.detail) for refusal in verdict.refusals] == [("SLICE_CHANGED", True)]
        (stopped,) = judge(book, FENCE, stop(spec(**{name: value})), DEVICES, 0).records
        assert stopped.intent is Intent.STOP
    (changed,) = judge(book, FENCE, run(spec(grace_ms=9)), DEVICES, 0).records
    assert changed.spec.grace_ms == 9


def test_stops_of_a_batch_come_first() -> None:
    book = Book([Reservation(spec())])
    orders = (Order(spec("l-1.2.0"), stop=False), Order(spec(), stop=True))
    records = judge(book, FENCE, Batch(1, 1, full=False, orders=orders), DEVICES, 0).records
    assert [(record.slice_id, record.intent) for record in records] == [
        ("l-1.1.0", Intent.STOP),
        ("l-1.2.0", Intent.RUN),
    ]


def test_what_one_batch_grants_counts_for_the_rest_of_it() -> None:
    records = judge(Book(), FENCE, run(spec(share_milli=600), spec("l-2.1.0", share_milli=401)), DEVICES, 0).records
    assert [record.reason for record in records] == ["", "OVERCOMMITTED"]


def test_only_endings_that_are_named_are_forgotten_and_who_is_quarantined_stays_so() -> None:
    ended = Reservation(spec("l-1.1.0"), intent=Intent.ENDED, ending=Ending.GONE)
    other = Reservation(spec("l-2.1.0"), intent=Intent.ENDED, ending=Ending.GONE)
    running, unnamed = Reservation(spec("l-3.1.0")), Reservation(spec("l-4.1.0"), quarantined=True)
    batch = Batch(1, 1, full=True, settled=("l-1.1.0", "l-3.1.0"))
    verdict = judge(Book([ended, other, running, unnamed]), FENCE, batch, DEVICES, 0)
    assert verdict.forgotten == ("l-1.1.0",)
    assert verdict.quarantined == ("l-3.1.0",)
    partial = judge(Book([running]), FENCE, Batch(1, 1, full=False), DEVICES, 0)
    assert not partial.records


def test_a_book_finds_what_holds_a_part_by_device_by_lease_and_by_holder() -> None:
    one, two = Reservation(spec("l-1.1.0")), Reservation(spec("l-1.2.0", device_uuid="GPU-b", member=1))
    book = Book([one, two])
    assert (len(book), "l-1.1.0" in book, "l-9.1.0" in book) == (2, True, False)
    assert book.holders() == {one.spec.holder, two.spec.holder}
    assert book.of_holder(one.spec.holder) == [one]
    assert book.of_lease("l-1") == [one, two]
    moved = Reservation(spec("l-1.1.0", device_uuid="GPU-b"))
    book.put(moved)
    assert (book.on_device("GPU-a"), book.on_device("GPU-b")) == ([], [two, moved])
    book.put(reservations.fail(moved, "X", "it broke"))
    assert book.on_device("GPU-b") == [two]
    assert book.holders() == {two.spec.holder}
    assert len(book) == 2, "until it is settled"
    for slice_id in ("l-1.2.0", "l-1.2.0", "l-9.1.0"):
        book.forget(slice_id)
    assert (len(book), book.holding(), book.holders()) == (1, [], frozenset())
