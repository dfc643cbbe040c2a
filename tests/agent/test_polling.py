"""Devices are asked when there is something to ask of them, and nobody wakes in between."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from random import SystemRandom
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace

from aliquot.agent.core.model import Reservation, SliceSpec
from aliquot.agent.core.samples import (
    DeviceEvent,
    DeviceInfo,
    DriverInfo,
    HealthSample,
    LoadSample,
    MemorySample,
    ProcessList,
)
from aliquot.agent.devices.base import DeviceError, Discovery
from aliquot.agent.devices.guard import DeviceGuard
from aliquot.agent.mailbox import Mailbox
from aliquot.agent.poller import Poller
from aliquot.agent.processes.containment import Containment
from aliquot.agent.settings import EnforcementSettings, PollSettings, Settings
from aliquot.agent.state import NodeState
from aliquot.agent.world import World
from aliquot.common.backoff import Uniform
from aliquot.common.duration import DurationMs
from tests.agent.harness import GIB, auntil

NEVER_MS = DurationMs(3_600_000)


class Counting:
    """A driver that answers, and counts how often it was asked for the memory of each device."""

    name = "counting"
    calls = 0

    def __init__(self, *uuids: str) -> None:
        self.uuids = list(uuids)
        self.asked: Counter[str] = Counter()

    def open(self) -> DriverInfo:
        return DriverInfo("1", "1")

    def close(self) -> None:
        pass

    def discover(self) -> Discovery:
        return Discovery(tuple(DeviceInfo(uuid, 0, "GPU", "GPU", "any", 8 * GIB, 0) for uuid in self.uuids))

    def memory(self, uuid: str) -> MemorySample:
        self.asked[uuid] += 1
        return MemorySample(8 * GIB, 0, 0)

    def processes(self, uuid: str) -> ProcessList:
        return ProcessList(())

    def load(self, uuid: str) -> LoadSample:
        return LoadSample()

    def process_load(self, uuid: str) -> dict[int, int] | None:
        return None

    def health(self, uuid: str) -> HealthSample:
        return HealthSample()

    def wait_events(self, timeout_ms: int) -> Sequence[DeviceEvent]:
        return ()

    def deaf(self) -> str:
        return ""


class Drawn:
    """A source of randomness that counts how often it was asked, and for what."""

    def __init__(self) -> None:
        self.bounds: list[tuple[float, float]] = []

    def uniform(self, a: float, b: float, /) -> float:
        self.bounds.append((a, b))
        return random.uniform(a, b)


@contextlib.asynccontextmanager
async def polling(
    backend: Any, drawn: Uniform | None = None, now: Callable[[], float] = time.monotonic
) -> AsyncIterator[tuple[Poller, NodeState]]:
    """A poller that asks for a leased device's memory all the time, and for nothing else twice."""
    state = NodeState("node", "node", "boot")
    guard, world = DeviceGuard(5.0), World(poll_random=drawn or SystemRandom(), monotonic_s=now)
    watchdog: Any = SimpleNamespace(
        suspects=lambda uuid: False,
        saw_strays=False,
        needs_second_look=lambda usage: False,
        check=lambda usage: [],
        forget=lambda uuid: None,
    )
    settings = Settings(
        poll=PollSettings(DurationMs(10), *[NEVER_MS] * 5), enforcement=EnforcementSettings(throttle=False)
    )
    ground: Any = SimpleNamespace(state=state, backend=backend, guard=guard, world=world, settings=settings)
    following: Any = SimpleNamespace(containment=Containment(None, state.holders, list))
    holding: Any = SimpleNamespace(watchdog=watchdog, mailbox=Mailbox(state, world.clock), limits=None)
    poller = Poller(ground, following, holding, observe_poll=lambda seconds: None)
    await poller.discover()
    task = asyncio.create_task(poller.run())
    try:
        await poller.first_round.wait()
        yield poller, state
    finally:
        task.cancel()
        await asyncio.wait([task])
        guard.close()


