"""Raw-lane engines on the simulated driver, each in a process of its own, whose device memory holds what is written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from aliquot import simgpu
from aliquot.remote.cuda import Device
from tests.remote_cuda.serving import FrameChannel
from tests.simgpu.conftest import libraries

__all__ = ["libraries"]

MEMORY_BYTES = 1 << 24


class Node:
    """A process that serves sessions of one part."""

    def __init__(self, scenario: simgpu.Scenario, folder: Path, stack: ExitStack) -> None:
        self.scenario = scenario
        self._path = folder / "socket"
        self._stack = stack
        environment = {**os.environ, **simgpu.environment(scenario.path), "ALIQUOT_SIMGPU_BACKED": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.remote_cuda.serving", str(self._path), str(MEMORY_BYTES)],
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        stack.callback(self._end)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "serving\n"

    def channel(self) -> FrameChannel:
        """A session that nobody has opened yet."""
        opened = FrameChannel(self._path)
        self._stack.callback(opened.close)
        return opened

    def device(self) -> Device:
        return Device(self.channel())

    def _end(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="session")
def _served(libraries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("raw")
    with ExitStack() as stack:
        scenario = stack.enter_context(simgpu.create(folder / "scenario", ("A100-40",)))
        yield Node(scenario, folder, stack)


@pytest.fixture
def node(_served: Node) -> Node:
    return _served


@pytest.fixture
def device(node: Node) -> Iterator[Device]:
    with node.device() as opened:
        yield opened


@pytest.fixture
def fresh(libraries: Path, tmp_path: Path) -> Iterator[Node]:
    """A process of this test's own, which may come to harm."""
    with ExitStack() as stack:
        scenario = stack.enter_context(simgpu.create(tmp_path / "scenario", ("A100-40",)))
        yield Node(scenario, tmp_path, stack)
