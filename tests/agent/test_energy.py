"""What slices draw of their card's energy: never more than the card, and all of it while it is leased as a whole."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from aliquot.agent.core.accounting import DeviceUsage, ProcessUse, SliceUsage
from aliquot.agent.core.energy import Meter, Part, divide
from aliquot.agent.core.model import Intent, Reservation, SliceSpec
from aliquot.agent.core.samples import DeviceInfo, Engines, LoadSample, MemorySample
from aliquot.agent.metering import read_energy
from aliquot.agent.state import DeviceState, NodeState
from aliquot.agent.wire import device_report
from tests.agent.harness import GIB

BUSY = st.one_of(st.none(), st.integers(0, 1000))
PARTS = st.dictionaries(
    st.sampled_from("abcdefg"), st.builds(Part, st.integers(1, 1000), BUSY), max_size=7
)  # more than the whole card: who borrows lies on a lender
Reading = tuple[int, int | None, dict[str, Part], int | None, bool]
READINGS: st.SearchStrategy[list[Reading]] = st.lists(
    st.tuples(
        st.integers(0, 20_000),  # milliseconds since the one before
        st.one_of(st.none(), st.just(-1), st.integers(0, 10**7)),  # not told; the driver was loaded anew; drawn since
        PARTS,
        st.one_of(st.none(), st.integers(0, 1000)),
        st.booleans(),  # the agent was restarted before it
    ),
    max_size=30,
)


@given(READINGS)
def test_the_parts_never_exceed_what_the_card_has_drawn(
    readings: list[Reading],
) -> None:
    meter, counter_mj, now_ms = Meter(), 0, 0
    card_mj, sums = 0, Counter[str]()
    for elapsed_ms, more_mj, parts, others, restarted in readings:
        if restarted:
            meter = Meter()
        now_ms += elapsed_ms
        if more_mj is not None:
            counter_mj = 7 if more_mj < 0 else counter_mj + more_mj
            card_mj += 7 if more_mj < 0 else more_mj
        drawn = meter.take(None if more_mj is None else counter_mj, now_ms, parts, others)
        assert drawn.keys() <= parts.keys()
        assert all(mj >= 0 for mj in drawn.values()), "a sum never falls"
        sums.update(drawn)
        assert sums.total() <= card_mj


@given(
    st.integers(0, 10**9), st.integers(0, 1000), st.lists(st.tuples(st.integers(1, 400), BUSY), min_size=1, max_size=6)
)
def test_of_a_card_that_is_leased_as_a_whole_not_a_millijoule_is_lost(
    drawn_mj: int, idle_permille: int, some: list[tuple[int, int | None]]
) -> None:
    parts = {str(number): Part(share, busy) for number, (share, busy) in enumerate(some)}
    left = 1000 - sum(part.share_milli for part in parts.values())
    if left > 0:
        parts["rest"] = Part(left, 0)
    found = divide(drawn_mj, drawn_mj * idle_permille // 1000, parts, 0)
    assert sum(found.values()) == drawn_mj


def test_idle_power_goes_by_shares_and_what_is_above_by_who_was_busy() -> None:
    parts = {"quarter": Part(250, 600), "half": Part(500, 200)}
    assert divide(10_000, 4_000, parts, 0) == {"quarter": 1_000 + 4_500, "half": 2_000 + 1_500}
    assert divide(10_000, 4_000, parts, 200) == {"quarter": 1_000 + 3_600, "half": 2_000 + 1_200}, "others have theirs"
    unknown = {"quarter": Part(250, None), "half": Part(500, None), "asleep": Part(250, 0)}
    assert divide(10_000, 4_000, unknown, 0) == {"quarter": 3_000, "half": 6_000, "asleep": 1_000}
    assert divide(10_000, 4_000, unknown, None) == {"quarter": 2_500, "half": 5_000, "asleep": 1_000}, "some is others'"


def test_a_meter_learns_idle_power_and_counts_from_a_slices_first_reading_on() -> None:
    meter, one = Meter(), {"one": Part(500, 900)}
    assert meter.take(1_000, 0, {}, 0) == {}
    assert meter.take(51_000, 1_000, one, 0) == {}, "it was not there at the reading before"
    assert meter.mean_power_mw == 50_000
    assert meter.take(251_000, 2_000, one, 0) == {"one": 25_000 + 150_000}, "half of 50 W, and all above"
    assert meter.take(251_010, 2_050, one, 0) == {}, "too soon"
    assert meter.take(10, 3_000, one, 0) == {}, "the driver was loaded anew"
    assert not meter.mean_power_mw
    assert meter.take(50_010, 4_000, one, 0) == {"one": 25_000}
    assert meter.take(None, 5_000, one, 0) == {}
    assert meter.take(90_000, 6_000, one, 0) == {}, "how much of it was drawn meanwhile is known again from now on"
    assert meter.take(140_000, 7_000, {}, 0) == {}, "who has left has no more"


def test_two_instances_of_a_card_share_its_counter_by_their_own_counters_of_work() -> None:
    state = NodeState("n-1", "node", "boot")
    for name, sm, compute in (("a", 50, 571), ("b", 100, 428)):
        info = DeviceInfo(f"MIG-{name}", 0, "A", "A", "nvidia", 8 * GIB, 0, parent_uuid="GPU-0", compute_milli=compute)
        record = Reservation(SliceSpec(f"l-{name}.1.0", f"l-{name}", 1, info.uuid, compute, 8 * GIB))
        state.book.put(record)
        usage = DeviceUsage(info.uuid, (SliceUsage(record, (ProcessUse(1, None, GIB),)),), (), (), 0, 0)
        state.devices[info.uuid] = DeviceState(
            info, memory=MemorySample(8 * GIB, 0, GIB), usage=usage, load=LoadSample(engines=Engines(sm))
        )
    first, second = state.devices.values()
    for at_ms, energy_mj in ((0, 1_000), (1_000, 51_000), (2_000, 251_000)):
        first.load = LoadSample(energy_mj=energy_mj, engines=Engines(50))
        read_energy(state, first, at_ms)
        second.load = LoadSample(energy_mj=energy_mj, engines=Engines(100))
        read_energy(state, second, at_ms + 1)
    told = {slice_id: actual.energy_mj or 0 for slice_id, actual in state.actual.items()}
    assert told.keys() == {"l-a.1.0", "l-b.1.0"}
    assert 249_000 <= sum(told.values()) <= 250_000, "the rest of a thousandth is leased by nobody"
    assert told["l-b.1.0"] > told["l-a.1.0"], "the smaller one worked more"
    assert first.mean_power_mw is None, "of an instance alone nobody knows"
    (use,) = device_report(first, state.actual).slices
    assert use.energy_mj == told["l-a.1.0"]
    state.book.put(Reservation(first.usage.slices[0].reservation.spec, intent=Intent.ENDED))  # type: ignore[union-attr]
    first.load = LoadSample(energy_mj=451_000)
    read_energy(state, first, 3_000)
    assert state.actual["l-a.1.0"].energy_mj == told["l-a.1.0"], "what is over draws nothing"
