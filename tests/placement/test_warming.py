"""Compiled scoring comes in when a coordinator has become busy, keeps nobody waiting, and can do without."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aliquot.coordinator.core.placement import accelerated
from aliquot.coordinator.upkeep import warming


@pytest.fixture(autouse=True)
def _collector_as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


async def wanted(passes: Callable[[], int], *, devices: int = 0, settle: Callable[[], None] = lambda: None) -> None:
    await warming.compile_when_wanted(passes, lambda: devices, settle)


async def test_it_is_loaded_once_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.setattr(warming, "LOOK_S", 0.001)
    monkeypatch.setattr(accelerated, "_loaded", [])
    begun, others_had_a_turn = threading.Event(), threading.Event()

    def load() -> str:
        """As it is, once the event loop has turned meanwhile: it never would if this ran in it."""
        begun.set()
        assert others_had_a_turn.wait(60)
        return accelerated.warm_up()

    monkeypatch.setattr(warming, "warm_up", load)
    settled: list[int] = []
    few, many = warming.BUSY_PASSES_PER_LOOK - 1, warming.BUSY_PASSES_PER_LOOK
    looks = iter([0, few, 2 * few, 0, many])  # a steady trickle is not busy, nor is a state that was read anew
    loading = asyncio.create_task(wanted(lambda: next(looks), settle=lambda: settled.append(1)))
    while not (begun.is_set() or loading.done()):
        assert accelerated.kernel() is None
        await asyncio.sleep(0.001)
    assert next(looks, None) is None, "none of the looks before was at a busy coordinator"
    others_had_a_turn.set()
    await loading
    assert accelerated.kernel() is not None
    assert settled == [1]


async def test_a_large_pool_wants_it_for_a_few_requests_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    monkeypatch.setattr(warming, "LOOK_S", 0.001)
    monkeypatch.setattr(accelerated, "_loaded", [])
    looks = iter([0, 0, 1, 2, 2 + warming.LARGE_PASSES_PER_LOOK])
    await wanted(lambda: next(looks), devices=warming.LARGE_POOL)
    assert next(looks, None) is None, "it was loaded before anybody asked for anything"
    assert accelerated.kernel() is not None


async def test_what_the_cache_holds_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    accelerated.warm_up()  # now the cache holds it
    monkeypatch.setattr(warming, "LOOK_S", 0.001)
    monkeypatch.setattr(accelerated, "_loaded", [])
    monkeypatch.setattr(asyncio, "create_subprocess_exec", None)
    await wanted(iter([0, warming.BUSY_PASSES_PER_LOOK]).__next__)
    assert accelerated.kernel() is not None


@pytest.mark.slow
async def test_it_is_compiled_in_another_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("numba")  # this process has read where its cache is
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(warming, "LOOK_S", 0.001)
    monkeypatch.setattr(accelerated, "_loaded", [])
    monkeypatch.setattr(warming, "needs_compiling", lambda: True)
    turn_s = sys.getswitchinterval()
    await wanted(iter([0, warming.BUSY_PASSES_PER_LOOK]).__next__)
    assert any("price_kernel.score-" in name for _, _, names in os.walk(tmp_path) for name in names)
    assert accelerated.kernel() is not None
    assert sys.getswitchinterval() == turn_s


async def test_without_numba_scores_stay_with_numpy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(accelerated, "_loaded", [])
    monkeypatch.setitem(sys.modules, "aliquot.coordinator.core.placement.price_kernel", None)
    monkeypatch.delattr("aliquot.coordinator.core.placement.price_kernel", raising=False)
    with caplog.at_level(logging.INFO):
        await wanted(iter([0, warming.BUSY_PASSES_PER_LOOK]).__next__)
    assert accelerated.kernel() is None
    assert "stays with NumPy" in caplog.text
