"""A device whose driver does not come back delays its own slices only: orders to the others are carried out."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aliquot.agent.controller import Controller
from aliquot.agent.core.desired import Batch, Order
from aliquot.agent.core.model import Holder, SliceSpec
from aliquot.agent.core.reports import SliceReport
from aliquot.agent.core.reservations import SliceStatus
from aliquot.agent.core.samples import DeviceInfo
from aliquot.agent.devices.guard import DeviceGuard
from aliquot.agent.disk.checkpoint import Checkpoint
from aliquot.agent.disk.files import Disk
from aliquot.agent.disk.identity import Identity
from aliquot.agent.enforce.base import EnforcementError, Limited
from aliquot.agent.enforce.chooser import Chooser
from aliquot.agent.limits_setter import LimitSetter
from aliquot.agent.mailbox import Mailbox
from aliquot.agent.processes import proc
from aliquot.agent.processes.attachments import Attachments
from aliquot.agent.processes.containment import Containment
from aliquot.agent.processes.signals import Signaller
from aliquot.agent.state import DeviceState, NodeState
from aliquot.agent.wakeup import Wakeup
from aliquot.agent.world import World
from aliquot.common.tiers import Tier
from tests.agent.harness import GIB, auntil

SLOW, QUICK = "GPU-slow", "GPU-quick"
A_MINUTE_S = 60.0


class SlowTier:
    """A tier that takes as long as it is told to on one of the devices, and says which limits are there."""

    tier = Tier.WATCHDOG

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.reading_hangs = False
        self.refuses = ""
        self.clearing_hangs = False
        self.begun: list[str] = []
        self.clearing: list[str] = []
        self.forgotten: list[Holder] = []
        self.limits: set[str] = set()

    def available(self, limited: Limited) -> str:
        return ""

    def apply(self, limited: Limited) -> None:
        self.begun.append(limited.spec.slice_id)
        self._hang(limited)
        if self.refuses:
            raise EnforcementError(self.refuses)
        self.limits.add(limited.spec.slice_id)

    def read_back(self, limited: Limited) -> bool:
        if self.reading_hangs:
            self._hang(limited)
        return limited.spec.slice_id in self.limits

    def clear(self, limited: Limited) -> None:
        self.clearing.append(limited.spec.slice_id)
        if self.clearing_hangs:
            self._hang(limited)
        self.limits.discard(limited.spec.slice_id)

    def forget(self, holder: Holder) -> None:
        self.forgotten.append(holder)

    def environment(self, limited: Limited) -> Mapping[str, str]:
        return {}

    def _hang(self, limited: Limited) -> None:
        if limited.device.uuid == SLOW:
            assert self.go_on.wait(A_MINUTE_S)


class Idle:
    """Nobody looks at the devices; of what is served, the end may hang."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.go_on.set()
        self.stopping = False
        self.unusable = ""

    def poll_soon(self, uuid: str) -> None:
        pass

    def mark_unusable(self, reason: str) -> None:
        self.unusable = reason

    def offered(self) -> frozenset[str]:
        return frozenset()

    async def start(self, holder: Holder, name: str) -> str:
        return "127.0.0.1:1"

    async def health(self, holder: Holder) -> str:
        return ""

    async def measure(self, holder: Holder) -> Mapping[str, int] | None:
        return None

    async def stop(self, holder: Holder) -> None:
        self.stopping = True
        await self.go_on.wait()

    async def sweep(self) -> None:
        pass

    def figures(self) -> Mapping[Holder, Mapping[str, int]]:
        return {}


class FailingDisk(Disk):
    """A disk that fails, when it is told to, after all was written but before it is known to be."""

    fails = False

    def sync_directory(self, path: Path) -> None:
        if self.fails:
            self.fails = False
            raise OSError(errno.EIO, "input/output error")
        super().sync_directory(path)


