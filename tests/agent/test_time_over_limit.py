"""A lease answers for the time over its limit, whoever of its processes held the memory: what an attacker can gain."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aliquot.agent.core.accounting import DeviceUsage, ProcessUse
from aliquot.agent.core.enforcement import KILL_AGAIN_MS, Act, Decision, Rules, Watch, held_in_both, judge
from aliquot.agent.core.model import ProcessKey
from aliquot.agent.core.overtime import WINDOW_MS, Record, Seen
from aliquot.common.tiers import Tier
from tests.agent.test_watchdog_rules import reservation, usage, use

# Watching each line would more than double its time, and short tests reach the same ones.
pytestmark = pytest.mark.no_cover

LIMIT, MUCH = 10, 30
RULES = Rules(grace_max_ms=5_000)
INTERVAL_MS, DENSE_MS = 1_000, 100
"""The longest time between two polls: usually, and of a lease with a record."""
TIERS = {"l-1.1.0": Tier.WATCHDOG}


@dataclass
class Attack:
    """A lease that holds too much whenever its schedule says so. It has a fresh process at once for each one that it
    loses, and only the end of the lease stops it.
    """

    schedule: list[tuple[int, bool, int]]
    """How long in ms, whether it holds too much, and how many processes hold it."""
    obeys: bool
    gaps: list[float]
    """The parts of the interval between two polls."""
    watch: Watch = field(default_factory=Watch)
    first: int = 2
    ended: bool = False
    held: list[int] = field(default_factory=list)
    """When it held too much, as far as a look at either end of the gap could show it."""
    acts: list[Act] = field(default_factory=list)

    def holds(self, now_ms: int) -> int:
        """How many processes hold too much; 0: it fits."""
        now_ms %= sum(lasts_ms for lasts_ms, _, _ in self.schedule)
        for lasts_ms, over, count in self.schedule:
            if now_ms < lasts_ms:
                return count if over and not self.ended else 0
            now_ms -= lasts_ms
        raise AssertionError(now_ms)

    def look(self, now_ms: int) -> list[Decision]:
        count = self.holds(now_ms)
        parts = [use(self.first + number, MUCH // count, "l-1") for number in range(count)]
        seen = usage([reservation("l-1", LIMIT)], parts or [use(self.first, LIMIT, "l-1")], MUCH)
        self.watch, decisions = judge(self.watch, seen, TIERS, RULES, now_ms)
        for decision in decisions:
            self.acts.append(decision.act)
            if decision.act is Act.END_LEASE:
                self.ended = True
            elif decision.act in (Act.KILL, Act.KILL_ALL) or (self.obeys and decision.act is Act.TERMINATE):
                self.first += 100
        return decisions

    def run(self, lasts_ms: int) -> None:
        now_ms, turn = 0, 0
        self.look(0)
        while now_ms < lasts_ms and not self.ended:
            interval_ms = DENSE_MS if self.watch.suspects("GPU-a", ["l-1"]) else INTERVAL_MS
            then_ms = now_ms + max(1, int(self.gaps[turn % len(self.gaps)] * interval_ms))
            turn += 1
            before = self.holds(now_ms)
            if before or self.holds(then_ms):
                self.held += [at for at in range(now_ms, then_ms) if self.holds(at)]
            self.look(then_ms)
            now_ms = then_ms

    def most_in_a_minute(self) -> int:
        """Milliseconds."""
        return max((sum(begin <= at < begin + WINDOW_MS for at in self.held) for begin in self.held[::50]), default=0)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(5, 3_000), st.booleans(), st.integers(1, 4)), min_size=1, max_size=8),
    st.booleans(),
    st.lists(st.floats(0.02, 1.0), min_size=1, max_size=20),
)
def test_no_schedule_gains_more_than_the_stated_time(
    schedule: list[tuple[int, bool, int]], obeys: bool, gaps: list[float]
) -> None:
    """What is over at a look is counted in full; one gap passes until all are killed, and one until the lease ends."""
    attack = Attack(schedule, obeys, gaps)
    attack.run(12_000)
    assert attack.most_in_a_minute() <= RULES.over_max_ms + 2 * DENSE_MS


def test_leases_that_are_exceeded_for_a_moment_and_given_back_count_together_for_their_tenant() -> None:
    watch, now_ms, over_ms, ended, others = Watch(), 0, 0, 0, 0
    for number in range(60):
        lease = f"churn-{number}"
        for step in range(3):  # over for 600 ms, then given back
            seen = usage([reservation(lease, LIMIT)], [use(1_000 + number, MUCH, lease)], MUCH)
            watch, decisions = judge(watch, seen, {f"{lease}.1.0": Tier.WATCHDOG}, RULES, now_ms, lambda _: "tenant")
            now_ms += 300 if step < 2 else 0
            over_ms += 300 if step < 2 else 0
            ended += any(decision.act is Act.END_LEASE for decision in decisions)
            if ended:
                break
        if ended:
            break
        watch, _ = judge(watch, usage([], [], 0), {}, RULES, now_ms, lambda _: "tenant")
        now_ms += 100
    assert ended
    assert over_ms <= RULES.over_max_ms + 600
    seen = usage([reservation("other", LIMIT)], [use(9, MUCH, "other")], MUCH)
    _, decisions = judge(watch, seen, {"other.1.0": Tier.WATCHDOG}, RULES, now_ms + 100, lambda _: "another tenant")
    others += sum(decision.act in (Act.KILL_ALL, Act.END_LEASE) for decision in decisions)
    assert not others, "another tenant has a record of its own"


def test_a_relay_that_obeys_each_signal_is_ended_with_its_lease() -> None:
    attack = Attack([(1_000, True, 1)], obeys=True, gaps=[1.0])
    attack.run(60_000)
    assert attack.ended
    assert attack.acts.count(Act.KILL_ALL) == 1
    assert attack.most_in_a_minute() <= RULES.over_max_ms + 2 * DENSE_MS


def test_a_short_mistake_ends_the_process_and_not_the_lease() -> None:
    attack = Attack([(300, True, 1), (60_000, False, 1)], obeys=True, gaps=[0.5])
    attack.run(59_000)
    assert set(attack.acts) <= {Act.WARN, Act.TERMINATE, Act.REPRIEVE}


def test_one_that_is_slow_to_end_after_all_were_killed_is_no_new_offence() -> None:
    watch, over = Watch(), usage([reservation("l-1", LIMIT)], [use(2, MUCH, "l-1")])
    acts = []
    for now_ms in range(0, 4_000, 200):
        watch, decisions = judge(watch, over, TIERS, RULES, now_ms)
        acts += [decision.act for decision in decisions]
    assert acts.count(Act.KILL_ALL) == 3, "once a second, while they hold something"
    assert Act.END_LEASE not in acts
    another = usage([reservation("l-1", LIMIT)], [use(9, MUCH, "l-1")])
    watch, decisions = judge(watch, another, TIERS, RULES, 4_200)
    assert Act.END_LEASE in [decision.act for decision in decisions]


def test_the_clock_of_a_lease_runs_on_over_its_devices() -> None:
    """Held here while the other device is looked at, and there while this one is."""
    watch, acts = Watch(), []
    for turn in range(30):
        for uuid in ("GPU-a", "GPU-b"):
            mine = use(2 + turn, MUCH, "l-1")
            seen = usage([reservation("l-1", LIMIT)], [mine])
            seen = DeviceUsage(uuid, seen.slices, (), (), 0, 0, MUCH)
            watch, decisions = judge(watch, seen, TIERS, RULES, turn * 200)
            acts += [decision.act for decision in decisions]
    assert Act.END_LEASE in acts


def test_what_is_longer_ago_than_the_window_is_forgotten() -> None:
    watch, over = Watch(), usage([reservation("l-1", LIMIT)], [use(2, MUCH, "l-1")])
    fits = usage([reservation("l-1", LIMIT)], [use(2, LIMIT, "l-1")])
    watch, _ = judge(watch, over, TIERS, RULES, 0)
    watch, _ = judge(watch, fits, TIERS, RULES, 200)
    assert watch.suspects("GPU-a", ["l-1"])
    watch, _ = judge(watch, fits, TIERS, RULES, 200 + WINDOW_MS)
    assert not watch.suspects("GPU-a", ["l-1"])


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 80)), max_size=30))
def test_time_counts_once_however_often_it_is_told(spans: list[tuple[int, int]]) -> None:
    record = Record()
    for begin, lasts in spans:
        record = record.add(begin, begin + lasts)
    assert record.over_ms == len({at for begin, lasts in spans for at in range(begin, begin + lasts)})
    later = record.within(WINDOW_MS + 100)
    kept = {at for begin, lasts in spans for at in range(begin, begin + lasts) if at >= 100}
    assert (later.over_ms if later is not None else 0) == len(kept)


def test_strays_that_hop_get_no_second_warning() -> None:
    watch, acts = Watch(), []
    for turn in range(4):
        stray: list[ProcessUse] = [use(7, 5, "l-9")] if turn % 2 == 0 else []
        watch, decisions = judge(watch, usage([], stray), {}, RULES, turn * 4_500)
        acts += [decision.act for decision in decisions]
    assert acts == [Act.WARN, Act.TERMINATE]
    assert watch.strayed_ms.keys() == {"l-9"}


def test_workers_that_come_and_go_hold_as_much_as_one_that_stays() -> None:
    """Nobody is seen twice, so nobody is named; the lease is answerable all the same."""
    watch, acts = Watch(), []
    for turn in range(12):
        looks = [
            usage([reservation("l-1", LIMIT)], [use(100 * turn + 10 * look + n, 8, "l-1") for n in (1, 2, 3)], 24)
            for look in (1, 2)
        ]
        found = held_in_both(*looks)
        assert found.slices[0].known_bytes == 24
        watch, decisions = judge(watch, found, TIERS, RULES, turn * 200)
        acts += [(decision.act, decision.process) for decision in decisions]
    assert (Act.KILL_ALL, None) in acts
    assert all(process is None for _, process in acts)


def test_workers_that_hand_over_within_their_limit_are_left_alone() -> None:
    """Both looks saw the memory with who gave it back and with who took it; the device had it once."""
    looks = [usage([reservation("l-1", LIMIT)], [use(10 * look + n, 8, "l-1") for n in (1, 2)], 9) for look in (1, 2)]
    assert held_in_both(*looks).slices[0].known_bytes <= LIMIT


def test_spans_that_touch_are_one_and_others_are_not() -> None:
    record = Record().add(30, 40).add(10, 20)
    assert record.here.spans == ((10, 20), (30, 40))
    assert record.add(20, 29).here.spans == ((10, 29), (30, 40))
    assert record.add(21, 30).here.spans == ((10, 20), (21, 40))
    assert record.add(0, 50).here.spans == ((0, 50),)


def test_that_all_were_killed_is_forgotten_after_the_window() -> None:
    first, second = ProcessKey(2, 1), ProcessKey(3, 1)
    record = Record().note_killed(frozenset({first}), 1_000).note_killed(frozenset({second}), 2_000)
    assert (record.here.killed_ms, record.killed) == (2_000, frozenset({first, second}))
    assert record.within(2_000 + WINDOW_MS - 1) == record
    assert record.within(2_000 + WINDOW_MS) is None
    later = record.add(5_000, 6_000).within(2_000 + WINDOW_MS)
    assert later == Record(Seen(((5_000, 6_000),)))
    cut = record.add(5_000, 6_000).within(5_500 + WINDOW_MS)
    assert cut is not None
    assert cut.over_ms == 500
    assert record.add(5_000, 6_000).within(6_000 + WINDOW_MS) is None


@pytest.mark.parametrize(
    ("elsewhere", "acts"),
    [
        (Seen(), [Act.TERMINATE]),
        (Seen(((7_000, 8_000),)), [Act.TERMINATE]),
        (Seen(((7_000, 8_500),)), [Act.TERMINATE, Act.KILL_ALL]),
        (Seen(((7_000, 8_500),), killed_ms=8_500), [Act.TERMINATE, Act.END_LEASE]),
        (Seen(((9_000, 10_000),)), [Act.TERMINATE]),
        (Seen(((9_000, 10_500),)), [Act.TERMINATE, Act.KILL_ALL]),
    ],
    ids=["nothing", "little", "enough", "killed there", "at the same time", "longer than here"],
)
def test_a_tenant_answers_for_what_others_saw(elsewhere: Seen, acts: list[Act]) -> None:
    """Another node, or the agent that ran here before: the time counts from its own end, and once."""
    watch = Watch().told("t", elsewhere)
    over = usage([reservation("l-1", LIMIT)], [use(2, MUCH, "l-1")])
    watch, said = judge(watch, usage([reservation("l-1", LIMIT)], []), TIERS, RULES, 9_900, lambda lease: "t")
    assert watch.suspects("GPU-a", ["t"]) is (elsewhere != Seen())
    assert not said
    watch, said = judge(watch, over, TIERS, RULES, 10_000, lambda lease: "t")
    assert [decision.act for decision in said] == [Act.WARN, *acts]


def test_what_others_saw_takes_the_place_of_what_they_said_before_and_ends_with_its_minute() -> None:
    watch = Watch().told("t", Seen(((0, 900),))).told("t", Seen(((20, 920),)))
    assert watch.records["t"].over_ms == 900
    fits = usage([reservation("l-1", LIMIT)], [])
    watch, _ = judge(watch, fits, TIERS, RULES, WINDOW_MS + 900, lambda lease: "t")
    assert watch.records["t"].over_ms == 20
    watch, _ = judge(watch, fits, TIERS, RULES, WINDOW_MS + 920, lambda lease: "t")
    assert not watch.records


def test_a_lease_is_killed_from_the_very_moment_it_may_no_longer() -> None:
    over = usage([reservation("l-1", LIMIT)], [use(2, MUCH, "l-1")])
    watch, _ = judge(Watch(), over, TIERS, RULES, 0)
    _, early = judge(watch, over, TIERS, RULES, RULES.over_max_ms - 1)
    assert Act.KILL_ALL not in [decision.act for decision in early]
    watch, due = judge(watch, over, TIERS, RULES, RULES.over_max_ms)
    assert Act.KILL_ALL in [decision.act for decision in due]
    for after_ms, again in ((KILL_AGAIN_MS - 1, False), (KILL_AGAIN_MS, True)):
        _, said = judge(watch, over, TIERS, RULES, RULES.over_max_ms + after_ms)
        assert (Act.KILL_ALL in [decision.act for decision in said]) == again
