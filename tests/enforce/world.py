"""A node with a real agent on simulated GPUs, one lease on it held by the tier under test, and programs in the lease.

The coordinator of tests/agent runs on a loop of its own, so that cases can be written as plain functions.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from aliquot import simgpu
from aliquot.common.kernel_files import MOUNTINFO, find_mount
from aliquot.common.tiers import Tier
from aliquot.v1 import agent_pb2
from tests.agent.coordinator import Coordinator
from tests.agent.harness import GIB, ROOT, SECRET, Node, desired, make_node, until

T = TypeVar("T")

LIMIT_BYTES = 4 * GIB
LEASE, NEIGHBOUR, STRANGER = "l-1", "l-2", "l-3"
ANSWER_TIMEOUT_S = 30.0
SPAN_S = 10.0
"""How long a process that is over its limit may live before it counts as a gap."""


FAKE_MPS = Path(__file__).parent / "programs/fake_mps_control.py"
NO_SUCH_FUNCTION = 13


def mps_program(directory: Path, protocol: int = 2) -> Path:
    """A folder with what stands in for the control program of MPS."""
    program = directory / f"bin{protocol}" / "nvidia-cuda-mps-control"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nFAKE_MPS_PROTOCOL={protocol} exec {sys.executable} {FAKE_MPS} "$@"\n')
    program.chmod(0o755)
    return program.parent


def mps_environment(directory: Path, protocol: int) -> dict[str, str]:
    """With that on the path."""
    return {"PATH": f"{mps_program(directory, protocol)}:{os.environ['PATH']}"}


class _Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@dataclass
class Program:
    """A program in the lease."""

    process: subprocess.Popen[str]
    started: float
    said: list[str] = field(default_factory=list)
    """What it printed beside its answers."""

    @property
    def pid(self) -> int:
        return self.process.pid

    def answer(self) -> dict[str, Any] | None:
        """Its next line of JSON; None when it ended instead."""
        assert self.process.stdout is not None
        timer = threading.Timer(ANSWER_TIMEOUT_S, self.process.kill)
        timer.start()
        try:
            for line in self.process.stdout:
                if line.startswith("{"):
                    found: dict[str, Any] = json.loads(line)
                    return found
                self.said.append(line.rstrip())
        finally:
            timer.cancel()
        return None

    def go_on(self, line: str = "") -> None:
        """Let it read a line, or the end of its input."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            if line:
                self.process.stdin.write(line + "\n")
                self.process.stdin.flush()
            else:
                self.process.stdin.close()

    def ended_within_ms(self) -> int | None:
        """Milliseconds until a signal ended it; None: it lives on."""
        begun = time.monotonic()
        try:
            code = self.process.wait(SPAN_S)
        except subprocess.TimeoutExpired:
            return None
        return round((time.monotonic() - begun) * 1000) if code in (-signal.SIGTERM, -signal.SIGKILL) else None


