"""A node: a simulated machine with the production agent on it, and how both come and go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from aliquot.agent.agent import Agent
from aliquot.agent.core.samples import DeviceEvent, DeviceInfo
from aliquot.agent.disk.membership import Membership
from aliquot.agent.node_key import fingerprint
from aliquot.agent.processes.commands import Ended
from aliquot.agent.settings import MigSettings, PollSettings, RepairSettings, Settings
from aliquot.common.duration import DurationMs
from tests.simulation.sim.agent_world import world_of
from tests.simulation.sim.clocks import WallClock
from tests.simulation.sim.disk import StateDisk
from tests.simulation.sim.enrolling import EARLY_EVERY, make_key
from tests.simulation.sim.loop import US_PER_S, Process, SimLoop, current
from tests.simulation.sim.machine import ProcessTable, SimMachine
from tests.simulation.sim.mig import BEGINNINGS, SimCard
from tests.simulation.sim.network import Network
from tests.simulation.sim.seams import SimBackend

GIB = 1 << 30
COMMAND_S = 8.0
"""How long a command takes."""
REPAIRS = RepairSettings(reset=("reset", "{uuid}"), reboot=("reboot",), restore=("restore", "{uuid}"))
MODELS = (
    ("NVIDIA A100-SXM4-40GB", "A100-40", 40 * GIB, GIB // 2),
    ("NVIDIA A100-SXM4-80GB", "A100-80", 80 * GIB, GIB // 2),
    ("NVIDIA H100 80GB HBM3", "H100-80", 80 * GIB, GIB),
    ("NVIDIA L4", "L4", 24 * GIB, GIB // 2),
)


def devices_of(number: int, random: Random) -> list[DeviceInfo]:
    """The GPUs of the n-th node: 1 to 8 of one model."""
    product, model, total, reserved = MODELS[random.randrange(len(MODELS))]
    return [
        DeviceInfo(
            uuid=f"GPU-{number:08x}-0000-4000-8000-{index:012x}",
            index=index,
            product_name=product,
            model=model,
            vendor="nvidia",
            memory_total_bytes=total,
            memory_reserved_bytes=reserved,
            pci_bus_id=f"00000000:{index:02X}:00.0",
            fabric_island=index // 4 if model != "L4" else None,
        )
        for index in range(random.choice((1, 1, 2, 2, 2, 4, 4, 8)))
    ]


class SimNode(SimMachine):
    """See the module's docstring."""

    def __init__(
        self,
        loop: SimLoop,
        random: Random,
        table: ProcessTable,
        network: Network,
        *,
        number: int,
        coordinators: tuple[str, ...],
        devices: list[DeviceInfo],
    ) -> None:
        super().__init__(loop, random, table, f"node-{number:04d}", devices, cgroups=random.random() < 0.7)
        self.number = number
        self.network = network
        self.coordinators = coordinators
        self.node_name = f"host-{number:04d}"
        self.clock = WallClock(loop)
        self.jitter = Random(copy(random).getrandbits(64))
        """For the agent: it draws nothing from the machine's own randomness."""
        self.poll_jitter = Random(copy(random).getrandbits(64) + 1)
        self.disk = StateDisk(random)
        self.agent: Agent | None = None
        self.process: Process | None = None
        self.powered = True
        self.removed = False
        self.member: Membership | None = None
        """Of the pool, once it has joined."""
        self.key_random = Random(copy(random).getrandbits(64) + 2)
        """For its key, and what its agent asks to be signed."""
        self.local: Any = None
        self.take_event: Callable[[DeviceEvent, int], Any] | None = None
        self.agent_starts = 0
        self.before_agent_start: Callable[[SimNode], None] = lambda node: None
        self.on_agent_start: Callable[[SimNode], None] = lambda node: None
        self.on_agent_error: Callable[[SimNode, BaseException], None] = lambda node, error: None
        self._settings = Settings(
            coordinator=coordinators,
            state_dir=Path("/state"),
            socket=Path("/run/agent.sock"),
            metrics_port=-1,
            node_name=self.node_name,
            node_id=self.node_id,
            mig=MigSettings(repartition=True),
            poll=PollSettings(
                memory=DurationMs(2_000),
                idle=DurationMs(10_000),
                load=DurationMs(20_000),
                health=DurationMs(30_000),
                discovery=DurationMs(60_000),
            ),
            repair=REPAIRS if number % 2 else RepairSettings(verify=number % 4 == 0),
        )

    def in_rack(self, name: str) -> None:
        """It stands in this rack, from its agent's next start on."""
        self._settings = msgspec.structs.replace(self._settings, failure_domain=name)

    def repairs_with(self, settings: RepairSettings) -> None:
        """What its agent may do about sick cards, from its next start on."""
        self._settings = msgspec.structs.replace(self._settings, repair=settings)

    async def run_command(self, argv: Sequence[str], timeout_s: float) -> Ended:
        """A command of the administrator's, or a test of a card."""
        await asyncio.sleep(COMMAND_S)
        if argv[0] == "reset":
            if argv[1] in self.devices:
                self.devices[argv[1]].well_again()
        elif argv[0] == "reboot":
            for device in self.devices.values():
                device.well_again()
            self.unplugged.clear()
            self.loop.call_in(self.os, US_PER_S, lambda: self.cut_power(60 * US_PER_S))
        elif "aliquot.agent.doctor.card" in argv:
            tested = self.devices.get(argv[argv.index("--uuid") + 1])
            sick = tested is not None and tested.sick
            said = {"problem": "it is as sick as before" if sick else "", "story": "tested"}
            return Ended(int(sick), json.dumps(said))
        return Ended(0, "done")

    def put_in_mig_mode(self, cards: int, random: Random) -> None:
        """Instead of its GPUs it has cards that can be cut."""
        self.devices.clear()
        for number in range(cards):
            card = SimCard(self, number, random.choice(BEGINNINGS))
            self.cards[card.uuid] = card

    @property
    def key_sha256(self) -> bytes:
        """Of the key that it has; empty: it has none."""
        return fingerprint(self.member.key_pem) if self.member is not None else b""

    @cached_property
    def key_pem(self) -> str:
        """Its key, also when it joins anew."""
        return make_key(self.key_random)

    @property
    def early(self) -> bool:
        """Whether its agent is started before it has joined."""
        return self.number % EARLY_EVERY == 1

    def has_joined(self) -> None:
        """Its agent is started, or need not wait any longer."""
        if self.agent is not None and self.process is not None:
            self.loop.call_in(self.process, 0, self.agent.stream.connect_again)
        else:
            self.start_agent()

    @property
    def agent_alive(self) -> bool:
        """Whether an agent process is there (frozen or not)."""
        return self.process is not None and self.process.alive

    def start_agent(self) -> None:
        """An init system starts the agent."""
        if self.agent_alive or not self.powered or self.removed or not (self.early or self.member is not None):
            return
        self.agent_starts += 1
        self.before_agent_start(self)
        self.process = self.loop.spawn(f"agent of {self.node_id}")
        self.process.host = self
        self.loop.start(self.process, self._run(), "agent")

    async def _run(self) -> None:
        process = current()
        try:
            self.agent = agent = await Agent.open(self._settings, SimBackend(self), world_of(self))
            await agent.start()
            self.on_agent_start(self)
            await agent.run()
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - an agent must never end by itself
            if process.alive:
                self.on_agent_error(self, error)

    def crash_agent(self, again_after_us: int = 2 * US_PER_S) -> None:
        """SIGKILL; its init system starts it again after a while."""
        if self.process is not None and self.process.alive:
            self.loop.kill(self.process)
            self.agent, self.local, self.take_event = None, None, None
            self.loop.call_in(self.os, again_after_us, self.start_agent)

    def cut_power(self, again_after_us: int) -> None:
        """The machine is off, and boots after a while."""
        if self.powered:
            self.powered = False
            if self.process is not None:
                self.loop.kill(self.process)
            self.agent, self.local, self.take_event = None, None, None
            self.lose_power()
            self.disk.lose_power()
            self.loop.call_in(self.os, again_after_us, self.boot)

    def boot(self) -> None:
        """Power is back."""
        if not self.powered:
            self.powered = True
            self.start_agent()

    def report_xid(self, uuid: str, xid: int) -> None:
        """The driver reports an event to whoever listens."""
        if self.take_event is not None and self.process is not None and self.process.alive:
            self.loop.start(self.process, self.take_event(DeviceEvent(uuid, xid), 1), "xid")
