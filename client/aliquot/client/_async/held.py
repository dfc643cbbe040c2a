"""A lease held by a program."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from aliquot.client import _errors as errors
from aliquot.client._async.seam import Flag, HeldLeaseBase, exit_code, in_thread
from aliquot.client._environment import handed_on, plain_environment
from aliquot.client._held_base import log, require_agent
from aliquot.client._spawn import spawn
from aliquot.client._values.leases import Lease, LeaseState
from aliquot.client.local import Attachment, LocalAgent


class _AsyncPool(Protocol):
    """What a lease needs of its pool."""

    @property
    def agents(self) -> tuple[LocalAgent, ...]: ...

    async def acknowledge(self, lease_id: str, shape: int) -> Lease: ...

    async def get(self, lease_id: str) -> Lease: ...

    async def release(
        self,
        lease_id: str,
        *,
        wait_gone: bool = False,
        reason: str = "",
        exit_code: int | None = None,
        timeout_s: float | None = None,
    ) -> Lease: ...


class AsyncHeldLease(HeldLeaseBase):
    """A lease and its keep-alive. Use it in an `async with` block, or `release` it.

    At the end of the block the lease is released; if it was lost meanwhile, the block raises `LeaseLost`.
    """

    def __init__(self, pool: _AsyncPool, lease: Lease, released: Callable[[str], None]) -> None:
        super().__init__(lease, Flag(), released)
        self._pool = pool

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._loss is not None:
                # It has ended already; release only tells why.
                await self.refresh()
            await self.release()
        except errors.PoolError as error:
            log.warning("lease %s was not released: %s", self.lease_id, error.message)
        self._conclude(raised)

    async def environment(self, member: int | None = None) -> dict[str, str]:
        """The variables that make a program use this lease, for `subprocess.run(cmd, env=os.environ | variables)`.

        On a node of the lease, this process and everything it starts from now on become part of the lease until
        `release`: what they allocate counts, and they are stopped with the lease. `run` and `popen` attach only the
        child. Elsewhere these are the plain variables (visible devices, amounts), and whoever starts the program on the
        node must attach it. `member` is one of a gang; None: the one on this node, else the first.
        """
        local = await self._local()
        if local is None or (member is not None and member != local[1]):
            return plain_environment(self._lease, member or 0)
        attachment = await self.attach()
        return {**plain_environment(self._lease, local[1]), **attachment.environment}

    async def attach(self, pid: int | None = None, *, environment: Mapping[str, str] | None = None) -> Attachment:
        """Make a process of this node (None: this one), and what it starts from now on, part of the lease.

        Raises `AgentUnreachable` when this is not a node of the lease, `AttachRefused` when its agent refuses.
        """
        agent, member = require_agent(self._lease, await self._local())
        attachment = await in_thread(
            agent.attach, self.lease_id, self._lease.secret, pid=pid or 0, member=member, environment=environment
        )
        if not pid or pid == os.getpid():
            self._joined.add(os.getpid())
        return attachment

    async def popen(
        self,
        command: Sequence[str],
        *,
        admitted: Callable[[int], None] | None = None,
        **options: Any,  # noqa: ANN401 - Popen's own
    ) -> subprocess.Popen[Any]:
        """Start a program inside the lease, on a node of the lease. Takes what `subprocess.Popen` takes.

        It is attached before it runs; `admitted`, which may block, is called with its pid after that and before it
        runs. Raises `AgentUnreachable` on other machines.
        """
        agent, member = require_agent(self._lease, await self._local())
        base = dict(options.pop("env", None) or handed_on(os.environ))

        def admit(pid: int) -> Mapping[str, str]:
            attachment = agent.attach(self.lease_id, self._lease.secret, pid=pid, member=member, environment=base)
            if admitted is not None:
                admitted(pid)
            return {**plain_environment(self._lease, member), **attachment.environment}

        return await in_thread(spawn, command, admit, base, **options)

    async def run(
        self,
        command: Sequence[str],
        *,
        check: bool = False,
        **options: Any,  # noqa: ANN401 - Popen's own
    ) -> subprocess.CompletedProcess[Any]:
        """Start a program inside the lease and wait for its end, like `subprocess.run` without pipes."""
        code = self.exit_code = await exit_code(await self.popen(command, **options))
        if check and code:
            raise subprocess.CalledProcessError(code, list(command))
        return subprocess.CompletedProcess(list(command), code)

    async def acknowledge(self, shape: int | None = None) -> Lease:
        """Say that this program has adapted to the lease's shape (None: the last one heard of). Returns the lease.

        Slices that it gives back are stopped now instead of at their deadline, and it may grow again.
        """
        return self._learn(await self._pool.acknowledge(self.lease_id, self._lease.shape if shape is None else shape))

    async def refresh(self) -> Lease:
        """Ask the coordinator for the lease's present state."""
        return self._learn(await self._pool.get(self.lease_id))

    async def release(self, *, wait_gone: bool = False, reason: str = "", timeout_s: float | None = None) -> Lease:
        """End the lease. What runs in it is stopped (SIGTERM, the grace, SIGKILL), except this process.

        `wait_gone` waits until the capacity is free. Releasing twice is fine. Raises `AttachRefused` while this process
        itself still uses the lease, which then stays held.
        """
        if self.joined:
            await in_thread(self._leave)
        self._on_release(self.lease_id)
        if self._lease.state is LeaseState.ENDED:
            self._released = True
            return self._lease
        lease = await self._pool.release(
            self.lease_id, wait_gone=wait_gone, reason=reason, exit_code=self.exit_code, timeout_s=timeout_s
        )
        self._released = True
        return self._learn(lease)

    async def _local(self) -> tuple[LocalAgent, int] | None:
        return await in_thread(self._find_local, self._pool.agents)