class Two:
    """A controller on two devices, and what it has told."""

    def __init__(self, directory: Path) -> None:
        world = World()
        state = NodeState("node", "node", "boot")
        for index, uuid in enumerate((SLOW, QUICK)):
            state.devices[uuid] = DeviceState(DeviceInfo(uuid, index, "GPU", "GPU", "any", 8 * GIB, 0))
        self.tier = SlowTier()
        self.idle = Idle()
        self.guard = DeviceGuard(A_MINUTE_S)
        self.disk = FailingDisk()
        self.checkpoint = Checkpoint.open(directory, "boot", self.disk)
        self.attachments = attachments = Attachments(self.checkpoint)
        self.mailbox = Mailbox(state, world.clock)
        containment = Containment(None, state.holders, attachments.all)
        ground: Any = SimpleNamespace(
            state=state,
            identity=Identity.open(self.checkpoint.record("node"), "node", []),
            checkpoint=self.checkpoint,
            world=world,
        )
        following: Any = SimpleNamespace(containment=containment, attachments=attachments)
        holding: Any = SimpleNamespace(
            limits=LimitSetter(state, Chooser([self.tier]), self.guard, containment),
            signaller=Signaller(containment.belongs, state.held),
            mailbox=self.mailbox,
            condemned=Wakeup(),
        )
        self.controller = Controller(ground, following, holding, self.idle, self.idle)
        self._reports: list[SliceReport] = []

    def told(self, slice_id: str) -> list[SliceStatus]:
        """What was told of a slice so far, in order."""
        self._reports += self.mailbox.take_confirmations()
        return [report.status for report in self._reports if report.slice_id == slice_id]

    async def order(self, slice_id: str, device_uuid: str, *, stop: bool = False, serve: str = "") -> None:
        spec = SliceSpec(slice_id, f"lease-{slice_id}", 1, device_uuid, 250, GIB, serve=serve)
        await self.controller.obey(Batch(1, 1, full=False, orders=(Order(spec, stop),)), 1)

    def attach(self, pid: int, slice_id: str) -> None:
        key = proc.key_of(pid)
        assert key is not None
        self.attachments.add(Holder(f"lease-{slice_id}", 1, 0), key, 0, "")

    def close(self) -> None:
        self.tier.go_on.set()
        self.guard.close()
        self.checkpoint.close()


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Two]:
    made = Two(tmp_path)
    yield made
    made.close()


@contextlib.asynccontextmanager
async def at_work(two: Two) -> AsyncIterator[None]:
    task = asyncio.create_task(two.controller.run())
    yield
    task.cancel()
    await asyncio.wait([task])


async def test_a_stop_is_carried_out_while_the_driver_hangs_on_another_device(two: Two) -> None:
    async with at_work(two):
        await two.order("quick", QUICK)
        await auntil(lambda: SliceStatus.ACTIVE in two.told("quick"), "a limit is set")
        await two.order("slow", SLOW)
        await auntil(lambda: two.tier.begun == ["quick", "slow"], "the driver has begun with the slow device")
        await two.order("quick", QUICK, stop=True)
        await auntil(lambda: SliceStatus.GONE in two.told("quick"), "the stop was carried out")
        await two.order("other", QUICK)
        await auntil(lambda: SliceStatus.ACTIVE in two.told("other"), "and a new slice was set up")
        assert two.told("slow") == []
        two.tier.go_on.set()
        await auntil(lambda: SliceStatus.ACTIVE in two.told("slow"), "the slow device goes on when it can")


async def test_orders_do_not_wait_for_the_end_of_what_served_another_lease(two: Two) -> None:
    async with at_work(two):
        await two.order("served", QUICK, serve="remote")
        await auntil(lambda: SliceStatus.ACTIVE in two.told("served"), "it is served")
        two.idle.go_on.clear()
        await two.order("served", QUICK, stop=True, serve="remote")
        await auntil(lambda: two.idle.stopping, "its process is being cleared away")
        async with asyncio.timeout(30):
            await two.order("other", QUICK)
        await auntil(lambda: SliceStatus.ACTIVE in two.told("other"), "it is set up meanwhile")
        assert SliceStatus.GONE not in two.told("served")
        two.idle.go_on.set()
        await auntil(lambda: SliceStatus.GONE in two.told("served"), "nothing is left")


