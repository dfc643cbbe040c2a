"""Time never goes back, whatever the wall clock does."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aliquot.common.clock import Clock, SystemClock
from tests.manual_clock import ManualClock

MS = 1_000_000


class Machine:
    """Three time sources in nanoseconds, as a machine has them."""

    def __init__(self) -> None:
        self.wall_ns, self.elapsed_ns, self.running_ns = 1_000_000 * MS, 500 * MS, 300 * MS

    def clock(self, not_before_ms: int = 0) -> SystemClock:
        return SystemClock(
            not_before_ms,
            wall_ns=lambda: self.wall_ns,
            elapsed_ns=lambda: self.elapsed_ns,
            running_ns=lambda: self.running_ns,
        )

    def run(self, ms: int) -> None:
        self.sleep(ms)
        self.running_ns += ms * MS

    def sleep(self, ms: int) -> None:
        self.wall_ns += ms * MS
        self.elapsed_ns += ms * MS


def test_the_system_clock_starts_at_the_wall_and_goes_on() -> None:
    clock: Clock = SystemClock()
    before = clock.now_ms()
    assert abs(before - time.time_ns() // MS) < 60_000
    first = clock.monotonic_ms()
    while clock.monotonic_ms() == first:
        pass
    assert clock.now_ms() > before - 1
    assert clock.monotonic_ms() > first


def test_a_step_of_the_wall_clock_does_not_move_time() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.run(250)
    machine.wall_ns -= 3_600_000 * MS
    assert clock.now_ms() == 1_000_250
    machine.wall_ns += 7_200_000 * MS
    assert clock.now_ms() == 1_000_250


def test_time_asleep_counts_for_now_and_not_for_graces() -> None:
    machine = Machine()
    clock = machine.clock()
    start = clock.monotonic_ms()
    machine.sleep(10_000)
    machine.run(5)
    assert clock.now_ms() == 1_010_005
    assert clock.monotonic_ms() - start == 5


def test_a_machine_behind_its_own_record_goes_on_from_there() -> None:
    machine = Machine()
    clock = machine.clock(not_before_ms=2_000_000)
    assert clock.now_ms() == 2_000_000
    machine.run(1)
    assert clock.now_ms() == 2_000_001


@given(st.lists(st.tuples(st.sampled_from(["run", "sleep", "step"]), st.integers(0, 10**7)), max_size=30))
def test_now_never_goes_back(events: list[tuple[str, int]]) -> None:
    machine = Machine()
    clock = machine.clock()
    last = clock.now_ms()
    for kind, ms in events:
        if kind == "step":
            machine.wall_ns += (ms - 5 * 10**6) * MS
        else:
            getattr(machine, kind)(ms)
        assert clock.now_ms() >= last
        assert clock.now_ms() - last == (0 if kind == "step" else ms)
        last = clock.now_ms()


def test_the_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(now_ms=1000, monotonic_ms=10)
    as_clock: Clock = clock
    clock.advance(5)
    assert (as_clock.now_ms(), as_clock.monotonic_ms()) == (1005, 15)
    clock.suspend(100)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1105, 15)
    clock.advance_to(1200)
    assert (clock.now_ms(), clock.monotonic_ms()) == (1200, 110)
    for move, argument in ((clock.advance, -1), (clock.advance_to, 1199), (clock.suspend, -1)):
        with pytest.raises(ValueError, match="does not go back"):
            move(argument)
    assert clock.now_ms() == 1200
