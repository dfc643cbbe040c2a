"""Real agents as processes on simulated GPUs, and jobs under their leases."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from aliquot import simgpu
from aliquot.agent.disk.checkpoint import StoredLease
from aliquot.agent.disk.durable import read_record
from aliquot.agent.joining import join
from aliquot.agent.processes.cgroups import BASE_NAME
from aliquot.agent.processes.proc import alive, cgroup_of
from aliquot.agent.settings import Settings
from aliquot.common.connection_string import ConnectionString
from aliquot.common.kernel_files import MOUNTINFO, find_mount
from aliquot.v1 import agent_pb2, local_pb2
from tests import joining
from tests.agent import localclient
from tests.identity import insecure_channel

GIB = 1 << 30
SECRET = "the-secret-of-this-lease"
ROOT = Path(__file__).resolve().parents[2]


def until(predicate: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """Poll until true, or fail saying what did not happen."""
    deadline = time.monotonic() + seconds
    while not predicate():
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen within {seconds} s: {what}")
        time.sleep(0.02)


async def auntil(predicate: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    """The same without blocking the event loop."""
    deadline = time.monotonic() + seconds
    while not predicate():
        if time.monotonic() > deadline:
            raise AssertionError(f"did not happen within {seconds} s: {what}")
        await asyncio.sleep(0.02)


def desired(
    device_uuid: str,
    *,
    slice_id: str = "l-1.1.0",
    lease_id: str = "l-1",
    epoch: int = 1,
    share_milli: int = 250,
    memory_bytes: int = 4 * GIB,
    stop: bool = False,
    grace_ms: int = 2_000,
    member: int = 0,
    min_tier: int = 0,
    secret: str = SECRET,
    reason: str = "",
    stop_signal: str = "",
    cuda_ordinals: bool = False,
    tenant: str = "research",
) -> agent_pb2.DesiredSlice:
    """A slice as a coordinator orders it."""
    return agent_pb2.DesiredSlice(
        slice_id=slice_id,
        lease_id=lease_id,
        lease_epoch=epoch,
        state=agent_pb2.DESIRED_STATE_STOP if stop else agent_pb2.DESIRED_STATE_RUN,
        device_uuid=device_uuid,
        share_milli=share_milli,
        memory_bytes=memory_bytes,
        grace_ms=grace_ms,
        member=member,
        min_tier=agent_pb2.DesiredSlice(min_tier=min_tier).min_tier,  # type: ignore[arg-type]
        secret_sha256=sha256(secret.encode()).digest(),
        tenant=tenant,
        queue="default",
        reason=reason,
        stop_signal=stop_signal,
        cuda_ordinals=cuda_ordinals,
    )


@dataclass
class Node:
    """A machine of simulated GPUs with an agent that can be started and killed."""

    directory: Path
    scenario: simgpu.Scenario
    scenario_path: Path
    flags: tuple[str, ...] = ()
    wrapper: tuple[str, ...] = ()
    program: tuple[str, ...] = ("-m", "aliquot.agent.main")
    """A command that runs the agent's."""
    environment: dict[str, str] = field(default_factory=dict)
    agent: subprocess.Popen[bytes] | None = None
    jobs: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def uuids(self) -> list[str]:
        return [device.uuid for device in self.scenario.devices()]

    @property
    def socket(self) -> Path:
        return self.directory / "agent.sock"

    @property
    def state_dir(self) -> Path:
        return self.directory / "state"

    @property
    def log(self) -> str:
        path = self.directory / "agent.log"
        return path.read_text() if path.exists() else ""

    def base_environment(self) -> dict[str, str]:
        return {**os.environ, **simgpu.environment(self.scenario_path), "PYTHONPATH": ""} | self.environment

    async def join(self, coordinator: str, name: str = "test-node") -> None:
        """Let it into this coordinator's pool, by an invite, as `aliquot-agent join` does. Its id follows from its
        devices.
        """
        settings = Settings(state_dir=self.state_dir, node_name=name)
        async with insecure_channel(coordinator) as channel:
            invite = await joining.invite(channel, name)
        await join(settings, ConnectionString((coordinator,), invite, node=name), lambda: _listed(self.uuids))

    def start(self, coordinator: str, *flags: str, program: tuple[str, ...] = ()) -> None:
        """Start the agent; returns when its socket answers. No coordinator: those of the pool that it has joined."""
        self.spawn(coordinator, *flags, program=program)
        until(self.answers, f"the agent answers\n{self.log}")

    def spawn(self, coordinator: str, *flags: str, program: tuple[str, ...] = ()) -> None:
        """Start the agent without waiting for it."""
        with (self.directory / "agent.log").open("ab") as log:
            self.agent = subprocess.Popen(
                [
                    *self.wrapper,
                    sys.executable,
                    *(program or self.program),
                    *(("--coordinator", coordinator) if coordinator else ()),
                    *("--state-dir", str(self.state_dir)),
                    *("--socket", str(self.socket)),
                    *("--metrics-port", "0", "--node-name", "test-node", "--log-json"),
                    *self.flags,
                    *flags,
                ],
                env={
                    "ALIQUOT_AGENT_POLL_MEMORY": "100ms",
                    "ALIQUOT_AGENT_POLL_IDLE": "200ms",
                    "ALIQUOT_AGENT_POLL_LOAD": "500ms",
                    "ALIQUOT_AGENT_POLL_HEALTH": "300ms",
                    "ALIQUOT_AGENT_POLL_TIMEOUT": "1s",
                    "ALIQUOT_AGENT_POLL_CALM": "1s",
                    # The tiers that deny have tests of their own; behind them, and where there are none, is
                    # the watchdog.
                    "ALIQUOT_AGENT_ENFORCEMENT_TIERS": "watchdog",
                    "ALIQUOT_AGENT_WATCHDOG_GRACE_MAX": "1s",
                    # Whatever is installed here: each agent would load PyTorch ahead, for a lease that never comes.
                    "ALIQUOT_AGENT_HOSTING_SERVICES": "none",
                    **self.base_environment(),
                },
                stdout=log,
                stderr=log,
                cwd=ROOT,
            )

    def answers(self) -> bool:
        assert self.agent is not None
        assert self.agent.poll() is None, f"the agent ended with {self.agent.returncode}:\n{self.log}"
        try:
            return self.ask(local_pb2.LocalRequest(info=local_pb2.LocalInfoRequest())).HasField("info")
        except OSError:
            return False

    def kill9(self) -> None:
        assert self.agent is not None
        self.agent.kill()
        self.agent.wait()

    def terminate(self) -> int:
        assert self.agent is not None
        self.agent.terminate()
        return self.agent.wait(timeout=30)

    def ask(self, request: local_pb2.LocalRequest) -> local_pb2.LocalResponse:
        return localclient.ask(self.socket, request)

    def ask_info(self) -> local_pb2.LocalInfo:
        return self.ask(local_pb2.LocalRequest(info=local_pb2.LocalInfoRequest())).info

    def status(self) -> local_pb2.LocalStatus:
        return self.ask(local_pb2.LocalRequest(status=local_pb2.LocalStatusRequest())).status

    def slice_of(self, slice_id: str) -> local_pb2.LocalSlice | None:
        return next((piece for piece in self.status().slices if piece.slice_id == slice_id), None)

    def job(
        self,
        *command: str,
        lease_id: str = "l-1",
        member: int = 0,
        secret: str = SECRET,
        **environment: str,
    ) -> subprocess.Popen[bytes]:
        """Start a command attached to a lease, in a session of its own."""
        job = subprocess.Popen(
            [
                sys.executable,
                str(ROOT / "tests/agent/localclient.py"),
                *(str(self.socket), lease_id, secret, str(member), "--"),
                *command,
            ],
            env={**self.base_environment(), "TEST_OWN_SESSION": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.jobs.append(job)
        return job

    def burn(
        self, memory: str, *arguments: str, lease_id: str = "l-1", member: int = 0, **environment: str
    ) -> subprocess.Popen[bytes]:
        """A job that holds device memory; returns when it does."""
        command = burn_command(memory, *arguments)
        job = self.job(*command, lease_id=lease_id, member=member, **environment)
        wait_for_output(job, b"holds")
        return job

    def overrun(self, memory: str, *arguments: str, lease_id: str = "l-1", member: int = 0) -> subprocess.Popen[bytes]:
        """A job that takes more than its lease has. It may be ended before it could say what it holds."""
        return self.job(*burn_command(memory, *arguments), lease_id=lease_id, member=member)

    def sleeper(self) -> subprocess.Popen[bytes]:
        """A process of ours, for attaching by its pid."""
        job = subprocess.Popen(["sleep", "120"])
        self.jobs.append(job)
        return job

    def foreign_burn(self, memory: str, device: int, *arguments: str) -> subprocess.Popen[bytes]:
        """A process outside any lease that holds device memory; returns when it does."""
        job = subprocess.Popen(
            burn_command(memory, *arguments),
            env={**self.base_environment(), "CUDA_VISIBLE_DEVICES": str(device)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.jobs.append(job)
        wait_for_output(job, b"holds")
        return job

    def close(self) -> None:
        """End all of it, in whatever state a test has left it; what can't be done does not keep the rest from it."""
        with contextlib.ExitStack() as ending:
            ending.callback(self.scenario.close)
            ending.callback(self._remove_cgroups)
            ending.callback(self._end_attached)
            # The agent last of these: it is the first to end, else it would start again what is ended.
            for process in [*self.jobs, *([self.agent] if self.agent is not None else [])]:
                ending.callback(_end, process)

    def hosted(self) -> list[int]:
        """The pids of what runs in the folders of members that are served."""
        folder = str(self.state_dir.with_name("state-enforcement") / "hosts")
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and str((entry / "cwd").readlink()).startswith(folder):
                    found.append(int(entry.name))
        return found

    def attached(self) -> list[int]:
        """The pids that the agent has on record as attached."""
        records = (self.state_dir / "attachments").glob("*.record")
        return [
            item.process.pid for path in records for item in read_record(path, "attachments", StoredLease).attachments
        ]

    def _end_attached(self) -> None:
        """What the agent has started, or was told of by its pid, with their sessions."""
        for pid in self.hosted():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for path in (self.state_dir / "attachments").glob("*.record"):
            for item in read_record(path, "attachments", StoredLease).attachments:
                if alive(item.process):
                    for end in (os.killpg, os.kill):
                        with contextlib.suppress(ProcessLookupError):
                            end(item.process.pid, signal.SIGKILL)

    def _remove_cgroups(self) -> None:
        """What an agent that was killed leaves behind; processes of a lease that the test forgot end here."""
        record = self.state_dir / "node.record"
        mount = find_mount(MOUNTINFO.read_text())
        if not record.exists() or mount is None:
            return
        node_id = str(read_record(record, "node", dict)["node_id"])
        own = mount.directory_of(cgroup_of(os.getpid()) or "/") or mount.directory
        for base in {mount.directory / BASE_NAME / node_id, own / BASE_NAME / node_id}:
            for leaf in sorted(base.glob("*/*")):
                with contextlib.suppress(OSError):
                    (leaf / "cgroup.kill").write_text("1")
            until(lambda base=base: _removed(base), f"{base} is removed")  # type: ignore[misc]


def _listed(uuids: Sequence[str]) -> Any:
    """A driver that says which devices there are, and no more: no library of one is loaded in this process."""
    devices = [SimpleNamespace(physical_uuid=uuid) for uuid in uuids]
    return SimpleNamespace(open=lambda: None, discover=lambda: SimpleNamespace(devices=devices), close=lambda: None)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _removed(base: Path) -> bool:
    for directory in [*sorted(base.glob("**/"), reverse=True)]:
        with contextlib.suppress(OSError):
            directory.rmdir()
    return not base.exists()


def burn_command(memory: str, *arguments: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "aliquot.simgpu.burn",
        *("--bytes", memory),
        *("--seconds", "120"),
        *arguments,
    ]


OBSTINATE = """
import signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
from aliquot.simgpu.burn import main
sys.exit(main())
"""


def obstinate_command(memory: str) -> list[str]:
    """The same, ignoring SIGTERM."""
    return [sys.executable, "-c", OBSTINATE, "--bytes", memory, "--seconds", "120"]


def wait_for_output(job: subprocess.Popen[bytes], word: bytes) -> bytes:
    """Read lines until one has the word; fails with what there was."""
    assert job.stdout is not None
    seen = b""
    while True:
        line = job.stdout.readline()
        seen += line
        if word in line:
            return seen
        assert line, f"the job ended with {job.wait()}: {seen.decode()}"


def ended_by(job: subprocess.Popen[bytes], number: signal.Signals, seconds: float = 30.0) -> bool:
    """Whether a job ends by a signal."""
    return job.wait(timeout=seconds) == -number


def make_node(directory: Path, models: Sequence[str] = ("A100-40", "A100-40")) -> Node:
    """A node of simulated devices that no other test has, without an agent yet."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "gpus"
    return Node(directory, simgpu.create(path, list(models), host=str(directory)), path)


def closing(node: Node) -> Iterator[Node]:
    """For fixtures."""
    try:
        yield node
    finally:
        node.close()