async def test_a_stop_on_the_slow_device_itself_ends_processes_at_once(two: Two) -> None:
    """Of its other slices: signals need no driver."""
    process = await asyncio.create_subprocess_exec("sleep", "60")
    async with at_work(two):
        two.tier.go_on.set()
        await two.order("first", SLOW)
        await auntil(lambda: SliceStatus.ACTIVE in two.told("first"), "a limit is set")
        two.attach(process.pid, "first")
        two.tier.go_on.clear()
        await two.order("slow", SLOW)
        await auntil(lambda: "slow" in two.tier.begun, "the driver has begun")
        await two.order("first", SLOW, stop=True)
        await auntil(lambda: process.returncode is not None, "its process was ended")
        assert SliceStatus.GONE not in two.told("first")
        two.tier.go_on.set()
        await auntil(lambda: SliceStatus.GONE in two.told("first"), "its limit is cleared when the driver can")
        await auntil(lambda: two.tier.forgotten == [Holder("lease-first", 1, 0)], "and nothing is kept of it")


async def test_a_limit_that_is_gone_is_noticed_while_another_device_hangs(two: Two) -> None:
    async with at_work(two):
        two.tier.go_on.set()
        await two.order("slow", SLOW)
        await two.order("quick", QUICK)
        await auntil(lambda: len(two.tier.limits) == 2, "limits are set")
        two.tier.go_on.clear()
        two.tier.reading_hangs = True
        two.tier.limits.discard("quick")
        await auntil(lambda: SliceStatus.PENDING in two.told("quick"), "it was told that nothing holds it")
        await auntil(lambda: two.told("quick")[-1] is SliceStatus.ACTIVE, "and set again")


@pytest.mark.parametrize("refuses", ["", "no room"])
async def test_an_order_to_stop_that_comes_while_the_limit_is_being_set(two: Two, refuses: str) -> None:
    """Whatever becomes of the limit: the slice is gone, and did not fail."""
    async with at_work(two):
        two.tier.refuses = refuses
        await two.order("slow", SLOW)
        await auntil(lambda: two.tier.begun == ["slow"], "the driver has begun")
        await two.order("slow", SLOW, stop=True)
        two.tier.go_on.set()
        await auntil(lambda: SliceStatus.GONE in two.told("slow"), "it is gone")
        assert SliceStatus.FAILED not in two.told("slow")
        assert not two.tier.limits


async def test_a_slice_that_is_reprieved_while_its_limit_is_cleared_gets_it_back(two: Two) -> None:
    async with at_work(two):
        two.tier.go_on.set()
        await two.order("slow", SLOW)
        await auntil(lambda: SliceStatus.ACTIVE in two.told("slow"), "a limit is set")
        two.tier.go_on.clear()
        two.tier.clearing_hangs = True
        await two.order("slow", SLOW, stop=True)
        await auntil(lambda: two.tier.clearing == ["slow"], "the driver has begun to clear it")
        await two.order("slow", SLOW)
        assert two.tier.limits == {"slow"}
        two.tier.go_on.set()
        await auntil(lambda: two.tier.begun == ["slow", "slow"], "it is cleared, and set again")
        await auntil(lambda: two.told("slow")[-1] is SliceStatus.ACTIVE and two.tier.limits == {"slow"}, "it holds")
        assert SliceStatus.GONE not in two.told("slow")


async def test_a_slice_that_could_not_be_written_down_for_certain_is_not_found_again(two: Two) -> None:
    """It is told as failed: the next agent must not take it up."""
    async with at_work(two):
        two.disk.fails = True
        await two.order("quick", QUICK)
        assert two.told("quick") == [SliceStatus.FAILED]
        assert "can't be written down" in two.idle.unusable
        assert not two.checkpoint.load()
        await two.order("other", QUICK)
        await auntil(lambda: SliceStatus.ACTIVE in two.told("other"), "the disk works again")
        assert [record.slice_id for record in two.checkpoint.load()] == ["other"]
