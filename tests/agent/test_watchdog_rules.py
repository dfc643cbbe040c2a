"""The watchdog's decisions over random devices: only who must go is chosen, and never anybody else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aliquot.agent.core.accounting import DeviceUsage, ProcessUse, SliceUsage, account
from aliquot.agent.core.enforcement import (
    CONTEXT_MAX_BYTES,
    Act,
    Decision,
    Rules,
    Watch,
    held_in_both,
    judge,
    needs_second_look,
)
from aliquot.agent.core.model import Holder, ProcessKey, Reservation, SliceSpec
from aliquot.agent.core.samples import MemorySample
from aliquot.common.tiers import Tier

RULES = Rules(grace_max_ms=1_000)
UUID = "GPU-a"
GIB = 1 << 30


def reservation(lease: str, limit: int, *, share_milli: int = 250, grace_ms: int = 30_000) -> Reservation:
    return Reservation(SliceSpec(f"{lease}.1.0", lease, 1, UUID, share_milli, limit, grace_ms=grace_ms))


def use(pid: int, memory: int | None, *leases: str, known: bool = True) -> ProcessUse:
    return ProcessUse(pid, ProcessKey(pid, pid * 10) if known else None, memory, tuple(Holder(x, 1, 0) for x in leases))


def usage(records: list[Reservation], uses: list[ProcessUse], used: int = 1 << 39) -> DeviceUsage:
    return account(UUID, MemorySample(1 << 40, 0, used), uses, records)


def watch(
    usages: list[DeviceUsage], *, tier: Tier = Tier.WATCHDOG, step_ms: int = 100, rules: Rules = RULES
) -> list[list[Decision]]:
    """The decisions of consecutive polls."""
    state, now_ms, result = Watch(), 0, []
    for each in usages:
        tiers = {piece.reservation.slice_id: tier for piece in each.slices}
        state, decisions = judge(state, each, tiers, rules, now_ms)
        result.append(decisions)
        now_ms += step_ms
    return result


def signals(decisions: list[Decision]) -> list[tuple[Act, int]]:
    """What is done to processes, warnings aside."""
    acts = [(each.act, each.process.pid) for each in decisions if each.process is not None]
    return [(act, pid) for act, pid in acts if act is not Act.WARN]


memories = st.one_of(st.none(), st.integers(0, 1000))
uses = st.lists(
    st.builds(
        use,
        st.integers(2, 10_000),
        memories,
        st.sampled_from(["l-1", "l-2", "l-3"]),
        known=st.booleans(),
    )
    | st.builds(use, st.integers(2, 10_000), memories),
    max_size=12,
    unique_by=lambda each: each.pid,
)


@given(uses, st.integers(1, 1500), st.integers(1, 1500))
def test_only_identified_processes_with_known_memory_of_an_over_limit_slice_are_chosen(
    listed: list[ProcessUse], first: int, second: int
) -> None:
    records = [reservation("l-1", first), reservation("l-2", second)]
    now = usage(records, listed)
    (decisions,) = watch([now])
    chosen = {pid for act, pid in signals(decisions) if act in (Act.TERMINATE, Act.KILL)}
    for piece in now.slices:
        mine = {each.pid for each in piece.uses}
        victims = [each for each in piece.uses if each.pid in chosen]
        limit = piece.reservation.spec.memory_bytes
        if piece.known_bytes <= limit:
            assert not victims
            continue
        assert all(each.process is not None and (each.memory_bytes or 0) > 0 for each in victims)
        identified = [each for each in piece.uses if each.process is not None and (each.memory_bytes or 0) > 0]
        left = piece.known_bytes - sum(each.memory_bytes or 0 for each in victims)
        assert left <= limit or len(victims) == len(identified), "what is left fits, or nobody else can be chosen"
        if victims:
            smallest = min(each.memory_bytes or 0 for each in victims)
            assert left + smallest > limit, "nobody is chosen in vain"
            spared = [each.memory_bytes or 0 for each in identified if each.pid not in chosen]
            assert all(memory <= smallest for memory in spared), "the largest go first"
        assert chosen & mine == {each.pid for each in victims}
    outsiders = {each.pid for each in (*now.foreign, *now.strays)}
    assert not chosen & outsiders, "foreign processes never, strays not at first sight"


@given(uses, st.integers(1, 500))
def test_whole_devices_and_partitions_are_left_alone(listed: list[ProcessUse], limit: int) -> None:
    for tier in (Tier.MIG, Tier.NONE):
        (decisions,) = watch([usage([reservation("l-1", limit)], listed)], tier=tier)
        assert not signals(decisions)
    (decisions,) = watch([usage([reservation("l-1", limit, share_milli=1000)], listed)])
    assert not signals(decisions)


def test_a_tier_that_denies_is_watched_as_well_but_not_by_one_look() -> None:
    over = usage([reservation("l-1", 4 * GIB)], [use(5, 30 * GIB, "l-1")])
    fits = usage([reservation("l-1", 4 * GIB)], [use(5, 3 * GIB, "l-1")])
    assert [signals(decisions) for decisions in watch([over, fits, over, over], tier=Tier.DRIVER)] == [
        [],
        [],
        [],
        [(Act.TERMINATE, 5)],
    ]


@given(st.lists(st.integers(0, CONTEXT_MAX_BYTES), min_size=1, max_size=5))
def test_contexts_that_a_tier_does_not_charge_end_nobody(contexts: list[int]) -> None:
    """A process each at the limit that the driver holds it to, and its context beside that."""
    limit = 4 * GIB
    parts = [limit // len(contexts) + context for context in contexts]
    held = usage([reservation("l-1", limit)], [use(number, part, "l-1") for number, part in enumerate(parts, 2)])
    assert not [act for decisions in watch([held] * 30, tier=Tier.DRIVER) for act in signals(decisions)]


def test_what_a_slice_holds_beyond_its_limit_is_not_there_to_be_granted() -> None:
    before = usage([reservation("l-1", 10)], [use(5, 30)])
    attached = usage([reservation("l-1", 10)], [use(5, 30, "l-1")])
    assert (before.foreign_bytes, attached.foreign_bytes) == (30, 20)
    whole = usage([reservation("l-1", 10, share_milli=1000)], [use(5, 30, "l-1")])
    assert whole.foreign_bytes == 0


def test_unknown_memory_is_never_a_reason_to_end_a_process() -> None:
    now = usage([reservation("l-1", 10)], [use(5, None, "l-1"), use(6, 10, "l-1")])
    assert not signals(watch([now])[0])
    assert now.slices[0].observed_bytes is None
    assert now.slices[0].known_bytes == 10


def test_sigterm_in_the_first_poll_and_sigkill_after_the_grace() -> None:
    over = usage([reservation("l-1", 10)], [use(5, 11, "l-1")])
    polls = watch([over] * 12)
    assert signals(polls[0]) == [(Act.TERMINATE, 5)]
    assert all(not signals(decisions) for decisions in polls[1:10])
    assert signals(polls[10]) == [(Act.KILL, 5)]


def test_a_leases_own_grace_may_be_shorter() -> None:
    over = usage([reservation("l-1", 10, grace_ms=200)], [use(5, 11, "l-1")])
    assert signals(watch([over] * 3)[2]) == [(Act.KILL, 5)]


def test_who_gives_the_memory_back_in_time_is_reprieved() -> None:
    over = usage([reservation("l-1", 10)], [use(5, 11, "l-1")])
    fits = usage([reservation("l-1", 10)], [use(5, 9, "l-1")])
    polls = watch([over, *[fits] * 30])
    assert signals(polls[1]) == [(Act.REPRIEVE, 5)]
    assert all(not signals(decisions) for decisions in polls[2:])


def test_swinging_around_the_limit_gains_nothing() -> None:
    over = usage([reservation("l-1", 10)], [use(5, 11, "l-1")])
    fits = usage([reservation("l-1", 10)], [use(5, 9, "l-1")])
    polls = watch([over, fits] * 10)
    assert Act.KILL in [act for decisions in polls for act, _ in signals(decisions)]


def test_a_new_offence_long_after_gets_its_own_grace() -> None:
    over = usage([reservation("l-1", 10)], [use(5, 11, "l-1")])
    fits = usage([reservation("l-1", 10)], [use(5, 9, "l-1")])
    polls = watch([over, *[fits] * 15, over])
    assert signals(polls[16]) == [(Act.TERMINATE, 5)]


def test_a_slice_near_its_limit_is_warned_once() -> None:
    near = usage([reservation("l-1", 100)], [use(5, 96, "l-1")])
    calm = usage([reservation("l-1", 100)], [use(5, 50, "l-1")])
    acts = [[each.act for each in decisions] for decisions in watch([near, near, calm, near])]
    assert acts == [[Act.WARN], [], [], [Act.WARN]]


def test_a_stray_is_ended_at_second_sight_and_only_if_told_to() -> None:
    stray = usage([reservation("l-1", 10)], [use(7, 5, "l-9")])
    polls = watch([stray] * 13)
    assert [each.act for each in polls[0]] == [Act.WARN]
    assert signals(polls[1]) == [(Act.TERMINATE, 7)]
    assert (Act.KILL, 7) in signals(polls[11])
    lenient = watch([stray] * 13, rules=Rules(grace_max_ms=1_000, stop_strays=False))
    assert not [act for decisions in lenient for act in signals(decisions)]


def test_memory_counts_against_the_slice_on_this_device_for_a_process_of_several_leases() -> None:
    now = usage([reservation("l-1", 10)], [use(5, 4, "l-2", "l-1")])
    assert isinstance(now.slices[0], SliceUsage)
    assert now.slices[0].known_bytes == 4
    assert not now.strays


def test_foreign_memory_of_unknown_size_is_estimated_on_the_side_of_granting_less() -> None:
    records = [reservation("l-1", 100)]
    uses_now = [use(5, 40, "l-1"), use(6, None)]
    found = account(UUID, MemorySample(1000, 0, 240), uses_now, records)
    assert found.unattributed_bytes == 200
    assert found.foreign_bytes == 200
    leased_unknown = account(UUID, MemorySample(1000, 0, 240), [use(5, None, "l-1"), use(6, None)], records)
    assert leased_unknown.foreign_bytes == 140, "the lease's own unknown process is within its 100"


def test_a_list_that_is_not_complete_makes_everything_unknown() -> None:
    found = account(UUID, MemorySample(1000, 0, 500), [], [reservation("l-1", 100)], complete=False)
    assert found.slices[0].observed_bytes is None
    assert found.foreign_bytes == 400, "what is used beyond what is reserved may all be somebody else's"


@given(uses, st.integers(0, 1 << 20))
def test_every_listed_process_is_counted_exactly_once(listed: list[ProcessUse], used: int) -> None:
    records = [reservation("l-1", 100), reservation("l-2", 100)]
    found = account(UUID, MemorySample(1 << 21, 0, used), listed, records)
    sorted_out = [each for piece in found.slices for each in piece.uses] + [*found.strays, *found.foreign]
    assert sorted(each.pid for each in sorted_out) == sorted(each.pid for each in listed)
    outside = sum(each.memory_bytes or 0 for each in (*found.strays, *found.foreign))
    assert found.foreign_bytes >= outside


def test_memory_that_moves_between_processes_while_they_are_read_is_no_breach() -> None:
    """One gave back what the other took, after the first and before the second of them was read."""
    limited = reservation("l-1", 1000)
    torn = usage([limited], [use(2, 900, "l-1"), use(3, 900, "l-1")], 950)
    then = usage([limited], [use(2, 50, "l-1"), use(3, 900, "l-1"), use(4, 800, "l-1")], 950)
    tiers = {limited.slice_id: Tier.PRELOAD}
    assert needs_second_look(torn, tiers)
    found = held_in_both(torn, then)
    assert found.slices[0].known_bytes == 950
    assert not signals(watch([found])[0])
    assert signals(watch([torn])[0]), "which judged by itself would have ended one of them"


def test_what_two_looks_agree_on_is_a_breach() -> None:
    limited = reservation("l-1", 1000)
    over = usage([limited], [use(2, 900, "l-1"), use(3, 800, "l-1")])
    assert signals(watch([held_in_both(over, over)])[0]) == [(Act.TERMINATE, 2)]


def test_one_process_alone_or_a_slice_without_a_tier_needs_no_second_look() -> None:
    limited = reservation("l-1", 1000)
    alone, several = [use(2, 1500, "l-1")], [use(2, 900, "l-1"), use(3, 900, "l-1")]
    assert not needs_second_look(usage([limited], alone), {limited.slice_id: Tier.WATCHDOG})
    assert needs_second_look(usage([limited], several), {limited.slice_id: Tier.DRIVER})
    assert not needs_second_look(usage([limited], several), {})
    assert needs_second_look(usage([limited], several), {limited.slice_id: Tier.WATCHDOG})


def test_memory_unknown_to_either_look_stays_unknown() -> None:
    limited = reservation("l-1", 1000)
    first = usage([limited], [use(2, 900, "l-1"), use(3, None, "l-1"), use(5, 400, "l-1")])
    second = usage([limited], [use(2, None, "l-1"), use(3, 700, "l-1"), use(5, 500, "l-1")])
    found = held_in_both(first, second).slices[0]
    assert found.known_bytes == 400
    assert found.observed_bytes is None


def test_a_warning_comes_at_95_percent_and_again_only_after_a_fall_below_90() -> None:
    levels = (949, 950, 899, 950, 900, 950)
    acts = watch([usage([reservation("l-1", 1000)], [use(5, level, "l-1")]) for level in levels])
    assert [[each.act for each in decisions] for decisions in acts] == [[], [Act.WARN], [], [Act.WARN], [], []]


def test_what_reaches_its_limit_exactly_is_not_over_it() -> None:
    both = [use(2, 500, "l-1"), use(3, 500, "l-1")]
    full = usage([reservation("l-1", 1000)], both)
    assert not needs_second_look(full, {"l-1.1.0": Tier.WATCHDOG})
    assert not signals(watch([full])[0])
    whole = usage([reservation("l-1", 10, share_milli=1000)], both)
    assert not needs_second_look(whole, {"l-1.1.0": Tier.WATCHDOG})


def test_of_equals_the_youngest_goes_and_no_more_than_needed() -> None:
    three = [use(2, 400, "l-1"), use(4, 400, "l-1"), use(3, 400, "l-1")]
    over = usage([reservation("l-1", 1000)], three)
    polls = watch([over] * 3)
    assert [signals(decisions) for decisions in polls] == [[(Act.TERMINATE, 4)], [], []]
    more = usage([reservation("l-1", 1000)], [*three, use(9, 300, "l-1")])
    assert signals(watch([over, more])[1]) == [(Act.TERMINATE, 3)], "one more, the other is expected to end"


def test_within_its_limit_for_one_grace_starts_the_clock_anew() -> None:
    over = usage([reservation("l-1", 10)], [use(5, 11, "l-1")])
    fits = usage([reservation("l-1", 10)], [use(5, 9, "l-1")])
    assert signals(watch([over, *[fits] * 10, over])[11]) == [(Act.KILL, 5)], "900 ms passed from sight to sight"
    assert signals(watch([over, *[fits] * 11, over])[12]) == [(Act.TERMINATE, 5)]


def test_beyond_a_context_for_each_process_a_tier_that_denies_is_judged() -> None:
    for by, acts in ((0, []), (1, [(Act.TERMINATE, 5)])):
        held = [use(5, 4 * GIB + 2 * CONTEXT_MAX_BYTES - 10 + by, "l-1"), use(6, 10, "l-1")]
        over = usage([reservation("l-1", 4 * GIB)], held)
        assert signals(watch([over, over], tier=Tier.DRIVER)[1]) == acts


def test_strays_with_nothing_or_without_a_name_are_left_alone() -> None:
    for stray in (use(7, 0, "l-9"), use(7, None, "l-9"), use(7, 5, "l-9", known=False)):
        assert not any(watch([usage([], [stray])] * 3))


def test_strays_are_reported_once_where_they_may_stay() -> None:
    lenient = Rules(grace_max_ms=1_000, stop_strays=False)
    acts = [[each.act for each in decisions] for decisions in watch([usage([], [use(7, 5, "l-9")])] * 3, rules=lenient)]
    assert acts == [[Act.WARN], [], []]


def test_a_stray_has_all_of_the_grace() -> None:
    polls = watch([usage([], [use(7, 5, "l-9")])] * 12, rules=Rules(grace_max_ms=1_000, over_max_ms=60_000))
    assert [signals(decisions) for decisions in polls[1:]] == [[(Act.TERMINATE, 7)], *[[]] * 9, [(Act.KILL, 7)]]


def test_what_is_forgotten_with_a_device_and_what_makes_one_suspect() -> None:
    rules, over = Rules(grace_max_ms=1_000), usage([reservation("l-1", 10)], [use(5, 11, "l-1")])
    found, _ = judge(Watch(), over, {"l-1.1.0": Tier.WATCHDOG}, rules, 0)
    assert found.suspects(UUID, [])
    assert found.suspects("GPU-b", ["l-1"])
    assert not found.suspects("GPU-b", ["l-2"])
    gone = found.without(UUID)
    assert not gone.suspects(UUID, [])
    assert gone.suspects(UUID, ["l-1"]), "the lease is still answerable"
    assert found.without("GPU-b") == found
    first, _ = judge(Watch(), usage([], [use(7, 5, "l-9")]), {}, rules, 0)
    assert not first.suspects(UUID, [])
    second, _ = judge(first, usage([], [use(7, 5, "l-9")]), {}, rules, 100)
    assert second.suspects(UUID, [])


def test_two_thirds_of_what_is_allowed_may_be_unseen() -> None:
    assert Rules(over_max_ms=1_500).unseen_max_ms == 1_000


def test_unless_told_otherwise_sigkill_comes_after_five_seconds() -> None:
    over = usage([reservation("l-1", 10)], [use(5, 11, "l-1")])
    polls = watch([over] * 3, rules=Rules(over_max_ms=60_000), step_ms=2_500)
    assert [signals(decisions) for decisions in polls] == [[(Act.TERMINATE, 5)], [], [(Act.KILL, 5)]]
    nearly = watch([over] * 2, rules=Rules(over_max_ms=60_000), step_ms=4_999)
    assert not signals(nearly[1])


@given(st.integers(0, 2000), st.lists(st.integers(1, 500), min_size=1, max_size=4))
def test_processes_do_not_answer_for_memory_of_which_nobody_can_say_whose_it_is(nobodys: int, held: list[int]) -> None:
    """A driver lists some memory of a slice with no pid: those that have one answer for their own excess alone."""
    limit = 1_000
    named = [use(number, memory, "l-1") for number, memory in enumerate(held, 5)]
    (decisions,) = watch([usage([reservation("l-1", limit)], [use(0, nobodys, "l-1", known=False), *named])])
    told = {pid for act, pid in signals(decisions) if act is Act.TERMINATE}
    assert bool(told) == (sum(held) > limit)
    left = sum(each.memory_bytes or 0 for each in named if each.pid not in told)
    assert left <= limit
