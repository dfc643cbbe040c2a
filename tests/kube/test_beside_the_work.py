"""What goes beside the work of placing pods: grants that share a message, and events that tell people."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from aliquot.client import PoolError, Request
from aliquot.kube.api.errors import KubeError
from aliquot.kube.api.objects import Regarding
from aliquot.kube.holding import telling
from aliquot.kube.holding.batching import GrantBatches
from aliquot.kube.holding.telling import Teller

REQUEST = Request(gpu="0.1")


class Coordinator:
    """Answers a message of grants once it is let go on."""

    def __init__(self) -> None:
        self.messages: list[list[str]] = []
        self.go_on = asyncio.Event()
        self.error: Exception | None = None

    async def grant_on_batch(self, requests: Sequence[Request], nodes: Sequence[str], *, keys: Sequence[str]) -> Any:
        assert len(requests) == len(nodes) == len(keys)
        self.messages.append(list(keys))
        await self.go_on.wait()
        if self.error is not None:
            raise self.error
        return [PoolError(key) if node == "full" else f"{key} on {node}" for node, key in zip(nodes, keys, strict=True)]


async def begun(batches: GrantBatches, number: int, node: str = "n") -> list[asyncio.Task[Any]]:
    tasks = [asyncio.create_task(batches.grant(REQUEST, node, f"{node}{each}")) for each in range(number)]
    for _ in range(5):
        await asyncio.sleep(0)
    return tasks


async def test_the_first_goes_at_once_and_who_comes_meanwhile_with_the_next() -> None:
    coordinator: Any = Coordinator()
    batches = GrantBatches(coordinator)
    (first,) = await begun(batches, 1)
    rest = await begun(batches, 70, "m")
    (refused,) = await begun(batches, 1, "full")
    assert [len(each) for each in coordinator.messages] == [1]
    coordinator.go_on.set()
    assert await first == "n0 on n"
    assert await asyncio.gather(*rest) == [f"m{each} on m" for each in range(70)]
    with pytest.raises(PoolError, match="full0"):
        await refused
    assert [len(each) for each in coordinator.messages] == [1, 64, 7]
    (later,) = await begun(batches, 1)
    assert await later == "n0 on n"
    await batches.close()


async def test_all_in_a_message_are_told_why_it_failed_and_the_next_goes_on() -> None:
    coordinator: Any = Coordinator()
    coordinator.error = OSError("away")
    batches = GrantBatches(coordinator)
    tasks = [*await begun(batches, 1), *await begun(batches, 3, "m")]
    tasks[2].cancel()  # its pod has gone
    coordinator.go_on.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in found] == [OSError, OSError, asyncio.CancelledError, OSError]
    coordinator.error = None
    (later,) = await begun(batches, 1)
    assert await later == "n0 on n"


async def test_whoever_waits_when_it_is_closed_is_let_go() -> None:
    coordinator: Any = Coordinator()
    batches = GrantBatches(coordinator)
    tasks = [*await begun(batches, 1), *await begun(batches, 2, "m")]
    await batches.close()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in found] == [asyncio.CancelledError] * 3
    assert [len(each) for each in coordinator.messages] == [1]


class Events:
    """Keeps what is told, and refuses what it is told to."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str, bool]] = []
        self.broken = False

    async def tell(self, about: Regarding, reason: str, message: str, *, warning: bool) -> None:
        if self.broken:
            raise KubeError("away")
        self.told.append((about.uid, reason, message, warning))


async def written(teller: Teller) -> None:
    """Until nothing is left to be written."""
    task = asyncio.create_task(teller.run())
    for _ in range(teller._queue.qsize() + 5):
        await asyncio.sleep(0)
    task.cancel()


def about(uid: str) -> Regarding:
    return Regarding("Pod", "default", uid, uid)


async def test_the_same_is_told_once_in_a_while_and_what_is_news_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    events: Any = Events()
    teller = Teller(events)
    for uid, reason, message in (
        ("a", "Waits", "x"),
        ("a", "Waits", "x"),
        ("b", "Waits", "x"),
        ("a", "Other", "x"),
        ("a", "Waits", "y"),
        ("a", "Waits", "x"),
    ):
        teller.tell(about(uid), reason, message)
    await written(teller)
    first = [("a", "Waits"), ("b", "Waits"), ("a", "Other"), ("a", "Waits"), ("a", "Waits")]
    assert [each[:2] for each in events.told] == first
    teller.tell(about("a"), "Waits", "x")
    monkeypatch.setattr(telling, "_EVERY_S", -1.0)
    teller.tell(about("a"), "Waits", "x", warning=True)
    await written(teller)
    assert events.told[5:] == [("a", "Waits", "x", True)]
    assert teller.dropped == 0


async def test_what_is_too_much_is_dropped_counted_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    events: Any = Events()
    teller = Teller(events)
    for number in range(1_002):
        teller.tell(about(str(number)), "Waits", "x")
    assert teller.dropped == 2
    await written(teller)
    assert len(events.told) == 1_000
    events.broken = True
    teller.tell(about("a"), "Waits", "x")
    await written(teller)
    assert teller.dropped == 3
    events.broken = False
    monkeypatch.setattr(telling, "_KEPT", 2)
    teller = Teller(events)
    for uid in ("c", "d", "e", "c", "e"):
        teller.tell(about(uid), "Waits", "z")
    await written(teller)
    assert [each[0] for each in events.told[1_000:]] == ["c", "d", "e", "c"], "what was told longest ago is forgotten"
