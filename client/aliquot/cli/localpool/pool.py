"""Starting, watching, breaking and stopping the parts of a local pool."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from aliquot.cli.localpool.children import Child, ChildFailed, clean_environment
from aliquot.cli.localpool.layout import Layout
from aliquot.cli.localpool.record import NodeRecord, PoolRecord, ProcessId, remove
from aliquot.cli.localpool.signing_in import SigningIn
from aliquot.client import AgentError, Conflict, NodeState, Pool, PoolError
from aliquot.client.credentials import CredentialsFile
from aliquot.client.local import LocalAgent
from aliquot.common import programs
from aliquot.common.errors import ConfigError
from aliquot.common.own_files import lock_file, make_private
from aliquot.common.tls import ClientTls, host_of, is_local_address

START_TIMEOUT_S = 60.0
AGENT_METRICS_PORT = 9478
CONSOLE_PORT = 7074
RESTART_WINDOW_S = 120.0
"""Restarts within this time make the pause before the next longer."""
RESTART_PAUSE_MAX_S = 30.0
Say = Callable[[str], None]


def require_pool() -> None:
    """Raises `ConfigError` on other systems, since agents need Linux to follow processes, and where the programs of a
    pool are not installed: the base install is the SDK and the command line.
    """
    if not hasattr(os, "pidfd_open"):
        raise ConfigError(
            "a pool on this machine needs Linux",
            hint="name a coordinator elsewhere: --coordinator, or ALIQUOT_COORDINATOR",
        )
    lacking = sorted({name for extra in ("agent", "coordinator") for name in programs.missing(extra)})
    if lacking:
        raise ConfigError(
            f"a pool on this machine needs aliquot[pool], of which {', '.join(lacking)} is not installed",
            hint="pip install 'aliquot[pool]'",
        )


_EVERYWHERE = ("", "*", "0.0.0.0", "::")  # noqa: S104 - to know them by


AHEAD_NODES = 2


@dataclass(frozen=True, slots=True)
class PoolSetup:
    """What to start."""

    nodes: int = 2
    gpus: int = 4
    model: str = "A100-40"
    real: bool = False
    """This machine's own GPUs, as one node."""
    listen: str = "127.0.0.1:7070"
    metrics_port: int = 7071
    """0: a free one."""
    agent_metrics_port: int = AGENT_METRICS_PORT
    """Of the first agent; the others count up. A port that is in use is replaced by a free one. 0: free ones."""
    tiers: tuple[str, ...] = ()
    """How each node may enforce limits (`preload,watchdog`), the last one for all further nodes; empty: every way."""
    console_port: int | None = None
    """0, or where it is in use: a free one. None: no console."""
    coordinator_options: tuple[str, ...] = ()
    agent_variables: tuple[tuple[str, str], ...] = ()
    """Of every agent, beside its own."""

    def node_names(self) -> list[str]:
        """The nodes' names."""
        if self.real:
            return [socket.gethostname().split(".")[0] or "node-1"]
        return [f"node-{number}" for number in range(1, self.nodes + 1)]


@dataclass(frozen=True, slots=True)
class LocalNode:
    """A node: its agent, and how programs reach its devices."""

    name: str
    agent: Child
    socket: Path
    devices: str
    env: dict[str, str]
    """What programs on its simulated GPUs need; empty for real ones."""
    join: tuple[str, ...]
    """The program that lets it join the pool, but for the string."""

    @property
    def metrics(self) -> str:
        """The address of its metrics, once it runs."""
        address = (self.agent.ready_line() or {}).get("metrics", "")
        return f"http://{address}/metrics" if address else ""


