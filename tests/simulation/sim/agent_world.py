"""What a simulated machine gives the agent that runs on it, instead of `World`'s defaults: production code gets all of
it as arguments, and nothing of it is patched.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from aliquot.agent.connection import Coordinators
from aliquot.agent.core.model import Holder
from aliquot.agent.disk.checkpoint import Checkpoint
from aliquot.agent.disk.identity import Identity
from aliquot.agent.enforce.base import Enforcer
from aliquot.agent.enforce.nothing_set import NoEnforcer, WatchdogEnforcer
from aliquot.agent.hosting.base import HostError
from aliquot.agent.local.service import LocalService
from aliquot.agent.processes.apart import here
from aliquot.agent.processes.cgroups import ContainmentError
from aliquot.agent.processes.signals import Outcome, Signaller, Target
from aliquot.agent.world import World
from aliquot.v1 import agent_pb2
from tests.simulation.sim.disk import SimFiles, SimRecords
from tests.simulation.sim.loop import current
from tests.simulation.sim.network import Connection, Network
from tests.simulation.sim.seams import SimDriverTier, SimGuard, SimProcesses, SimTree
from tests.simulation.sim.server import AGENT_SESSION

if TYPE_CHECKING:
    from tests.simulation.sim.nodes import SimNode


def world_of(node: SimNode) -> World:
    """For one start of the node's agent."""

    class TellingSignaller(Signaller):
        """Keeps for the auditor's message what the agent says it signals for."""

        def _send(self, target: Target, what: signal.Signals) -> Outcome:
            node.why, node.meant = target.why, target.process
            return super()._send(target, what)

    return World(
        clock=node.clock.make(),
        monotonic_s=lambda: node.loop.now_us / 1e6,
        random=node.jitter,
        poll_random=node.poll_jitter,
        machine=SimHost(),
        wall_ns=lambda: 0,  # it does not tell: coordinators of the simulation compare no clocks
        processes=SimProcesses(node.loop, node.table, current),
        kernel=SimKernel(node),
        signaller=TellingSignaller,
        records=SimRecords(),
        boot_id=lambda: node.boot_id,
        version="0",
        open_identity=lambda path, configured, uuids: Identity.open(path, configured, uuids, SimFiles(node.disk)),
        open_checkpoint=lambda directory, boot_id: Checkpoint.open(directory, boot_id, SimFiles(node.disk)),
        open_cgroups=lambda node_id, base: _tree(node),
        read_member=lambda state_dir: node.member,
        write_member=lambda state_dir, member: setattr(node, "member", member),
        entropy=node.key_random.randbytes,
        check_state=lambda state_dir: None,
        open_session=lambda address, coordinators: _session(node.network, address, coordinators),
        make_guard=lambda timeout_s: _guard(node, timeout_s),
        try_cuda=lambda: "",
        make_tiers=lambda names, **needed: _tiers(node, **needed),
        make_events=lambda backend, take, tell: SimEvents(node, take),
        make_kernel_log=lambda path, device_at, take, tell, mark: SilentLog(),
        apart=here,
        run_command=node.run_command,
        make_host=lambda **_: NothingServed(),
        make_server=lambda service, path: SimLocalServer(node, service),
        make_metrics=_no_metrics,
    )


def _guard(node: SimNode, timeout_s: float) -> Any:
    return SimGuard(node, timeout_s)


def _tree(node: SimNode) -> Any:
    if not node.has_cgroups:
        raise ContainmentError("no cgroup can be made here")
    return SimTree(node)


def _tiers(node: SimNode, *, blind: Callable[[str], str], powerless: Callable[[], str], **_: object) -> list[Enforcer]:
    """The tiers that need nothing of the real machine, and a driver's that is simulated."""
    return [NoEnforcer(), WatchdogEnforcer(blind, powerless), SimDriverTier(node)]


@contextlib.asynccontextmanager
async def _session(network: Network, address: str, coordinators: Coordinators) -> AsyncIterator[Any]:
    yield SimCall(network, address)


