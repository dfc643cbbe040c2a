"""The list of what is due: in order of time whatever was added when, and nothing is kept of what was dropped."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aliquot.coordinator.core.values.timers import Due, Timers

_BUCKET_MS = 4_096
_FOR_EVER_MS = 1 << 60
_TIMES = st.one_of(st.integers(0, 3 * _BUCKET_MS), st.integers(0, 366 * 86_400_000))
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), _TIMES, st.sampled_from(list(Due)), st.sampled_from("abc")),
        st.tuples(st.just("drop"), st.integers(0, 40)),
        st.tuples(st.just("wait"), _TIMES),
    ),
    max_size=60,
)


@given(_STEPS)
def test_what_is_due_is_taken_in_order_and_what_was_dropped_long_before_is_not(steps: list[tuple[object, ...]]) -> None:
    timers = Timers()
    model: set[tuple[int, int, str]] = set()
    now_ms = 0
    for step in steps:
        if step[0] == "add":
            _, due_ms, kind, subject = step
            assert isinstance(due_ms, int)
            assert isinstance(kind, Due)
            entry = (now_ms + due_ms, int(kind), str(subject))
            if entry not in model:  # one that is there already may come once or twice: it is a hint
                timers.add(entry[0], kind, entry[2])
                model.add(entry)
        elif step[0] == "drop":
            known = sorted(model)
            assert isinstance(step[1], int)
            if known:
                entry = known[step[1] % len(known)]
                timers.drop(entry[0], Due(entry[1]), entry[2])
                model.discard(entry)
        else:
            assert isinstance(step[1], int)
            now_ms += step[1]
            due = sorted(entry for entry in model if entry[0] <= now_ms)
            _check_next(timers.next_after(now_ms), [entry[0] for entry in model if entry[0] > now_ms], now_ms)
            taken = []
            while found := timers.due(now_ms, 2):
                assert timers.due(now_ms, 2) == found, "looking takes nothing"
                taken += found
                assert all(timers.take(entry) for entry in found)
            assert taken == due
            assert not any(timers.take(entry) for entry in due), "each is taken once"
            model -= set(due)
        assert len(timers) == len(model)
        assert timers.due(_FOR_EVER_MS, len(model) + 1) == sorted(model)
        assert all(entry in timers for entry in model)
        assert (now_ms + 1, int(Due.FORGET), "nobody") not in timers
        _check_next(timers.next_due_ms(now_ms), [entry[0] for entry in model], now_ms)


def _check_next(next_ms: int | None, times_ms: list[int], now_ms: int) -> None:
    if not times_ms:
        assert next_ms is None
        return
    earliest_ms = min(times_ms)
    assert next_ms is not None
    assert earliest_ms - _BUCKET_MS < next_ms <= earliest_ms
    assert next_ms > now_ms or next_ms == earliest_ms, "nobody is woken for nothing again and again"


def test_buckets_that_come_and_go_leave_nothing() -> None:
    timers = Timers()
    timers.add(1 << 50, Due.FORGET, "")
    for number in range(10_000):
        due_ms = 86_400_000 + number * 10_000
        timers.add(due_ms, Due.TIME_LIMIT, "lease")
        timers.drop(due_ms, Due.TIME_LIMIT, "lease")
    assert len(timers) == 1
    assert len(timers._numbers) < 200
