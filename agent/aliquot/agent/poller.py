"""Polls the devices.

Memory and processes of a device with leases are read every `poll.memory`, of others every `poll.idle`; load every
`poll.load`; health every `poll.health`; the list of devices every `poll.discovery`. All that is due for a device is
read by one call in its worker thread, and the watchdog judges it at once.

An interval is the longest time between two polls. When a leased device is polled next is drawn at random, from hardly
any time to the whole interval: a program that saw a poll (the agent's use of the processor shows it) must not know
that none comes for a while. While a lease on it has a record of offences, it is polled `DENSER` times as often.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from functools import partial

import msgspec

from aliquot.agent.core import health
from aliquot.agent.core.accounting import DeviceUsage
from aliquot.agent.core.attribution import ProcessFacts
from aliquot.agent.core.enforcement import held_in_both
from aliquot.agent.core.samples import HealthSample, LoadSample, MemorySample, ProcessList
from aliquot.agent.core.signals import OFF_THE_BUS
from aliquot.agent.devices.base import DeviceError, DeviceLost, with_unread, without
from aliquot.agent.devices.guard import DeviceHung
from aliquot.agent.devices.sampling import Attribution
from aliquot.agent.duties import DEVICES, DRIVER
from aliquot.agent.enforce.prerequisites import UNMEASURED, why_unmeasured
from aliquot.agent.metering import read_energy
from aliquot.agent.parts import Following, Ground, Holding
from aliquot.agent.state import DeviceState
from aliquot.agent.wakeup import Wakeup

log = logging.getLogger(__name__)

NEVER = float("-inf")
SHORTEST_PART = 0.02
"""A poll of a leased device comes after at least this part of the interval: so much of the time one may know of."""
SHORTEST_IDLE_PART = 0.9
"""The same of a device without leases, where there is nothing to hide."""
DENSER = 10
SLACK_PART = 0.5
"""What is due in less than this part of the shortest interval is asked now: the next poll may be too late for it."""
FAILURES_TOLERATED = 2
"""Calls that fail otherwise than by hanging or a lost device, in a row, before the device counts as unhealthy."""
UNMEASURED_POLLS = 3
"""After so many lists of processes without their memory, this driver is taken not to report it."""


class _LastPoll(msgspec.Struct):
    """When each thing was asked of a device last, by the monotonic clock."""

    memory_s: float = NEVER
    part: float = 1.0
    """How much of an interval is to pass before memory is asked for again: drawn anew each time."""
    load_s: float = NEVER
    health_s: float = NEVER
    failures: int = 0
    """In a row."""
    lost: bool = False
    """Whether the last of them was that the device is gone."""
    hung: bool = False
    """Whether it was that no answer came."""
    unmeasured: int = 0
    """Lists of processes in a row without the memory of any of them."""


class _Look(msgspec.Struct, frozen=True):
    """Who holds a device's memory, and what is known of them at that moment."""

    memory: MemorySample
    processes: ProcessList
    facts: Mapping[int, ProcessFacts]


class _PollResult(msgspec.Struct, frozen=True):
    memory: MemorySample | None = None
    processes: ProcessList | None = None
    facts: Mapping[int, ProcessFacts] = msgspec.field(default_factory=dict)
    blind: str = ""
    load: LoadSample | None = None
    process_percent: Mapping[int, int] | None = None
    process_peaks: Mapping[int, int] | None = None
    health: HealthSample | None = None


