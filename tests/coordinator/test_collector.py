"""What the coordinator does with its process's garbage collector when it loads, and when it loads anew."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from aliquot.coordinator.upkeep.collector import GarbageCollector


class _Cycle:
    """Only a collection frees it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collector() -> Iterator[GarbageCollector]:
    """The process's is put back afterwards, as the tests had it."""
    before = gc.get_threshold()
    yield GarbageCollector()
    gc.set_threshold(*before)
    gc.freeze()
    gc.enable()


def test_nothing_is_collected_while_loading_and_what_was_loaded_is_left_out(collector: GarbageCollector) -> None:
    collector.hold_off()
    assert not gc.isenabled()
    loaded = weakref.ref(_Cycle())
    collector.settle()
    assert gc.isenabled()
    gc.collect()
    assert loaded() is not None


def test_before_it_loads_anew_what_was_loaded_before_is_freed(collector: GarbageCollector) -> None:
    collector.hold_off()
    loaded = weakref.ref(_Cycle())
    collector.settle()
    collector.hold_off()
    assert loaded() is None


def test_its_pauses_are_told(collector: GarbageCollector) -> None:
    pauses: list[float] = []
    collector.measure(pauses.append)
    gc.collect()
    collector.stop_measuring()
    gc.collect()
    assert len(pauses) == 1
