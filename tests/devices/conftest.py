"""Fixtures of the device layer's tests."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.agent.conftest import coordinator, node


@pytest.fixture
def job() -> Iterator[Callable[[], int]]:
    """Starts a process, as often as it is called; gives its pid."""
    made: list[subprocess.Popen[bytes]] = []

    def start() -> int:
        made.append(subprocess.Popen(["sleep", "3600"]))
        return made[-1].pid

    yield start
    for process in made:
        process.kill()
        process.wait()


__all__ = ["coordinator", "node"]