class World:
    """See above. Programs of the neighbour's lease must never notice anything."""

    def __init__(
        self,
        directory: Path,
        tier: Tier,
        poll_ms: int = 100,
        environment: Mapping[str, str] | None = None,
        *,
        halves: bool = False,
        nested: bool = False,
        mps_protocol: int = 3,
    ) -> None:
        """`mps_protocol`: what the control program of MPS speaks; with the older one comes an older driver, which has
        no limits of cgroups. `halves`: two leases of half a device each, which leave nothing of it, instead of three of
        4 GiB. `nested`: how the driver's limits of cgroups stand to each other, see `Scenario.set_limits_nested`.
        """
        self.tier = tier
        self.driver_behind = tier is Tier.DRIVER
        """Whether the driver limits all programs of a lease together."""
        self.directory = directory
        self._programs: list[Program] = []
        self.node: Node = make_node(directory / "node")
        self.node.scenario.set_limits_nested(nested=nested)
        if tier is Tier.MPS:
            self.node.environment |= mps_environment(directory, mps_protocol)
            if mps_protocol < 3:
                self.node.scenario.fail("nvmlDeviceSetMemoryLimits_v1", NO_SUCH_FUNCTION)
        self._loop = _Loop()
        self.coordinator = Coordinator()
        self.lease = LEASE
        """What programs run in that name no other."""
        self._renewals = itertools.count(1)
        try:
            self._begin(poll_ms, environment, halves=halves)
        except BaseException:
            self.close()
            raise

    def _begin(self, poll_ms: int, environment: Mapping[str, str] | None, *, halves: bool) -> None:
        directory, tier = self.directory, self.tier
        # Other users' programs must find the simulated devices; test folders are closed to them.
        for each in (directory.parent, directory, self.node.directory):
            each.chmod(0o755)
        names = "watchdog" if tier is Tier.WATCHDOG else f"{tier.word},watchdog"
        self.node.environment |= {
            "ALIQUOT_AGENT_ENFORCEMENT_TIERS": names,
            "ALIQUOT_AGENT_POLL_MEMORY": f"{poll_ms}ms",
            # One attempt after the other would end the lease, as it should: what is done to each process is looked at.
            "ALIQUOT_AGENT_WATCHDOG_OVER_MAX": "1h",
            # The tier by itself: without the library that keeps a pace beside it, and knows which devices are whose.
            "ALIQUOT_AGENT_ENFORCEMENT_THROTTLE": "no",
            **(environment or {}),
        }
        self._loop.run(self.coordinator.start())
        self.node.start(self.coordinator.address)
        device = self.node.scenario.devices()[0]
        self.limit_bytes = (device.total_bytes - device.reserved_bytes) // 2 >> 20 << 20 if halves else LIMIT_BYTES
        """Of each lease."""
        leases = (LEASE, NEIGHBOUR) if halves else (LEASE, NEIGHBOUR, STRANGER)
        self.grant(*leases, share_milli=500 if halves else 250, full=True)

    def grant(self, *leases: str, share_milli: int = 250, full: bool = False) -> None:
        """Order leases, and wait until they are active. `full`: there are no others."""
        slices = [
            desired(
                self.device_uuid,
                slice_id=f"{lease}.1.0",
                lease_id=lease,
                share_milli=share_milli,
                memory_bytes=self.limit_bytes,
                grace_ms=1000,
            )
            for lease in leases
        ]

        self.order(*slices, full=full)
        for each in slices:
            report = self.coordinator.last(each.slice_id)
            assert report is not None
            assert Tier(report.tier) is self.tier, f"held by {report.tier}: {list(report.tier_notes)}\n{self.node.log}"

    def order(self, *slices: agent_pb2.DesiredSlice, full: bool = False) -> None:
        """Order slices, and wait until they are active."""

        async def order() -> None:
            await self.coordinator.until(lambda: bool(self.coordinator.snapshots), "a snapshot came")
            self.coordinator.desire(*slices, full=full)
            for each in slices:
                await self.coordinator.until_status(each.slice_id, agent_pb2.SLICE_STATUS_ACTIVE)

        self._loop.run(order())

    def stop(self, lease: str) -> None:
        """Order a lease's end."""

        async def order() -> None:
            piece = self.coordinator.last(f"{lease}.1.0")
            assert piece is not None
            self.coordinator.desire(
                desired(
                    self.device_uuid,
                    slice_id=piece.slice_id,
                    lease_id=lease,
                    share_milli=piece.share_milli,
                    memory_bytes=piece.memory_bytes,
                    stop=True,
                    grace_ms=1000,
                )
            )

        self._loop.run(order())

    def is_gone(self, lease: str) -> bool:
        """Whether the agent has said that nothing of a lease is held any more."""
        report = self.coordinator.last(f"{lease}.1.0")
        return report is not None and report.status == agent_pb2.SLICE_STATUS_GONE

    def failure_of(self, lease: str) -> str:
        """Why the agent has given a lease up; empty: it has not."""
        report = self.coordinator.last(f"{lease}.1.0")
        return report.reason if report is not None and report.status == agent_pb2.SLICE_STATUS_FAILED else ""

    @property
    def device_uuid(self) -> str:
        return self.node.uuids[0]

    def tier_of(self, lease: str) -> Tier | None:
        """By what the agent says a lease is held now; None: by nothing yet."""
        piece = self.node.slice_of(f"{lease}.1.0")
        return Tier(piece.tier) if piece is not None and piece.tier else None

    def cgroup(self) -> Path | None:
        """The lease's own; None where it has none that can be seen from here."""
        mount = find_mount(MOUNTINFO.read_text())
        answer = self.start("sh", "-c", 'grep ^0:: /proc/self/cgroup | sed \'s/.*/{"it":"&"}/\'').answer()
        if mount is None or answer is None or self.lease not in answer["it"]:
            return None
        return mount.directory_of(answer["it"].removeprefix("0::"))

    def renew(self) -> None:
        """A fresh lease, of which no offences are known, in the place of the one that programs run in by default."""
        self.stop(self.lease)
        until(lambda: self.is_gone(self.lease), f"{self.lease} is gone")
        self.lease = f"{LEASE}-{next(self._renewals)}"
        self.grant(self.lease)

    def folder(self, lease: str = "") -> Path:
        """The preload tier's folder of a lease."""
        return self.enforcement_dir / f"preload/{lease or self.lease}.1.0"

    @property
    def enforcement_dir(self) -> Path:
        return self.node.state_dir.with_name("state-enforcement")

    @property
    def driver_path(self) -> str:
        return str(simgpu.library_directory() / "libcuda.so.1")

    def start(self, *command: str, lease: str = "", uid: int | None = None, **environment: str) -> Program:
        """A program attached to a lease."""
        extra = {"TEST_UID": str(uid)} if uid is not None else {}
        process = subprocess.Popen(
            [
                sys.executable,
                str(ROOT / "tests/agent/localclient.py"),
                *(str(self.node.socket), lease or self.lease, SECRET, "0", "--"),
                *command,
            ],
            env=self.node.base_environment() | {"TEST_OWN_SESSION": "1", "PYTHONPATH": str(ROOT)} | extra | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        program = Program(process, time.monotonic())
        self._programs.append(program)
        return program

    def probe(self, *arguments: str, lease: str = "") -> Program:
        """The doctor's probe, trying to hold half as much again as the lease has."""
        most = () if "--most" in arguments else ("--most", str(LIMIT_BYTES * 3 // 2))
        command = (sys.executable, "-m", "bench.lib.cuda_ways", *most, "--hold", *arguments)
        return self.start(*command, lease=lease)

    def outside(self, source: str) -> Program:
        """A Python program outside any lease, which may attach itself by the agent's socket and the secret, its
        arguments.
        """
        return self._outside("-c", source, str(self.node.socket), SECRET)

    def run_outside(self, module: str, *arguments: str, **environment: str) -> Program:
        """The same by a module's name, with more arguments."""
        return self._outside("-m", module, str(self.node.socket), SECRET, *arguments, **environment)

    def bystander(self) -> Program:
        """A program that has nothing to do with any lease and holds a little of the device."""
        program = self._outside("-m", "aliquot.agent.doctor.probe", "--most", "64Mi", "--hold")
        assert program.answer() is not None
        return program

    def _outside(self, *command: str, **environment: str) -> Program:
        process = subprocess.Popen(
            [sys.executable, *command],
            env=self.node.base_environment() | {"PYTHONPATH": str(ROOT)} | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        program = Program(process, time.monotonic())
        self._programs.append(program)
        return program

    def python(self, source: str, *arguments: str) -> Program:
        """A Python program in the lease."""
        return self.start(sys.executable, "-c", source, *arguments)

    def held_bytes(self, *programs: Program) -> int:
        """What the driver has booked on these programs (default: all of the lease's)."""
        pids = {program.pid for program in programs}
        held = 0
        for device in self.node.scenario.devices():
            for process in device.processes:
                if not pids or process.pid in pids:
                    held += process.memory_bytes + process.managed_bytes
        return held

    def held_by_others_than(self, pids: Collection[int]) -> int:
        """What the driver has booked on any other process."""
        return sum(
            process.memory_bytes + process.managed_bytes
            for device in self.node.scenario.devices()
            for process in device.processes
            if process.pid not in pids
        )

    def settle(self) -> None:
        """End what still runs, and wait until the device is empty."""
        for program in self._programs:
            if program.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(program.pid, signal.SIGKILL)
                program.process.kill()
            program.process.wait()
            for stream in (program.process.stdin, program.process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()
        self._programs.clear()
        deadline = time.monotonic() + 20
        while self.held_bytes():
            if time.monotonic() > deadline:
                raise AssertionError(f"left on the device: {self.node.scenario.devices()[0].processes}")
            time.sleep(0.02)

    def close(self) -> None:
        """End all of it, each part whatever has become of the others."""
        with contextlib.ExitStack() as ending:
            ending.callback(self._loop.close)
            ending.callback(self._stop_coordinator)
            ending.callback(self.node.close)
            ending.callback(self.settle)

    def _stop_coordinator(self) -> None:
        with contextlib.suppress(Exception):
            self._loop.run(self.coordinator.stop())


@contextlib.contextmanager
def world(
    directory: Path,
    tier: Tier,
    poll_ms: int = 100,
    environment: Mapping[str, str] | None = None,
    *,
    halves: bool = False,
    nested: bool = False,
    mps_protocol: int = 3,
) -> Iterator[World]:
    """A world that is closed again."""
    directory.mkdir(parents=True, exist_ok=True)
    made = World(directory, tier, poll_ms, environment, halves=halves, nested=nested, mps_protocol=mps_protocol)
    try:
        yield made
    finally:
        made.close()
