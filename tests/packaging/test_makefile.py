"""What the Makefile's targets install, as `make --dry-run` tells: no network, nothing is built."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("Makefile", "pyproject.toml", "hatch_build.py"):
        shutil.copy(REPOSITORY / name, tmp_path)
    return tmp_path


def installs(checkout: Path, *goals: str) -> list[str]:
    """Return the words after `--editable` of each installation that these goals would run."""
    # The lists of C parts and of the page's sources name files that this checkout leaves out.
    command = ["make", "--dry-run", *goals, "NATIVE=", "PAGE_SOURCES="]
    # A make around the tests would pass its own goals and flags on.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    dry = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=True)
    return [line.partition("--editable ")[2] for line in dry.stdout.splitlines() if "--editable" in line]


def test_the_demonstration_alone_installs_what_a_pool_needs(checkout: Path) -> None:
    [wanted] = installs(checkout, "demo")
    assert wanted.startswith("'.[pool]' ")
    assert "build-system" in wanted


@pytest.mark.parametrize("goals", [("proto",), ("venv",), ("demo", "test")])
def test_other_goals_install_everything(checkout: Path, goals: tuple[str, ...]) -> None:
    [wanted] = installs(checkout, *goals)
    assert wanted.startswith("'.[dev]'")


def test_a_complete_environment_serves_the_demonstration(checkout: Path) -> None:
    (checkout / ".venv").mkdir()
    (checkout / ".venv/installed").touch()
    assert installs(checkout, "demo") == []