class LocalPool:
    """A coordinator and its agents. Use it in a `with` block: at the end everything it started is stopped."""

    def __init__(
        self,
        layout: Layout,
        plan: PoolSetup,
        say: Say = lambda text: None,
        credentials: CredentialsFile | None = None,
    ) -> None:
        """`credentials` is where the administrator's token is kept while the pool is up; None: nowhere."""
        self.layout = layout
        self.plan = plan
        self._say = say
        self._signing_in = SigningIn(layout, credentials)
        self._lock: int | None = None
        self.nodes: list[LocalNode] = []
        self.address = plan.listen
        """Where this machine's programs reach the coordinator."""
        self.tls: ClientTls | None = None
        self.metrics = ""
        self.console: Child | None = None
        """Serves REST and the page, where it is installed and wanted."""
        self._restarts: dict[str, list[float]] = {}
        self._not_before: dict[str, float] = {}
        """By part: when it may be started again, by the monotonic clock."""
        self._metrics_port = free_port(plan.metrics_port)
        self.coordinator = self._coordinator_child()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ---------------------------------------------------------------------------------------------------- starting

    def start(self) -> None:
        """Start everything and wait until every node takes leases.

        Raises `Conflict` when another pool uses the folder, `ChildFailed` with the part's last output.
        """
        self.layout.make()
        self._take_lock()
        self.start_coordinator()
        self._signing_in.sign_in(self.address, self.tls)
        self.nodes = [self._make_node(index, name) for index, name in enumerate(self.plan.node_names())]
        enrol(self.nodes, self)
        for node in self.nodes:
            node.agent.start()
        self._start_console()
        self.wait_ready()
        if self.console is not None:
            self.console.wait_ready(START_TIMEOUT_S)
        self.write_record()

    @property
    def console_address(self) -> str:
        """Where a browser finds it; empty: there is none."""
        return str((self.console.ready_line() or {}).get("address", "")) if self.console is not None else ""

    def _start_console(self) -> None:
        if self.plan.console_port is None:
            return
        if not all(map(importlib.util.find_spec, ("aliquot.console", "fastapi", "uvicorn"))):
            self._say("without a console, which is not installed: pip install 'aliquot[console]'")
            return
        command = [
            sys.executable,
            *("-m", "aliquot.console", "--metrics-port=-1"),
            *("--coordinator", self.address),
            *("--port", str(free_port(self.plan.console_port))),
        ]
        if self.tls is not None and self.tls.ca_file is not None:
            command += ["--tls-coordinator-ca", str(self.tls.ca_file)]
        self.console = Child("console", command, clean_environment({}), self.layout.logs / "console.log")
        self.console.start()

    def start_coordinator(self) -> None:
        """Start the coordinator, for the first time or again on the same address, and wait until it answers."""
        self.coordinator.start()
        ready = self.coordinator.wait_ready(START_TIMEOUT_S)
        listening = str(ready.get("address", self.plan.listen))
        self.address = _here(listening)
        if not is_local_address(listening) and "--tls-cert" not in self.plan.coordinator_options:
            self.tls = ClientTls(ca_file=self.layout.authorities)
        self.metrics = str(ready.get("metrics", ""))
        # Kept for restarts: agents and clients know this port.
        self.coordinator.command = self._coordinator_command(listening)

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until every node is READY and its agent answers on its socket. Raises `ChildFailed`."""
        for node in self.nodes:
            node.agent.wait_for(partial(answers, LocalAgent(node.socket)), timeout_s, "its socket answered")
        names = {node.name for node in self.nodes}
        with Pool(self.address, timeout_s=timeout_s, tls=self.tls, token_file=self.token_file) as pool:
            for node in self.nodes:
                node.agent.wait_for(lambda: names <= ready_names(pool), timeout_s, "every node was ready")

    def _take_lock(self) -> None:
        try:
            self._lock = lock_file(self.layout.lock)
        except BlockingIOError:
            raise Conflict(
                f"a pool is running in {self.layout.root}",
                hint="`aliquot down` stops it; or choose another --state-dir",
                reason="POOL_RUNNING",
            ) from None
        left = PoolRecord.read(self.layout)
        if left is not None and left.processes:
            self._say("stopping what an earlier pool left running")
            left.stop(timeout_s=10.0)

    def _coordinator_child(self) -> Child:
        return Child(
            "coordinator",
            self._coordinator_command(self.plan.listen),
            clean_environment({"ALIQUOT_COORDINATOR_ACCESS_DIR": str(self.layout.access)}),
            self.layout.logs / "coordinator.log",
        )

    def _coordinator_command(self, listen: str) -> list[str]:
        return [
            sys.executable,
            *("-m", "aliquot.coordinator"),
            *("--listen", listen),
            *("--journal", f"sqlite:{self.layout.journal}"),
            *("--metrics-port", str(self._metrics_port)),
            *self.plan.coordinator_options,
        ]

    def _make_node(self, index: int, name: str) -> LocalNode:
        env = {} if self.plan.real else self._simulate(name)
        tiers = self.plan.tiers[min(index, len(self.plan.tiers) - 1)] if self.plan.tiers else ""
        settings = {"ALIQUOT_AGENT_ENFORCEMENT_TIERS": tiers} if tiers else {}
        if not self.plan.real:
            # In a trial what serves leases is the owner's own; nobody else could enter the pool's folder.
            settings["ALIQUOT_AGENT_HOSTING_USER"] = str(os.geteuid())
            # Simulated memory holds what is written to it, so that a program elsewhere reads what it wrote.
            settings["ALIQUOT_SIMGPU_BACKED"] = "1"
            # A process that waits with PyTorch imported is 300 MB: on one machine only the first nodes have one.
            settings["ALIQUOT_AGENT_HOSTING_AHEAD"] = str(index < AHEAD_NODES).lower()
        path = self.layout.socket(name)
        base = self.plan.agent_metrics_port
        port = free_port(base + index) if base else 0
        program = (sys.executable, "-m", "aliquot.agent")
        itself = ("--state-dir", str(self.layout.node(name)), "--node-name", name, "--node-id", self._node_id(name))
        agent = Child(
            f"agent of {name}",
            [
                *program,
                *itself,
                *("--coordinator", self.address),
                *("--socket", str(path)),
                *("--metrics-port", str(port)),
            ],
            clean_environment(env | settings | dict(self.plan.agent_variables)),
            self.layout.logs / f"{name}.log",
        )
        devices = "this machine's GPUs" if self.plan.real else f"{self.plan.gpus} × {self.plan.model}, simulated"
        return LocalNode(name, agent, path, devices, env, (*program, "join", *itself))

    def _node_id(self, name: str) -> str:
        """An id that no other pool on this machine uses: agents find their processes' cgroups by it."""
        return f"{name}-{hashlib.sha256(str(self.layout.root).encode()).hexdigest()[:8]}"

    def _simulate(self, name: str) -> dict[str, str]:
        """Make a node's simulated GPUs. Returns the variables that make programs use them."""
        scenario = self.layout.scenario(name)
        make_private(scenario.parent)
        models = ",".join([self.plan.model] * self.plan.gpus)
        _simgpu("create", str(scenario), "--models", models, "--host", name)
        exports = (line.removeprefix("export ") for line in _simgpu("env", str(scenario)).splitlines())
        pairs = (shlex.split(line)[0].partition("=") for line in exports if line)
        return {variable: value for variable, _, value in pairs}

    # ---------------------------------------------------------------------------------------------------- running

    @property
    def children(self) -> list[Child]:
        """All parts."""
        parts = [self.coordinator, *(node.agent for node in self.nodes)]
        return parts if self.console is None else [*parts, self.console]

    def connect(self) -> Pool:
        """A connection of its administrator, which knows its agents."""
        sockets = [node.socket for node in self.nodes]
        return Pool(self.address, tls=self.tls, token_file=self.token_file, agent_sockets=sockets)

    @property
    def token_file(self) -> Path | None:
        """A file with an administrator's token; None: the coordinator has made none."""
        return self._signing_in.token_file

    def node(self, name: str) -> LocalNode:
        """A node by name."""
        return next(node for node in self.nodes if node.name == name)

    def tend(self) -> None:
        """Restart parts that have ended by themselves, one that keeps ending after longer and longer pauses. No part
        takes the others down: programs run on without an agent, and agents without a coordinator.
        """
        for child in self.children:
            now_s = time.monotonic()
            if child.running or now_s < self._not_before.get(child.name, 0.0):
                continue
            recent = [at for at in self._restarts.get(child.name, []) if at > now_s - RESTART_WINDOW_S]
            self._restarts[child.name] = [*recent, now_s]
            self._not_before[child.name] = now_s + min(RESTART_PAUSE_MAX_S, 2.0 ** len(recent) - 1)
            self._say(f"{child.name} (pid {child.pid}) has ended; starting it again; its log is {child.log}")
            try:
                if child is self.coordinator:
                    self.start_coordinator()
                else:
                    child.start()  # that it is ready shows in the pool; to wait for it would keep the others waiting
            except (ChildFailed, OSError) as error:
                self._say(f"{child.name} could not be started, and is tried again: {error}")
            self.write_record()

    def write_record(self) -> None:
        """Tell `down` and other commands what runs."""
        PoolRecord(
            coordinator=self.address,
            metrics=f"http://{self.metrics}/metrics" if self.metrics else "",
            nodes=tuple(NodeRecord(node.name, str(node.socket), node.devices, node.metrics) for node in self.nodes),
            supervisor=ProcessId.of("supervisor", os.getpid()),
            console=self.console_address,
            parts=tuple(ProcessId.of(child.name, child.pid) for child in self.children if child.running),
            state_dir=str(self.layout.root),
        ).write(self.layout)

    def stop(self) -> None:
        """Stop everything, agents first, so that they can say goodbye. Their reservations stay on disk."""
        agents = [node.agent for node in self.nodes]
        for child in agents:
            if child.running and child.process is not None:
                child.process.terminate()
        consoles = [self.console] if self.console is not None else []
        for child in (*consoles, *agents, self.coordinator):
            child.stop()
        self._signing_in.sign_out()
        if self._lock is not None:
            remove(self.layout)
            os.close(self._lock)
            self._lock = None


