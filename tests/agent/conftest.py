"""Fixtures of the agent's tests: a node of two simulated A100-40, and a coordinator that says what a test
wants.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.agent.coordinator import Coordinator
from tests.agent.harness import Node, closing, make_node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    yield from closing(make_node(tmp_path / "node"))


@pytest.fixture
def open_node() -> Iterator[Node]:
    """A node whose files other users can reach: not in pytest's own folder, which every other run of pytest that
    starts on this machine closes to them again.
    """
    with tempfile.TemporaryDirectory(prefix="aliquot-agent-") as directory:
        made = make_node(Path(directory) / "node")
        for folder in (Path(directory), made.directory):
            folder.chmod(0o755)
        yield from closing(made)


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    server = await Coordinator().start()
    try:
        yield server
    finally:
        await server.stop()
