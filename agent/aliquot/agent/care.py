"""Does to sick cards what the coordinator orders: has them reset, restarts the machine, tests them.

How a card is reset is the administrator's command, because NVML can't do it, and because what keeps a card open differs
from node to node. The driver refuses while anybody has it open, so this agent lets go of it meanwhile; no device is
measured then. Whatever happens, the command that restores what the reset needed is run, also at the agent's next start.
What is done is on disk before it is begun, and its result before it is told: each order is carried out once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import sys
from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec

from aliquot.agent.core import health
from aliquot.agent.core.caring import Begun, CareOrder, CareRecord, CareResult, interrupted, latest
from aliquot.agent.devices.base import DeviceError
from aliquot.agent.disk.durable import Damaged
from aliquot.agent.mailbox import Mailbox
from aliquot.agent.parts import Ground
from aliquot.agent.poller import Poller
from aliquot.agent.state import DeviceState
from aliquot.agent.wakeup import Wakeup
from aliquot.agent.world import Events
from aliquot.common.signs import Remedy
from aliquot.common.tasks import Tasks
from aliquot.common.text import one_line

log = logging.getLogger(__name__)

OPEN_TIMEOUT_S = 60.0
REOPEN_S = 2.0
_KIND = "care"
_STORY_CHARS = 240


class Care:
    """See the module's docstring. Use from one event loop."""

    def __init__(self, ground: Ground, mailbox: Mailbox, poller: Poller, events: Events) -> None:
        self.state, self.guard, self.backend, self.world = ground.state, ground.guard, ground.backend, ground.world
        self.settings, self.devices = ground.settings.repair, ground.settings.devices
        self.record = ground.checkpoint.record("care")
        self.mailbox, self.poller, self.events = mailbox, poller, events
        self._lock = asyncio.Lock()
        """One order at a time: letting go of the driver concerns all cards."""
        self._tasks = Tasks()
        self.results: dict[int, CareResult] = {}

    @property
    def offered(self) -> tuple[str, ...]:
        """What it can do, by name."""
        settings = self.settings
        means = (("reset", settings.reset), ("reboot", settings.reboot), ("verify", settings.verify))
        return tuple(word for word, mean in means if mean)

    async def restore(self) -> None:
        """Take up what is on disk. An order that the agent's end has interrupted is undone, and begun again."""
        stored = self._load()
        self.results = dict(stored.results)
        if stored.begun is None:
            return
        order = stored.begun.order
        log.warning("order %d (%s) was interrupted: %s", order.number, order.action.name, order.reason)
        if order.action is Remedy.RESET:
            await self._restore(order)
        came_to = interrupted(stored.begun, self.state.boot_id)
        if isinstance(came_to, CareResult):
            if not came_to.problem:
                self._forgive(order)
            await self._conclude(order, came_to)
        else:
            self._spawn(came_to)

    def obey(self, order: CareOrder) -> None:
        """Carry out an order, in its turn. One that is known is answered again."""
        self._spawn(Begun(order, self.state.boot_id))

    async def close(self) -> None:
        """Stop what is under way: it is taken up at the next start."""
        await self._tasks.end()

    def _spawn(self, begun: Begun) -> None:
        self._tasks.run(f"care {begun.order.number}", self._obey(begun))

    async def _obey(self, begun: Begun) -> None:
        order = begun.order
        async with self._lock:
            if order.number not in self.results:
                log.warning("%s %s: %s", order.action.name.lower(), ", ".join(order.uuids), order.reason)
                await self._write_down(self.results, begun)
                try:
                    result = await self._carry_out(order)
                except DeviceError as error:
                    result = CareResult(problem=error.message)
                except Exception as error:  # a defect must not leave an order without an answer
                    log.exception("order %d failed", order.number)
                    result = CareResult(problem=f"{type(error).__name__}: {error}")
                level = logging.ERROR if result.problem else logging.WARNING
                log.log(level, "order %d: %s", order.number, result.problem or result.story or "done")
                await self._conclude(order, result)
        self.mailbox.request_snapshot()

    async def _conclude(self, order: CareOrder, result: CareResult) -> None:
        story, problem = one_line(result.story, _STORY_CHARS), one_line(result.problem, _STORY_CHARS)
        told = msgspec.structs.replace(result, problem=problem, story=story)
        results = latest({**self.results, order.number: told})
        await self._write_down(results, None)
        self.results = results

    async def _carry_out(self, order: CareOrder) -> CareResult:
        if order.action.name.lower() not in self.offered:
            return CareResult(problem=f"this node's agent is not set to {order.action.name.lower()} (setting `repair`)")
        cards = order.uuids
        held = [uuid for uuid in self.state.devices if self.state.leased(uuid) and self._concerns(uuid, order)]
        if held:
            return CareResult(problem=f"leases still hold some of {', '.join(held)}")
        if order.action is Remedy.VERIFY:
            return await self._verify(cards, order)
        if order.action is Remedy.REBOOT:
            return await self._reboot(order)
        return await self._reset(order)

    def _concerns(self, uuid: str, order: CareOrder) -> bool:
        info = self.state.devices[uuid].info
        return order.action is Remedy.REBOOT or info.uuid in order.uuids or info.physical_uuid in order.uuids

    def _devices(self, order: CareOrder) -> list[DeviceState]:
        return [device for uuid, device in self.state.devices.items() if self._concerns(uuid, order)]

    # -- repairs

    async def _reset(self, order: CareOrder) -> CareResult:
        stories = []
        try:
            async with self._let_go():
                for uuid in order.uuids:
                    problem, story = await self._command(self.settings.reset, order, uuid)
                    if problem:
                        return CareResult(problem=problem)
                    stories.append(story)
        finally:
            await self._restore(order)
        await self.poller.discover()
        problem = await self._effect(order)
        return CareResult(problem=problem, story="; ".join(filter(None, stories)))

    async def _effect(self, order: CareOrder) -> str:
        """What the devices themselves say after a repair; empty: nothing is wrong any more."""
        missing = [
            uuid
            for uuid in order.uuids
            if not any(uuid in (d.info.uuid, d.info.physical_uuid) for d in self.state.devices.values())
        ]
        if missing:
            return f"{', '.join(missing)} is not listed any more"
        for device in self._devices(order):
            uuid = device.info.uuid
            sample = await self.guard.run(uuid, lambda uuid=uuid: self.backend.health(uuid))  # type: ignore[misc]
            now_ms = self.world.clock.monotonic_ms()
            fresh = health.on_repair(device.health)
            judged = health.on_sample(fresh, sample, now_ms, ignored=self.poller.ignored)
            if not judged.healthy:
                return f"the repair had no effect: {judged.reason}"
        self._forgive(order)
        return ""

    def _forgive(self, order: CareOrder) -> None:
        """What was wrong with its devices before says nothing any more."""
        for device in self._devices(order):
            self.poller.set_health(device, health.on_repair(device.health))
            self.poller.ask_health_soon(device.info.uuid)
            self.mailbox.device_polled(device.info.uuid)

    async def _reboot(self, order: CareOrder) -> CareResult:
        problem, _ = await self._command(self.settings.reboot, order, "")
        if not problem:
            await asyncio.sleep(self.settings.timeout / 1000)
            problem = "the command for a restart ended well, and the machine was not restarted"
        return CareResult(problem=problem)

    @contextlib.asynccontextmanager
    async def _let_go(self) -> AsyncIterator[None]:
        """Within it this agent has no device open. Raises `DeviceError` where the driver does not come back."""
        async with self.guard.alone() as run, self.events.paused():
            await run("", self.backend.close)
            try:
                yield
            finally:
                try:
                    await run("", self.backend.open, OPEN_TIMEOUT_S)
                    await run("", self.backend.discover, OPEN_TIMEOUT_S)
                except DeviceError:
                    self._tasks.run("open the driver again", self._open_again())
                    raise

    async def let_go(self) -> None:
        """Close the driver and open it again, once. Raises `DeviceError` where it does not come back."""
        async with self._lock, self.guard.alone() as run, self.events.paused():
            await run("", self.backend.close)
            await run("", self.backend.open, OPEN_TIMEOUT_S)

    async def _open_again(self) -> None:
        """The driver has not come back after a reset: try until it does. Meanwhile no device answers."""
        while True:
            await asyncio.sleep(REOPEN_S)
            try:
                await self.guard.run("", self.backend.open, OPEN_TIMEOUT_S)
                await self.poller.discover()
            except DeviceError as error:
                log.error("the driver has not come back after a reset: %s", error.message)  # noqa: TRY400
            else:
                return

    async def _restore(self, order: CareOrder) -> None:
        """Put back what a reset needed to be otherwise, on whatever way it ended."""
        for uuid in order.uuids if self.settings.restore else ():
            problem, _ = await self._command(self.settings.restore, order, uuid)
            if problem:
                log.error("what a reset of %s needed could not be put back: %s", uuid, problem)
            self.state.note(f"restore {uuid}", f"after a reset: {problem}" if problem else "")

    async def _command(self, argv: Sequence[str], order: CareOrder, uuid: str) -> tuple[str, str]:
        """(why it failed or nothing, what it said last)."""
        device = next((d for d in self.state.devices.values() if uuid in (d.info.uuid, d.info.physical_uuid)), None)
        words = {
            "{uuid}": device.info.physical_uuid if device is not None else uuid,
            "{index}": str(device.info.index) if device is not None else "",
            "{action}": order.action.name.lower(),
        }
        filled = [_filled(word, words) for word in argv]
        ended = await self.world.run_command(filled, self.settings.timeout / 1000)
        if ended.code == 0:
            return "", ended.last_line
        what = f"ended with {ended.code}" if ended.code is not None else "did not end well"
        return f"{filled[0]} {what}: {ended.last_line or 'it said nothing'}", ""

    # -- tests

    async def _verify(self, uuids: Sequence[str], order: CareOrder) -> CareResult:
        stories: dict[str, None] = {}
        rates: dict[str, int] = {}
        for uuid in uuids:
            memory = ("--memory", str(self.settings.verify_memory)) if self.settings.verify_memory else ()
            level = ("--level", "2", "--dcgm", str(min(3, max(0, self.settings.verify_dcgm))))
            argv = (sys.executable, "-m", "aliquot.agent.doctor.card", "--uuid", uuid, *level, *memory)
            argv = (*argv, "--devices", self.devices)
            ended = await self.world.run_command(argv, self.settings.verify_timeout / 1000)
            try:
                said = json.loads(ended.last_line)
                problem, story = str(said["problem"]), str(said["story"])
                rate = int(said.get("copy_mb_s") or 0)
            except (ValueError, KeyError, TypeError):
                problem, story, rate = f"its test did not end well ({ended.code}): {ended.last_line}", "", 0
            if problem:
                return CareResult(problem=f"{uuid}: {problem}", story=story)
            stories[story] = None
            if rate > 0:
                rates[uuid] = rate
        self._forgive(order)
        return CareResult(story="; ".join(stories), copy_mb_s=rates)

    # -- disk

    def _load(self) -> CareRecord:
        try:
            return self.world.records.read_record(self.record, _KIND, CareRecord)
        except FileNotFoundError:
            return CareRecord()
        except (OSError, Damaged) as error:
            log.error("what was done to sick cards is not known any more: %s: %s", self.record, error)  # noqa: TRY400
            return CareRecord()

    async def _write_down(self, results: Mapping[int, CareResult], begun: Begun | None) -> None:
        record = CareRecord(dict(results), begun)
        try:
            await asyncio.to_thread(self.world.records.write_record, self.record, _KIND, record)
        except OSError as error:
            log.error("what is done to sick cards could not be written down: %s", error)  # noqa: TRY400


class Reopener(msgspec.Struct, eq=False):
    """Opens the driver again when all of it has failed at once. Use from one event loop.

    When every card of a node stops answering in the same moment, it is hardly the cards: access to the devices was
    taken from this agent (`systemctl daemon-reload` does that to containers), or the driver was replaced underneath it.
    Programs run on meanwhile, so nobody is ended: the node takes no new leases, says why, and the library is closed and
    opened again until it answers.
    """

    poller: Poller
    care: Care
    every_s: float
    _pause: Wakeup = msgspec.field(default_factory=Wakeup)

    async def run(self) -> None:
        """For ever."""
        while True:
            await self.poller.blinded.wait()
            self.poller.blinded.clear()
            if not self.poller.why_blind():
                continue
            try:
                await self.care.let_go()
                await self.poller.discover()
            except DeviceError as error:
                self.poller.reopened(well=False)
                log.error("the driver could not be opened again: %s", error.message)  # noqa: TRY400
            else:
                self.poller.reopened(well=True)
            await self._pause.wait(self.every_s)


def _filled(word: str, words: dict[str, str]) -> str:
    for name, value in words.items():
        word = word.replace(name, value)
    return word
