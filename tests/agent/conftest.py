"""Fixtures of the agent's tests: a node of two simulated A100-40, and a coordinator that says what a test
wants.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.agent.coordinator import Coordinator
from tests.agent.harness import Node, closing, make_node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    yield from closing(make_node(tmp_path / "node"))


@pytest.fixture
async def coordinator() -> AsyncIterator[Coordinator]:
    server = await Coordinator().start()
    yield server
    await server.stop()
