"""Compiled scoring comes in when a coordinator has become busy, from a process of its own, and can be done without."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from aliquot.coordinator import programmes
from aliquot.coordinator.core.placement import accelerated, machine_code
from aliquot.coordinator.upkeep import warming


@pytest.fixture(autouse=True)
def _not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warming, "LOOK_S", 0.001)
    monkeypatch.setattr(accelerated, "_loaded", [])


async def wanted(passes: Callable[[], int], *, devices: int = 0) -> None:
    await warming.compile_when_wanted(passes, lambda: devices)


async def test_it_is_loaded_once_it_is_wanted() -> None:
    pytest.importorskip("numba")
    few, many = warming.BUSY_PASSES_PER_LOOK - 1, warming.BUSY_PASSES_PER_LOOK
    looks = iter([0, few, 2 * few, 0, many])  # a steady trickle is not busy, nor is a state that was read anew
    await wanted(lambda: next(looks))
    assert next(looks, None) is None, "none of the looks before was at a busy coordinator"
    assert accelerated.kernel() is not None


async def test_a_large_pool_has_it_before_anybody_asks_but_not_while_it_is_filled() -> None:
    pytest.importorskip("numba")
    large = warming.LARGE_POOL
    known = iter([large - 1, large, large + 4, large + 4, large + 8, *[large + 8] * warming.SETTLED_LOOKS])
    await warming.compile_when_wanted(lambda: 0, lambda: next(known))
    assert next(known, None) is None, "it was loaded while devices came"
    assert accelerated.kernel() is not None


def test_who_loads_it_loads_no_numba(tmp_path: Path) -> None:
    """In a process of its own, since this one may have numba: the code needs nothing that only numba has."""
    pytest.importorskip("numba")
    (tmp_path / "code").write_bytes(machine_code.compiled())
    program = """
import pathlib, sys
from aliquot.coordinator.core.placement import Engine, accelerated, make_policy
from aliquot.coordinator.core.values.types import Demand
from tests.placement.pools import node, pool
accelerated.load(pathlib.Path(sys.argv[1]).read_bytes())
inventory = pool(*(node(f"n{number}", 8) for number in range(40)))
placements = [Engine(inventory, make_policy("price"), compiled=way).place(Demand()) for way in (True, False)]
assert placements[0] is not None and placements[0] == placements[1]
assert not any(name.partition(".")[0] == "numba" for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "code")], check=True, timeout=60)


@pytest.mark.slow
async def test_it_is_compiled_once_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("numba")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    made = [await programmes.run_programme(warming.__name__, b"", within_s=None) for _ in range(2)]
    assert made[0] == made[1]
    assert sum(name.endswith(".nbc") for _, _, names in os.walk(tmp_path) for name in names) == 1


@pytest.mark.slow
async def test_it_is_compiled_where_it_can_not_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose root is read-only."""
    pytest.importorskip("numba")
    monkeypatch.setenv("NUMBA_CACHE_LOCATOR_CLASSES", "UserProvidedCacheLocator")
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    await wanted(iter([0, warming.BUSY_PASSES_PER_LOOK]).__next__)
    assert accelerated.kernel() is not None


async def test_without_numba_scores_stay_with_numpy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "numba.py").write_text("raise ImportError('none here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with caplog.at_level(logging.INFO):
        await wanted(iter([0, warming.BUSY_PASSES_PER_LOOK]).__next__)
    assert accelerated.kernel() is None
    assert "stays with NumPy" in caplog.text
    assert "none here" in caplog.text


async def test_without_llvmlite_scores_stay_with_numpy(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("numba")
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)
    with caplog.at_level(logging.INFO):
        await wanted(iter([0, warming.BUSY_PASSES_PER_LOOK]).__next__)
    assert accelerated.kernel() is None
    assert "llvmlite can't load it" in caplog.text


def test_what_is_no_code_is_not_loaded() -> None:
    with pytest.raises(RuntimeError, match="no object file"):
        accelerated.load(b"no object file")
    assert accelerated.kernel() is None
