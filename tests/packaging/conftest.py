"""Distributions of this tree, built once in a run."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.packaging.distributions import Clean
from tools.distributions import distribute

Once = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """A folder that is filled once in a run, by whichever of its processes comes first."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def fill(name: str, make: Callable[[Path], object]) -> Path:
        folder, done = shared / name, shared / f"{name}.done"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of an attempt that failed, whose error should come again
                folder.mkdir()
                make(folder)
                done.touch()
        return folder

    return fill


@pytest.fixture(scope="module")
def dist(once: Once) -> Path:
    """What `make dist` leaves."""
    return once("dist", distribute)


@pytest.fixture(scope="module")
def sdist(dist: Path) -> Path:
    (path,) = dist.glob("*.tar.gz")
    return path


@pytest.fixture(scope="module")
def pure(dist: Path) -> Path:
    (path,) = (dist / "any").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def native(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def laptop(once: Once, pure: Path) -> Clean:
    return Clean(once("laptop", lambda folder: Clean.make(folder, pure)))
