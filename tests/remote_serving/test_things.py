"""What a session of the raw lane holds: ranges lie within it, everything is charged and given back once, and a handle
is one kind of thing.
"""

from __future__ import annotations

from typing import Any

import pytest

from aliquot.remote.core.accounting import Account, Budget, OutOfMemory
from aliquot.remote.core.driving import MODULES_MAX, NONE, STREAMS_MAX
from aliquot.remote.core.parameters import Layout
from aliquot.remote.core.regions import BYTES_MAX, RegionError, check_range, overlap
from aliquot.remote.server.libcuda import DriverError
from aliquot.remote.server.things import Event, HandleError, Kernel, Memory, Module, Stream, Things

KEPT_BYTES = 32 << 20


class Driver:
    """Notes what it is told; what is in `broken` fails."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.broken: set[str] = set()
        self._next = 100

    def call(self, name: str, *arguments: Any) -> None:
        if name in self.broken:
            raise DriverError(name, 1, "broken")
        self.told.append((name, arguments[0]))

    def made(self, name: str, *arguments: Any) -> int:
        self.call(name, *arguments)
        self._next += 1
        return self._next

    def allocate(self, size: int) -> int:
        return self.made("cuMemAlloc_v2", size)

    def variable(self, module: int, name: str) -> tuple[int, int]:
        return self.made("cuModuleGetGlobal_v2", module), len(name)

    def parameter(self, _own: int, number: int) -> tuple[int, int] | None:
        return ((0, 8), (8, 4))[number] if number < 2 else None

    def ends(self) -> list[tuple[str, int]]:
        return [each for each in self.told if each[0].endswith(("Free_v2", "Unload", "Destroy_v2"))]


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def things(driver: Driver) -> Things:
    cuda: Any = driver
    return Things(cuda, Account(1000))


@pytest.mark.parametrize(
    ("offset", "size", "fits"),
    [(0, 64, True), (64, 0, True), (60, 4, True), (60, 5, False), (65, 0, False), (-1, 1, False), (0, -1, False)],
)
def test_a_range_lies_within_its_memory(offset: int, size: int, fits: bool) -> None:
    memory = Memory(1000, 64)
    if fits:
        assert memory.at(offset, size) == 1000 + offset
        return
    with pytest.raises(RegionError):
        memory.at(offset, size)


def test_numbers_that_no_memory_has_are_refused_before_they_are_added() -> None:
    check_range(BYTES_MAX, BYTES_MAX, 2 * BYTES_MAX)
    for offset, size in ((BYTES_MAX + 1, 0), (0, BYTES_MAX + 1)):
        with pytest.raises(RegionError):
            check_range(offset, size, 4 * BYTES_MAX)


def test_what_overlaps() -> None:
    assert [overlap(first, 10, 4) for first in (6, 7, 10, 13, 14)] == [False, True, True, True, False]
    assert not overlap(5, 5, 0)


def test_memory_is_charged_to_the_byte_and_given_back_once(things: Things, driver: Driver) -> None:
    things.allocate(1, 600)
    things.allocate(2, 400)
    with pytest.raises(OutOfMemory):
        things.allocate(3, 1)
    assert (things.account.used_bytes, things.count(Memory)) == (1000, 2)
    things.drop(1)
    things.drop(1)
    things.drop(99)
    assert (things.account.used_bytes, things.count(Memory)) == (400, 1)
    assert [name for name, _ in driver.ends()] == ["cuMemFree_v2"]
    things.allocate(1, 600)
    things.close()
    assert things.account.used_bytes == 0


def test_memory_of_no_bytes_is_no_call_of_the_driver(things: Things, driver: Driver) -> None:
    before = list(driver.told)
    things.allocate(1, 0)
    assert things.get(1, Memory).at(0, 0) == 0
    things.drop(1)
    assert driver.told == before
    for size in (-1, (1 << 48) + 1):
        with pytest.raises(RegionError):
            things.allocate(1, size)


def test_what_the_driver_refuses_is_charged_to_nobody(things: Things, driver: Driver) -> None:
    driver.broken |= {"cuMemAlloc_v2", "cuModuleLoadData"}
    with pytest.raises(DriverError):
        things.allocate(1, 10)
    with pytest.raises(DriverError):
        things.load(1, b"x" * 10)
    assert (things.account.used_bytes, things.count(Memory), things.count(Module)) == (0, 0, 0)
    driver.broken.clear()
    things.load(1, b"x" * 10)
    assert things.account.used_bytes == 10


def test_a_module_takes_its_kernels_and_variables_along(things: Things, driver: Driver) -> None:
    layout = Layout(("pointer", "i32"))
    things.load(1, b"x" * 100)
    things.function(2, 1, "f", layout)
    things.function(3, 1, "g", layout)
    assert things.variable(4, 1, "abc") == 3
    things.make_stream(5, 0)
    things.drop(3)  # a kernel of its own has no end
    things.drop(4)
    assert things.account.used_bytes == 100, "a variable is its module's"
    assert driver.ends() == []
    things.get(5, Stream).keep(object(), 1, things.cuda)
    things.drop(1)
    assert [things.count(kind) for kind in (Module, Kernel, Memory, Stream)] == [0, 0, 0, 1]
    assert things.account.used_bytes == 0
    waited = [own for name, own in driver.told if name == "cuStreamSynchronize"]
    assert len(waited) == 2, "both streams were waited for: its kernels may have run there"
    for gone in (1, 2, 3, 4):
        with pytest.raises(HandleError):
            things.get(gone, Kernel)
    things.allocate(2, 1000)


def test_a_kernel_that_is_declared_otherwise_than_the_driver_knows_it(things: Things) -> None:
    things.load(1, b"x")
    for words in (("pointer",), ("pointer", "i64"), ("pointer", "i32", "i32")):
        with pytest.raises(ValueError, match="those declared are at"):
            things.function(2, 1, "f", Layout(words))
    assert things.count(Kernel) == 0


def test_a_handle_is_one_thing_of_one_kind(things: Things) -> None:
    things.allocate(1, 8)
    things.make_event(2, timed=True)
    for handle in (NONE, -1, 1, 2, 1 << 32):
        with pytest.raises(HandleError, match="can't be given"):
            things.make_event(handle, timed=False)
    things.make_event((1 << 32) - 1, timed=False)
    with pytest.raises(HandleError, match="no handle of a stream"):
        things.stream(1)
    assert things.stream(NONE) is things.streams()[0]
    assert things.count(Event) == 2


def test_streams_and_modules_are_bounded(things: Things) -> None:
    for handle in range(1, STREAMS_MAX + 1):
        things.make_stream(handle, 0)
    with pytest.raises(HandleError, match=f"has {STREAMS_MAX} streams"):
        things.make_stream(1000, 0)
    things.drop(1)
    things.make_stream(1000, 0)
    for handle in range(2000, 2000 + MODULES_MAX):
        things.load(handle, b"")
    with pytest.raises(HandleError, match=f"has {MODULES_MAX} modules"):
        things.load(5000, b"")
    assert len(things.streams()) == STREAMS_MAX + 1, "and the session's own"


def test_what_the_driver_may_still_read_is_kept_until_it_was_waited_for(things: Things, driver: Driver) -> None:
    stream = things.stream(NONE)
    stream.keep(object(), KEPT_BYTES, things.cuda)
    assert ("cuStreamSynchronize", stream.own) not in driver.told
    stream.keep(object(), 1, things.cuda)
    assert driver.told.count(("cuStreamSynchronize", stream.own)) == 1
    stream.keep(object(), KEPT_BYTES, things.cuda)
    assert driver.told.count(("cuStreamSynchronize", stream.own)) == 1, "it has begun to count anew"


def test_sessions_of_a_part_share_its_budget_and_each_knows_its_own() -> None:
    budget = Budget(100)
    first, second = Account(budget), Account(budget)
    first.charge(70)
    with pytest.raises(OutOfMemory, match="30 are left"):
        second.charge(31)
    second.require(30)
    second.charge(30)
    assert (first.used_bytes, second.used_bytes, second.peak_bytes, budget.used_bytes) == (70, 30, 30, 100)
    second.refund(30)
    second.charge(10)
    assert (second.used_bytes, second.peak_bytes, budget.used_bytes) == (10, 30, 80)
    with pytest.raises(AssertionError):
        second.refund(11)