def enrol(nodes: Sequence[LocalNode], pool: LocalPool) -> None:
    """Let these nodes join, each with a key of its own, before their agents start. Also those of an earlier start: the
    coordinator may listen elsewhere now. Raises ChildFailed.
    """
    joining: list[tuple[LocalNode, subprocess.Popen[str]]] = []
    with Pool(pool.address, tls=pool.tls, token_file=pool.token_file) as connected:
        for node in nodes:
            made = connected.access.invite_node(node.name)
            string = connected.connection_string(made.invite, node=made.node, ca_pem=made.ca_pem)
            program = subprocess.Popen(  # noqa: S603 - our own program
                [*node.join, "-"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=dict(node.agent.env),
            )
            joining.append((node, program))
            assert program.stdin is not None
            program.stdin.write(string + "\n")  # by a pipe: arguments can be read by everybody on the machine
            program.stdin.flush()
    for node, program in joining:
        said, _ = program.communicate(timeout=START_TIMEOUT_S)
        if program.returncode != 0:
            raise ChildFailed(f"{node.name} can't join the pool: {said.strip()}", hint="see the log of the coordinator")


def _simgpu(*arguments: str) -> str:
    command = [sys.executable, "-m", "aliquot.simgpu", *arguments]
    result = subprocess.run(  # noqa: S603 - our own program
        command, check=False, capture_output=True, text=True, env=clean_environment({})
    )
    if result.returncode != 0:
        raise ChildFailed(
            f"the simulated GPUs can't be made: {result.stderr.strip()}",
            hint="`make native` builds their libraries; --model names one of simgpu's models",
        )
    return result.stdout


def answers(agent: LocalAgent) -> bool:
    """Whether an agent serves its socket and is connected to the coordinator."""
    try:
        return agent.info().connected
    except AgentError:
        return False


def ready_names(pool: Pool) -> set[str]:
    """Nodes that take leases; none where nobody answers."""
    try:
        return {node.name for node in pool.nodes(with_devices=False) if node.state is NodeState.READY}
    except PoolError:
        return set()


def _here(listening: str) -> str:
    """The address at which this machine reaches a coordinator that listens there: everywhere is here, too."""
    return f"127.0.0.1:{listening.rpartition(':')[2]}" if host_of(listening) in _EVERYWHERE else listening


def free_port(wanted: int) -> int:
    """The port, if it is free; else 0, so that the system chooses one."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return 0
        return wanted