class Poller:
    """The only writer of samples and health. Use from one event loop."""

    def __init__(
        self,
        ground: Ground,
        following: Following,
        holding: Holding,
        observe_poll: Callable[[float], None],
        ignored: frozenset[str] = frozenset(),
    ) -> None:
        """`observe_poll` is called with the seconds that a device took to answer. `ignored`: causes that take no card
        out here.
        """
        settings = ground.settings
        self.state, self.guard, self.backend, self.world = ground.state, ground.guard, ground.backend, ground.world
        self.poll, self.left_out = settings.poll, settings.leave_out
        self.watchdog, self.mailbox = holding.watchdog, holding.mailbox
        self.attribution = Attribution(ground.state, following.containment)
        self.keep_pace = holding.limits.keep_pace if settings.enforcement.throttle else None
        """Called after each look at what programs use of a device's time; None: slices are not held to their parts."""
        self.observe_poll, self.ignored = observe_poll, ignored
        self._asked: dict[str, _LastPoll] = {}
        self._discover_at = 0.0
        self._discovered = Wakeup()
        self._wakeups: dict[str, Wakeup] = {}
        """By device: something may be due sooner than its task waits for."""
        self._watching: dict[str, asyncio.Task[None]] = {}
        self._polled: set[str] = set()
        self.blinded = asyncio.Event()
        """Set when no device answers any more: see `why_blind`."""
        self._reopened_well = False
        self.first_round = asyncio.Event()
        """Set when every device was polled once (or did not answer)."""

    async def discover(self) -> None:
        """Find the devices. Raises `DeviceError`."""
        found = await self.guard.run("", self.backend.discover, timeout_s=max(30.0, self.guard.timeout_s))
        found = without(found, self.left_out)
        self._discover_at = self.world.monotonic_s() + self.poll.discovery / 1000
        known, described = self.state.devices, self.state.infos()
        there = with_unread(described, found.devices, found.problems)
        devices = {uuid: known.get(uuid) or DeviceState(info) for uuid, info in there.items()}
        for uuid, info in there.items():
            devices[uuid].info = info
        before = self.state.measured
        self.state.measured = {info.uuid: before.get(info.uuid) or DeviceState(info) for info in found.measured}
        cards = {card.uuid: card for card in found.cards}
        changed = {uuid: device.info for uuid, device in devices.items()} != described or not known
        changed = changed or cards != self.state.cards
        self.state.devices, self.state.cards = devices, cards
        self._discovered.set()
        self.state.card_problems = found.card_problems
        whole_only = [f"GPU {info.index} ({info.uuid}): {info.whole_only}" for info in found.devices if info.whole_only]
        shut = [f"GPU {info.index} ({info.uuid}): {info.shut}" for info in found.devices if info.shut]
        for subject, texts in (
            ("unleasable", [f"can't be leased: {text}" for text in (*found.unleasable, *shut)]),
            ("whole-only", whole_only),
            ("untold", found.untold),
        ):
            self.state.note(subject, "; ".join(texts))
        self.state.duties.tell(DEVICES, "; ".join(found.problems))
        for name, problem in found.kinds.items():
            self.state.duties.tell(f"{DEVICES}-{name}", problem)
        self.state.duties.look()
        if any(found.kinds.values()):
            # Its driver may come back at any time, and its devices with it.
            self._discover_within(self.poll.health / 1000)
        if changed:
            self.mailbox.request_snapshot()

    async def run(self) -> None:
        """Poll for ever: each device by a task of its own, so that one that is slow or hangs holds up nobody."""
        try:
            while True:
                if self.world.monotonic_s() >= self._discover_at:
                    await self._rediscover()
                self._watch_all()
                self._discovered.clear()
                await self._discovered.wait(max(0.0, self._discover_at - self.world.monotonic_s()))
        finally:
            for task in self._watching.values():
                task.cancel()

    async def _rediscover(self) -> None:
        try:
            await self.discover()
        except DeviceError as error:
            self._discover_at = self.world.monotonic_s() + self.poll.health / 1000
            self.state.duties.tell(DEVICES, f"they can't be listed: {error.message}")

    def _discover_within(self, seconds: float) -> None:
        """Devices may be others than they were."""
        self._discover_at = min(self._discover_at, self.world.monotonic_s() + seconds)
        self._discovered.set()

    def _watch_all(self) -> None:
        devices = self.state.polled()
        for uuid in [uuid for uuid in self._watching if uuid not in devices]:
            self._watching.pop(uuid).cancel()
            del self._wakeups[uuid]
            # The parts of a card have new names each time that it is cut.
            self._asked.pop(uuid, None)
            self._polled.discard(uuid)
            self.watchdog.forget(uuid)
            self.guard.forget(uuid)
        for number, uuid in enumerate(devices):
            if uuid not in self._watching:
                # The driver serves one call at a time: polls are spread over the interval instead of queueing up.
                turn_s = self._shortest_s() * number / len(devices)
                self._wakeups[uuid] = Wakeup()
                self._watching[uuid] = asyncio.create_task(self._watch(uuid, turn_s), name=f"poll {uuid}")
        if not devices:
            self.first_round.set()

    async def _watch(self, uuid: str, turn_s: float) -> None:
        """Poll one device for ever: at once, then in its turns when there is something to ask."""
        wakeup = self._wakeups[uuid]
        not_before_s = self.world.monotonic_s() + turn_s
        while (device := self.state.polled().get(uuid)) is not None:
            well = False
            try:
                await self._poll(device)
                well = not self._asked.setdefault(uuid, _LastPoll()).failures
            except Exception:  # a defect must not leave a device unwatched
                log.exception("polling %s failed", uuid)
            self._polled.add(uuid)
            if self._polled >= self.state.devices.keys():
                self.first_round.set()
            if not well:
                not_before_s = self.world.monotonic_s() + self._shortest_s()
            wakeup.clear()
            while (wait_s := max(self._next_s(device), not_before_s) - self.world.monotonic_s()) > 0:
                await wakeup.wait(wait_s)
                wakeup.clear()

    def poll_soon(self, uuid: str) -> None:
        """A device may have to be polled sooner than planned."""
        wakeup = self._wakeups.get(uuid)
        if wakeup is not None:
            wakeup.set()

    def _shortest_s(self) -> float:
        return min(self.poll.memory, self.poll.idle) / 1000

    def _next_s(self, device: DeviceState) -> float:
        """When there is something to ask of a device."""
        return min(self._memory_due_s(device), self._load_due_s(device), self._health_due_s(device))

    def _load_due_s(self, device: DeviceState) -> float:
        """Where a slice is held on what another lease does not use, that one's first activity is to be seen soon; where
        slices share a device's time, what each uses of it.
        """
        records = self.state.reserved_on(device.info.uuid)
        shared = self.keep_pace is not None and len(records) > 1
        soon = shared or any(record.spec.lender for record in records)
        interval_s = (min(self.poll.memory, self.poll.load) if soon else self.poll.load) / 1000
        return self._asked.setdefault(device.info.uuid, _LastPoll()).load_s + interval_s

    def _memory_due_s(self, device: DeviceState) -> float:
        uuid, asked = device.info.uuid, self._asked.setdefault(device.info.uuid, _LastPoll())
        if self.watchdog.suspects(uuid):
            return asked.memory_s + asked.part * self.poll.memory / 1000 / DENSER
        if self.state.leased(uuid) or self.watchdog.saw_strays:
            return asked.memory_s + asked.part * self.poll.memory / 1000
        part = SHORTEST_IDLE_PART + (1 - SHORTEST_IDLE_PART) * asked.part
        return asked.memory_s + part * self.poll.idle / 1000

    def _health_due_s(self, device: DeviceState) -> float:
        asked = self._asked.setdefault(device.info.uuid, _LastPoll())
        return asked.health_s + (self.poll.health if device.health.healthy else self.poll.load) / 1000

    def _due(self, device: DeviceState) -> tuple[bool, bool, bool]:
        """Whether memory, load and health are to be asked for now; what is due very soon, with the rest."""
        now_s = self.world.monotonic_s()
        soon_s = now_s + self._shortest_s() * SLACK_PART
        load_due_s = self._load_due_s(device)
        return now_s >= self._memory_due_s(device), soon_s >= load_due_s, soon_s >= self._health_due_s(device)

    async def look(self, uuid: str) -> DeviceUsage:
        """Who holds what of a device right now, judged like any poll. Raises `DeviceError`."""
        device = self.state.devices.get(uuid)
        if device is None:
            raise DeviceError(f"this node has no device {uuid}")
        answer = await self.guard.run(
            uuid, partial(self._ask, uuid, want_memory=True, want_load=False, want_health=False)
        )
        return await self._take_memory(device, answer)

    async def _poll(self, device: DeviceState) -> None:
        uuid = device.info.uuid
        asked = self._asked.setdefault(uuid, _LastPoll())
        now = self.world.monotonic_s()
        want_memory, want_load, want_health = self._due(device)
        if not (want_memory or want_load or want_health):
            return
        begun = now
        try:
            answer = await self.guard.run(
                uuid,
                partial(self._ask, uuid, want_memory=want_memory, want_load=want_load, want_health=want_health),
            )
        except DeviceError as error:
            self._failed(device, asked, error)
            self.mailbox.device_polled(uuid)
            return
        finally:
            self.observe_poll(self.world.monotonic_s() - begun)
        asked.failures, asked.lost, asked.hung = 0, False, False
        self._reopened_well = False
        self.state.duties.tell(DRIVER)
        if want_memory:
            asked.memory_s, asked.part = now, self.world.poll_random.uniform(SHORTEST_PART, 1.0)
        asked.load_s = now if want_load else asked.load_s
        asked.health_s = now if want_health else asked.health_s
        await self._take(device, answer)
        self.mailbox.device_polled(uuid)

    def _ask(self, uuid: str, *, want_memory: bool, want_load: bool, want_health: bool) -> _PollResult:
        """Runs in a worker thread."""
        memory: MemorySample | None = None
        processes: ProcessList | None = None
        facts: Mapping[int, ProcessFacts] = {}
        blind = ""
        if want_memory:
            memory = self.backend.memory(uuid)
            try:
                processes, facts = self._list(uuid)
            except (DeviceLost, DeviceHung):
                raise
            except DeviceError as error:
                blind = error.message
        leased = want_load and (self.state.leased(uuid) or uuid in self.state.measured)
        return _PollResult(
            memory=memory,
            processes=processes,
            facts=facts,
            blind=blind,
            load=self.backend.load(uuid) if want_load else None,
            process_percent=self.backend.process_load(uuid) if leased else None,
            process_peaks=self.backend.process_peaks(uuid) if leased else None,
            health=self.backend.health(uuid) if want_health else None,
        )

    def _list(self, uuid: str) -> tuple[ProcessList, Mapping[int, ProcessFacts]]:
        """Runs in a worker thread. Processes are identified at once: some of them live for milliseconds."""
        listed = self.backend.processes(uuid)
        found = ((sample.pid, self.world.processes.facts_of(sample.pid)) for sample in listed.processes)
        return listed, {pid: facts for pid, facts in found if facts is not None}

    def _look_again(self, uuid: str) -> _Look:
        """Runs in a worker thread."""
        memory = self.backend.memory(uuid)
        return _Look(memory, *self._list(uuid))

    async def _take(self, device: DeviceState, answer: _PollResult) -> None:
        if answer.load is not None:
            device.load = answer.load
            device.process_percent, device.process_peaks = answer.process_percent, answer.process_peaks
            read_energy(self.state, device, self.world.clock.monotonic_ms())
            if self.keep_pace is not None:
                self.keep_pace(device, self.world.clock.monotonic_ms())
            if answer.load.outdated:
                self._discover_within(0.0)
        if answer.health is not None:
            device.health_sample = answer.health
            now_ms, calm_ms = self.world.clock.monotonic_ms(), self.poll.calm
            self.set_health(device, health.on_sample(device.health, answer.health, now_ms, calm_ms, self.ignored))
        if answer.memory is not None:
            await self._take_memory(device, answer)

    async def _take_memory(self, device: DeviceState, answer: _PollResult) -> DeviceUsage:
        uuid = device.info.uuid
        listed = answer.processes if answer.processes is not None else ProcessList((), complete=False)
        memory = answer.memory
        usage = judged = self.attribution.usage(uuid, memory, listed, answer.facts)
        if self.watchdog.needs_second_look(usage):
            # If the second look fails, the first one counts.
            with contextlib.suppress(DeviceError):
                again = await self.guard.run(uuid, partial(self._look_again, uuid))
                memory, listed = again.memory, again.processes
                usage = self.attribution.usage(uuid, memory, listed, again.facts)
                judged = held_in_both(judged, usage)
        device.memory = memory
        device.blind = answer.blind or self._why_unmeasured(device, listed)
        device.usage = usage
        device.sampled_ms = self.world.clock.now_ms()
        device.sampled_monotonic_ms = self.world.clock.monotonic_ms()
        self.watchdog.check(judged)
        return usage

    def _why_unmeasured(self, device: DeviceState, listed: ProcessList) -> str:
        """Why processes can't be measured here; empty while they can. After `UNMEASURED_POLLS` lists without
        any memory it stays so until some process's memory is reported: an empty list proves nothing.
        """
        asked = self._asked.setdefault(device.info.uuid, _LastPoll())
        if problem := why_unmeasured(listed):
            asked.unmeasured += 1
            return problem if asked.unmeasured >= UNMEASURED_POLLS else ""
        if listed.processes:
            asked.unmeasured = 0
        return UNMEASURED if asked.unmeasured >= UNMEASURED_POLLS else ""

    def _failed(self, device: DeviceState, asked: _LastPoll, error: DeviceError) -> None:
        asked.failures += 1
        asked.memory_s = asked.load_s = asked.health_s = NEVER
        if isinstance(error, (DeviceHung, DeviceLost)) or asked.failures > FAILURES_TOLERATED:
            # The last sample is out of date: unknown, not unchanged.
            device.memory = None
            device.load, device.mean_power_mw = LoadSample(), None
            device.process_percent = device.process_peaks = None
            lost = OFF_THE_BUS if isinstance(error, DeviceLost) else None
            asked.lost = lost is not None
            asked.hung = isinstance(error, DeviceHung)
            blind = self.why_blind()
            if blind:
                # The fault is this agent's, or the driver's as a whole: no card is to blame, nobody is to be ended.
                self.state.duties.tell(DRIVER, f"no device answers: {error.message}")
                self.blinded.set()
                for each in self.state.devices.values():
                    now_ms = self.world.clock.monotonic_ms()
                    self.set_health(each, health.on_blindness(each.health, f"{blind}: {error.message}", now_ms))
                    self.mailbox.device_polled(each.info.uuid)
                return
            if lost is not None:
                # It may be there in another shape: cut into parts, or by another driver.
                self._discover_within(self.poll.health / 1000)
            self.set_health(
                device,
                health.on_failure(
                    device.health, error.message, self.world.clock.monotonic_ms(), lost, ignored=self.ignored
                ),
            )

    def why_blind(self) -> str:
        """Why what fails is not the devices' own fault: all of them fail alike. Empty: at least one answers, or each
        has a fault of its own. A single card is believed to be at fault where the driver itself could be opened again.
        """
        asked = [self._asked.setdefault(uuid, _LastPoll()) for uuid in self.state.devices]
        if not asked or any(each.lost or not (each.hung or each.failures > FAILURES_TOLERATED) for each in asked):
            return ""
        if len(asked) == 1 and (self._reopened_well or asked[0].hung):
            return ""
        return "no device of this node answers this agent"

    def reopened(self, *, well: bool) -> None:
        """The driver was opened again, or could not be."""
        self._reopened_well = well
        for uuid in self.state.devices:
            self.poll_soon(uuid)

    def set_health(self, device: DeviceState, now: health.Health) -> None:
        """What is thought of the device from now on; a change is logged and told."""
        before = device.health
        device.health = now
        if (before.healthy, before.reason, before.signal) == (now.healthy, now.reason, now.signal):
            return
        if now.healthy:
            log.warning("device %s is healthy again", device.info.uuid)
        else:
            log.error("device %s is unhealthy: %s", device.info.uuid, now.reason)
            self.state.happened.append(f"{device.info.uuid}: {now.reason}")

    def mark_unusable(self, reason: str) -> None:
        """Nothing new can be held on this node: its devices count as unhealthy for a while, as after any failure."""
        for uuid, device in self.state.devices.items():
            now_ms = self.world.clock.monotonic_ms()
            self.set_health(device, health.on_failure(device.health, reason, now_ms, silent=False))
            self.poll_soon(uuid)
            self.mailbox.device_polled(uuid)

    def ask_health_soon(self, uuid: str) -> None:
        """Something was heard of the device that its next health sample may explain."""
        self._asked.setdefault(uuid, _LastPoll()).health_s = NEVER
        self.poll_soon(uuid)
