"""Several real coordinators on one real PostgreSQL, to be killed and frozen, and launchers that write down all they are
told.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import psycopg

from aliquot.client import AsyncPool, PoolError, RetryPolicy, WaitUntil

DEADLINE_S = 60.0


class Replica:
    """One coordinator, on a port that stays its own over restarts. `address` and `before`, the words before its
    command, place it elsewhere than on loopback.
    """

    def __init__(
        self,
        conninfo: str,
        *flags: str,
        address: str = "",
        before: Sequence[str] = (),
        program: Sequence[str] = ("-m", "aliquot.coordinator"),
    ) -> None:
        self.address = address or free_address()
        self._command = [*before, sys.executable, *program, "--listen", self.address]
        self._command += ["--advertise", self.address, "--journal", f"postgres:{conninfo}", *flags]
        if "--metrics-port" not in flags:
            self._command += ["--metrics-port", "-1"]
        self._popen: subprocess.Popen[str] | None = None
        self.role = ""
        self.metrics = ""

    @property
    def running(self) -> bool:
        """Whether its process is there, frozen or not."""
        return self._popen is not None and self._popen.poll() is None

    def start(self) -> None:
        self._popen = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)

    def wait_until_ready(self) -> None:
        """Until it answers, as leader or standby."""
        assert self._popen is not None
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            if line.startswith("ready "):
                ready = json.loads(line.removeprefix("ready "))
                self.role, self.metrics = ready["role"], ready["metrics"]
                return
        raise RuntimeError(f"the coordinator ended with {self._popen.wait()}")

    def send(self, number: signal.Signals) -> None:
        assert self._popen is not None
        self._popen.send_signal(number)

    def ended(self, timeout_s: float = DEADLINE_S) -> int:
        """Wait for its end; its exit code."""
        assert self._popen is not None
        code = self._popen.wait(timeout_s)
        if self._popen.stdout is not None:
            self._popen.stdout.close()
        return code

    def close(self) -> None:
        if self.running:
            self.send(signal.SIGKILL)
            self.send(signal.SIGCONT)
        if self._popen is not None:
            self.ended()


def free_address() -> str:
    """A place on loopback that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class Cluster:
    """Replicas on one database."""

    def __init__(self, conninfo: str, replicas: int = 2, *flags: str) -> None:
        self.conninfo = conninfo
        self.replicas = [Replica(conninfo, "--log-level", "error", *flags) for _ in range(replicas)]

    @property
    def addresses(self) -> list[str]:
        return [replica.address for replica in self.replicas]

    def start(self) -> None:
        for replica in self.replicas:
            replica.start()
        for replica in self.replicas:
            replica.wait_until_ready()

    def row(self) -> tuple[str, int, bool]:
        """Address, epoch, and whether the row is valid."""
        with psycopg.connect(self.conninfo, autocommit=True) as connection:
            row = connection.execute(
                "SELECT address, leader_epoch, expires_at > clock_timestamp() FROM aliquot.leader"
            ).fetchone()
        assert row is not None
        return str(row[0]), int(row[1]), bool(row[2])

    async def leader(self, after_epoch: int = 0) -> Replica:
        """Whoever leads with a higher epoch than that."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            address, epoch, valid = await asyncio.to_thread(self.row)
            if valid and epoch > after_epoch:
                return next(replica for replica in self.replicas if replica.address == address)
            await asyncio.sleep(0.05)
        raise AssertionError(f"nobody leads after epoch {after_epoch}")

    def close(self) -> None:
        for replica in self.replicas:
            replica.close()


@contextlib.asynccontextmanager
async def cluster(conninfo: str, replicas: int = 2, *flags: str) -> AsyncIterator[Cluster]:
    """Up, and down at the end."""
    several = Cluster(conninfo, replicas, *flags)
    try:
        await asyncio.to_thread(several.start)
        yield several
    finally:
        await asyncio.to_thread(several.close)


async def refusal(replica: Replica) -> PoolError | None:
    """What it says to who asks for something, the first time; None: it answers."""
    async with AsyncPool([replica.address], retry=RetryPolicy(enabled=False)) as pool:
        try:
            await pool.status()
        except PoolError as error:
            return error
    return None


async def refers(old: Replica, new: Replica) -> bool:
    """Whether the old leader names the new one."""
    said = await refusal(old)
    return said is not None and said.stated_reason == "NOT_LEADER" and said.metadata.get("leader") == new.address


@dataclass
class Log:
    """What launchers were told, in their own words."""

    granted: dict[str, str] = field(default_factory=dict)
    """Lease by idempotency key."""
    released: set[str] = field(default_factory=set)
    release_asked: set[str] = field(default_factory=set)
    granted_at: list[float] = field(default_factory=list)
    """Monotonic times of the answers."""
    changed_answers: list[str] = field(default_factory=list)
    """Keys that were answered with two different leases."""
    failed: list[str] = field(default_factory=list)


class Launcher:
    """Asks, keeps two leases, gives the older back, for ever; its calls are the SDK's, which follows the leader."""

    _numbers = count(1)

    def __init__(self, addresses: Sequence[str], log: Log, *, gpu: str = "0.25,1Gi") -> None:
        self._name = f"launcher-{os.getpid()}-{next(self._numbers)}"
        self._pool = AsyncPool(
            list(addresses), tenant="team", timeout_s=DEADLINE_S, retry=RetryPolicy(backoff_max_s=0.5)
        )
        self._log = log
        self._gpu = gpu
        self._stop = False

    async def run(self, pause_s: float = 0.03) -> None:
        held: list[str] = []
        try:
            for number in count():
                if self._stop:
                    return
                key = f"{self._name}-{number}"
                if (lease_id := await self._ask(key)) is not None:
                    held.append(lease_id)
                if len(held) > 2:
                    await self._give_back(held.pop(0))
                await asyncio.sleep(pause_s)
        finally:
            await self._pool.close()

    def stop(self) -> None:
        self._stop = True

    async def _ask(self, key: str) -> str | None:
        try:
            lease = await self._pool.allocate(
                self._gpu, until=WaitUntil.GRANTED, wait_s=DEADLINE_S, key=key, detached=True
            )
        except PoolError as error:
            self._log.failed.append(f"{key}: {error}")
            return None
        self._log.granted_at.append(time.monotonic())
        if self._log.granted.setdefault(key, lease.lease_id) != lease.lease_id:
            self._log.changed_answers.append(key)
        return lease.lease_id

    async def _give_back(self, lease_id: str) -> None:
        self._log.release_asked.add(lease_id)
        with contextlib.suppress(PoolError):
            await self._pool.release(lease_id)
            self._log.released.add(lease_id)


@contextlib.asynccontextmanager
async def load(
    addresses: Sequence[str], launchers: int, *, gpu: str = "0.25,1Gi", pause_s: float = 0.03
) -> AsyncIterator[Log]:
    """Launchers at work; at the end each finishes what it is doing."""
    log = Log()
    several = [Launcher(addresses, log, gpu=gpu) for _ in range(launchers)]
    tasks = [asyncio.create_task(launcher.run(pause_s)) for launcher in several]
    try:
        yield log
    finally:
        for launcher in several:
            launcher.stop()
        async with asyncio.timeout(2 * DEADLINE_S):
            await asyncio.gather(*tasks)


async def granted_after(log: Log, moment: float) -> float:
    """When the first grant after that monotonic moment was answered."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        if log.granted_at and log.granted_at[-1] > moment:
            return next(at for at in log.granted_at if at > moment)
        await asyncio.sleep(0.01)
    raise AssertionError("nothing was granted any more")
