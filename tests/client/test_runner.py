"""What carries out a flow's effects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from aliquot.client._async.runner import AsyncRunner
from aliquot.client._flow import Flow, Forget, Keep, Pause


async def test_pauses_are_waited_for_and_leases_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    did: list[object] = []

    async def sleep(seconds: float) -> None:
        did.append(seconds)

    monkeypatch.setattr("aliquot.client._async.runner.sleep", sleep)

    def flow() -> Flow[int]:
        yield Keep("l-1", 60)
        yield Pause(1.5)
        yield Forget("l-1")
        return 7

    transport: Any = None
    keeping: Callable[[Keep | Forget], None] = did.append
    assert await AsyncRunner(transport, keeping).run(flow()) == 7
    assert did == [Keep("l-1", 60), 1.5, Forget("l-1")]