class NothingServed:
    """No service is installed on simulated machines."""

    def offered(self) -> frozenset[str]:
        """None."""
        return frozenset()

    async def start(self, holder: Holder, name: str) -> str:
        """Raises HostError."""
        raise HostError(f"{name} is not installed")

    async def health(self, holder: Holder) -> str:
        """There is no process."""
        return ""

    async def measure(self, holder: Holder) -> Mapping[str, int] | None:
        """There is no process."""
        return None

    async def stop(self, holder: Holder) -> None:
        """There was no process."""

    async def sweep(self) -> None:
        """Nothing was left."""

    def figures(self) -> Mapping[Holder, Mapping[str, int]]:
        """Of nobody."""
        return {}


class SimHost:
    """What it has beside devices."""

    def host_name(self) -> str:
        """Settings name it."""
        raise AssertionError("the name of the real machine was asked for")

    def in_pid_namespace(self) -> bool:
        """It is no container."""
        return False

    def cpu_milli(self) -> int:
        """64 processors."""
        return 64_000

    def memory_bytes(self) -> int | None:
        """512 GiB."""
        return 512 << 30


class SimKernel:
    """Processes pinned and signalled. A pid serves as its own descriptor."""

    def __init__(self, node: SimNode) -> None:
        self._node = node

    def available(self) -> str:
        """They can be."""
        return ""

    def own_pid(self) -> int:
        """Of the agent: none that a job can have."""
        return 1

    def pin(self, pid: int) -> int:
        """Raises ProcessLookupError."""
        proc = self._node.procs.get(pid)
        if proc is not None and self._node.swaps and proc.lease_id:
            self._node.swaps -= 1
            self._node.swap(proc)
        if pid not in self._node.table.by_pid:
            raise ProcessLookupError(pid)
        return pid

    def ended(self, pinned: int) -> bool:
        """Whether nobody has the pid."""
        return pinned not in self._node.table.by_pid

    def send(self, pinned: int, what: signal.Signals) -> None:
        """The kernel delivers it."""
        self._node.signal(pinned, what)

    def unpin(self, pinned: int) -> None:
        """Nothing to close."""


class SimCall:
    """The client's end of an agent's stream, as `grpc.aio` shows it."""

    def __init__(self, network: Network, address: str) -> None:
        process = current()
        self._connection: Connection | None = network.connect(process.host.host, address, AGENT_SESSION, process, "")
        self._address = address

    async def write(self, message: agent_pb2.AgentMessage) -> None:
        """Send."""
        await self._alive().client_write(message.SerializeToString())

    async def read(self) -> Any:
        """Receive."""
        data = await self._alive().client_read()
        return agent_pb2.CoordinatorMessage.FromString(data) if isinstance(data, bytes) else data

    def cancel(self) -> None:
        """Done with it."""
        if self._connection is not None:
            self._connection.client_cancel()

    async def code(self) -> grpc.StatusCode:
        """How it ended."""
        status = self._alive().status
        return grpc.StatusCode.OK if status is None else status.code

    async def details(self) -> str:
        """Why it ended."""
        status = self._alive().status
        return "" if status is None else status.details

    async def trailing_metadata(self) -> grpc.aio.Metadata:
        """What came with the end."""
        status = self._alive().status
        return grpc.aio.Metadata(*(status.metadata if status is not None else ()))

    def _alive(self) -> Connection:
        if self._connection is None:
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.UNAVAILABLE,
                grpc.aio.Metadata(),
                grpc.aio.Metadata(),
                details=f"no way to {self._address}",
            )
        return self._connection


class SimEvents:
    """XIDs, handed over by the machine instead of by a thread."""

    def __init__(self, node: SimNode, take: Callable[..., Any]) -> None:
        node.take_event = take

    async def run(self) -> None:
        """The machine calls `take` itself."""

    async def gone(self) -> bool:
        """There is no thread."""
        return True

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """There is no thread."""
        yield


class SilentLog:
    """The kernel's log of a simulated machine says nothing: the machine hands XIDs over itself."""

    async def run(self) -> None:
        """Nothing comes."""


class SimLocalServer:
    """The local socket without the socket: jobs of the simulated machine call the service directly."""

    def __init__(self, node: SimNode, service: LocalService) -> None:
        node.local = service

    async def start(self) -> None:
        """Nothing to listen on."""

    async def close(self) -> None:
        """Nothing to close."""


def _no_metrics() -> Any:
    """An agent's metrics endpoint is another thread's: nobody scrapes here."""
    return SimpleNamespace(
        observe_poll=lambda seconds: None,
        close=lambda: None,
    )