async def test_a_device_is_asked_more_often_as_soon_as_it_is_leased() -> None:
    backend = Counting("GPU-a", "GPU-b")
    async with polling(backend) as (poller, state):
        assert backend.asked == {"GPU-a": 1, "GPU-b": 1}
        state.book.put(Reservation(SliceSpec("l-1.1.0", "l-1", 1, "GPU-a", 250, GIB)))
        poller.poll_soon("GPU-a")
        await auntil(lambda: backend.asked["GPU-a"] > 3, "a device with a lease is asked all the time")
        assert backend.asked["GPU-b"] == 1


async def test_devices_that_come_are_watched_at_once_and_those_that_go_are_left_alone() -> None:
    backend = Counting("GPU-a")
    async with polling(backend) as (poller, _):
        backend.uuids = ["GPU-b"]
        await poller.discover()
        await auntil(lambda: backend.asked["GPU-b"] == 1, "the new device is asked")
        poller.poll_soon("GPU-a")
        backend.uuids = ["GPU-a", "GPU-b"]
        await poller.discover()
        await auntil(lambda: backend.asked["GPU-a"] == 2, "one that comes back is asked again")


async def test_when_the_next_poll_comes_is_drawn_and_never_later_than_the_interval() -> None:
    """A program that learnt when its device is polled could hold what it likes in between."""
    assert isinstance(World().poll_random, SystemRandom)
    backend, drawn = Counting("GPU-a"), Drawn()
    async with polling(backend, drawn) as (poller, state):
        state.book.put(Reservation(SliceSpec("l-1.1.0", "l-1", 1, "GPU-a", 250, GIB)))
        poller.poll_soon("GPU-a")
        await auntil(lambda: backend.asked["GPU-a"] > 10, "a device with a lease is asked all the time")
        assert len(drawn.bounds) >= backend.asked["GPU-a"] - 1, "for each poll anew"
        assert all(0 < least < most <= 1 for least, most in drawn.bounds), "as a part of the interval"


class Listing(Counting):
    """A driver that counts how often it was asked which devices there are, and may refuse to say."""

    def __init__(self, *uuids: str) -> None:
        super().__init__(*uuids)
        self.listed = 0
        self.broken = False
        self.kinds: dict[str, str] = {}

    def discover(self) -> Discovery:
        self.listed += 1
        if self.broken:
            raise DeviceError("the driver is away")
        return replace(super().discover(), kinds=self.kinds)


async def test_devices_are_listed_again_after_their_interval_and_sooner_where_that_failed() -> None:
    """By a clock that stands still but for the test: a list that is due is asked for once."""
    now_s = [1_000.0]
    backend = Listing("GPU-a")
    whole_s = NEVER_MS / 1000

    async def later(seconds: float, poller: Poller, lists: int) -> None:
        """So much more time, in which the driver is asked so often."""
        before = backend.listed
        now_s[0] += seconds
        poller._discovered.set()
        await auntil(lambda: backend.listed >= before + lists, "what is due is listed")
        for _ in range(50):  # turns of the loop, in which it could be asked again
            await asyncio.sleep(0.001)
        assert backend.listed == before + lists

    async with polling(backend, now=lambda: now_s[0]) as (poller, state):
        assert backend.listed == 1
        await later(whole_s - 1, poller, 0)
        backend.uuids.append("GPU-b")
        await later(1, poller, 1)
        assert state.devices.keys() == {"GPU-a", "GPU-b"}
        backend.broken = True
        await later(whole_s, poller, 1)
        assert state.devices.keys() == {"GPU-a", "GPU-b"}, "one that fails to answer takes nothing away"
        backend.broken, backend.kinds = False, {"nvml": "it is away"}
        await later(whole_s, poller, 1)
        await later(whole_s, poller, 1)  # what is away is looked for
