"""`AsyncPool`: the SDK for asyncio programs.

Its twin is `Pool`, whose documentation holds here too; what both do is written once, in `_operations` and `_holding`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Generator, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from aliquot.client import _errors as errors
from aliquot.client import _operations as operations
from aliquot.client import _values as values
from aliquot.client._administration import AsyncAdmin
from aliquot.client._asking import Request, RequestOptions
from aliquot.client._async_held import AsyncHeldLease
from aliquot.client._async_keeper import AsyncKeeper
from aliquot.client._declaring import NodeDeclaration
from aliquot.client._driving import drive_async
from aliquot.client._flow import Flow, RetryPolicy
from aliquot.client._grpc_aio import AsyncGrpcTransport
from aliquot.client._held_base import Callbacks
from aliquot.client._methods import WATCH
from aliquot.client._operations import LeaseFilter
from aliquot.client._pool_base import DEFAULT_TIMEOUT_S, OnLost, OnNotice, OnResize, PoolBase
from aliquot.client._settings import client_settings
from aliquot.client._transport import AsyncTransport, RpcFailure
from aliquot.client._values import Event, Lease, LeaseState, WaitUntil
from aliquot.client._watching import Relist, WatchCursor, WatchFilter
from aliquot.common.tls import ClientTls, channel_credentials

T = TypeVar("T")


class Leasing:
    """A lease being asked for: `await` it, or enter it with `async with`."""

    def __init__(self, pool: AsyncPool, flow: Flow[Lease], callbacks: Callbacks) -> None:
        self._pool = pool
        self._flow = flow
        self._callbacks = callbacks
        self._held: AsyncHeldLease | None = None

    def __await__(self) -> Generator[Any, None, AsyncHeldLease]:
        return self._obtain().__await__()

    async def __aenter__(self) -> AsyncHeldLease:
        self._held = await self._obtain()
        return self._held

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._held is not None:
            await self._held.__aexit__(kind, raised, trace)

    async def _obtain(self) -> AsyncHeldLease:
        return await self._pool._obtained(self._flow, self._callbacks)  # noqa: SLF001 - its other half


class AsyncPool(PoolBase[AsyncHeldLease]):
    """A connection to a pool of GPUs for one event loop. Close it, or use it in an `async with` block.

    Arguments as for `Pool`.
    """

    def __init__(
        self,
        coordinator: str | Sequence[str] | None = None,
        *,
        tenant: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retry: RetryPolicy | None = None,
        tls: ClientTls | None = None,
        agent_sockets: Sequence[Path] | None = None,
        transport: AsyncTransport | None = None,
    ) -> None:
        settings = client_settings(coordinator, tenant)
        super().__init__(settings, retry, timeout_s, agent_sockets)
        tls = tls or settings.client_tls()
        self._transport = transport or AsyncGrpcTransport(None if tls is None else channel_credentials(tls))
        self._keeper: AsyncKeeper = AsyncKeeper(self._transport, self._context, self._on_news)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Release what is still held, and drop the connections.

        A lease that this process itself still uses is left to its TTL, so that its agent doesn't end this process.
        """
        held = [lease_id for lease_id, held in self._held.items() if not held.joined]
        self._held.clear()
        await self._keeper.close()
        if held:
            with contextlib.suppress(errors.PoolError):
                await self._run(operations.release_batch(self._context, held, min(self.timeout_s, 5.0)))
        await self._transport.close()

    # ---------------------------------------------------------------------------------------------------- leases

    def lease(
        self,
        gpu: str | Request,
        *,
        until: WaitUntil = WaitUntil.ACTIVE,
        wait_s: float | None = None,
        key: str = "",
        on_lost: OnLost | None = None,
        on_notice: OnNotice | None = None,
        on_resize: OnResize | None = None,
        **options: Unpack[RequestOptions],
    ) -> Leasing:
        """Ask for parts of GPUs, wait for them, and hold them: `async with pool.lease("0.25(A100),10Gi") as lease:`.

        `await pool.lease(...)` works too; then `release` it. Arguments and errors as for `Pool.lease`.
        """
        callbacks = Callbacks(on_lost, on_notice, on_resize)
        return Leasing(self, self._obtain(gpu, options, key, until, wait_s), callbacks)

    async def hold(
        self,
        lease: Lease,
        *,
        on_lost: OnLost | None = None,
        on_notice: OnNotice | None = None,
        on_resize: OnResize | None = None,
    ) -> AsyncHeldLease:
        """Keep alive, and handle like one's own, a lease that `allocate` gave."""
        if not lease.detached:
            self._keeper.add(lease.lease_id, lease.ttl_s)
        return self._remember(AsyncHeldLease(self, lease), Callbacks(on_lost, on_notice, on_resize))

    async def allocate(
        self,
        gpu: str | Request,
        *,
        until: WaitUntil = WaitUntil.ACTIVE,
        wait_s: float = DEFAULT_TIMEOUT_S,
        key: str = "",
        **options: Unpack[RequestOptions],
    ) -> Lease:
        """Ask for a lease that this pool does not keep alive. The answer may be QUEUED; see `Pool.allocate`."""
        return await self._run(self._allocate(gpu, options, key, until, wait_s))

    async def allocate_batch(
        self, requests: Sequence[str | Request], *, keys: Sequence[str] = ()
    ) -> list[Lease | errors.PoolError]:
        """Ask for many at once; each item has its lease (granted or queued) or its own error, in order."""
        return await self._run(self._allocate_batch(requests, keys))

    async def release(
        self, lease_id: str, *, wait_gone: bool = False, reason: str = "", timeout_s: float | None = None
    ) -> Lease:
        """End a lease. `wait_gone` waits, up to `timeout_s`, until its capacity is free. Releasing twice is fine."""
        return await self._run(self._release(lease_id, wait_gone, reason, timeout_s))

    async def acknowledge(self, lease_id: str, shape: int) -> Lease:
        """Say that the launcher of an elastic lease has adapted to this `shape`; see `Pool.acknowledge`."""
        return await self._run(operations.acknowledge_shape(self._context, lease_id, shape, self.timeout_s))

    async def release_batch(self, lease_ids: Sequence[str]) -> list[Lease | errors.PoolError]:
        """End many; each has its lease or its own error, in order."""
        return await self._run(operations.release_batch(self._context, lease_ids, self.timeout_s))

    async def explain(self, gpu: str | Request, **options: Unpack[RequestOptions]) -> values.Explanation:
        """What would become of a request now. Changes nothing."""
        return await self._run(operations.explain_request(self._context, self._ask(gpu, options), self.timeout_s))

    async def why(self, lease_id: str) -> tuple[Lease, values.Explanation]:
        """Why a lease is where it is. Raises `LeaseNotFound`."""
        return await self._run(operations.explain_lease(self._context, lease_id, self.timeout_s))

    async def get(self, lease_id: str) -> Lease:
        """One lease as it is now. Raises `LeaseNotFound`."""
        return await self._run(operations.get(self._context, lease_id, self.timeout_s))

    async def leases(
        self, *, tenant: str = "", queue: str = "", states: Sequence[LeaseState] = (), node_id: str = ""
    ) -> AsyncIterator[Lease]:
        """Leases, page by page while you iterate. No states: all but ENDED."""
        which = LeaseFilter(tenant, queue, states, node_id)
        token = ""
        while True:
            page = await self._run(operations.list_page(self._context, which, token, self.timeout_s))
            for lease in page.leases:
                yield lease
            token = page.next_token
            if not token:
                return

    async def watch(
        self, *, tenant: str = "", lease_ids: Sequence[str] = (), nodes: bool = False, after_seq: int = 0
    ) -> AsyncIterator[Event]:
        """Changes as they become durable, for ever; see `Pool.watch`. Close the iterator with `aclose` to end it."""
        cursor = WatchCursor(self._context, WatchFilter(tenant, lease_ids, nodes), after_seq)
        while True:
            address = self._context.endpoints.current
            stream = self._transport.watch(WATCH, cursor.request(), address)
            failure: RpcFailure | None = None
            try:
                async for message in stream:
                    event = cursor.take(message)
                    if event is not None:
                        yield event
            except RpcFailure as error:
                failure = error
            finally:
                stream.cancel()
            step = cursor.ended(failure, address)
            if isinstance(step, Relist):
                seq, leases = await self._run(operations.list_all(self._context, LeaseFilter(tenant), self.timeout_s))
                yield cursor.relisted(seq, leases)
            else:
                await asyncio.sleep(step.after_s)

    # -------------------------------------------------------------------------------------------- the pool itself

    async def nodes(self, *, pool: str = "", with_devices: bool = True) -> AsyncIterator[values.Node]:
        """Nodes, page by page while you iterate."""
        token = ""
        while True:
            nodes, token = await self._run(
                operations.nodes_page(self._context, pool, token, self.timeout_s, with_devices=with_devices)
            )
            for node in nodes:
                yield node
            if not token:
                return

    async def node(self, node_id: str) -> values.Node:
        """One node by id or name. Raises `NodeNotFound`."""
        return await self._run(operations.node(self._context, node_id, self.timeout_s))

    async def devices(self, *, pool: str = "", node_id: str = "", model: str = "") -> AsyncIterator[values.Device]:
        """Devices, page by page while you iterate."""
        token = ""
        while True:
            devices, token = await self._run(
                operations.devices_page(self._context, pool, node_id, model, token, self.timeout_s)
            )
            for device in devices:
                yield device
            if not token:
                return

    async def declare(self, nodes: Iterable[NodeDeclaration]) -> list[values.Node]:
        """Make nodes known before, or without, their agents. Declaring again replaces."""
        return await self._run(operations.declare(self._context, nodes, self.timeout_s))

    async def remove_node(self, node_id: str, *, force: bool = False) -> None:
        """Forget a node. Raises `InUse` while it holds slices, unless it is LOST and `force` writes them off."""
        await self._run(operations.remove_node(self._context, node_id, self.timeout_s, force=force))

    async def cordon(self, node_id: str, *, reason: str = "") -> values.Node:
        """No new grants on the node; what runs stays."""
        return await self._run(operations.cordon(self._context, node_id, reason, self.timeout_s))

    async def uncordon(self, node_id: str) -> values.Node:
        """Grants on the node again."""
        return await self._run(operations.uncordon(self._context, node_id, self.timeout_s))

    async def drain(self, node_id: str, *, reason: str = "", grace_s: int = 0) -> values.Node:
        """Cordon, then end its leases, each with its grace (0: its own). Doesn't wait for the end."""
        return await self._run(operations.drain(self._context, node_id, reason, grace_s, self.timeout_s))

    @property
    def admin(self) -> AsyncAdmin:
        """Tenants, queues, pools, prices and the ledger, for administrators."""
        return AsyncAdmin(self._context, self.timeout_s, self._run)

    async def status(self) -> values.Status:
        """Totals per pool, model and tenant."""
        return await self._run(operations.status(self._context, self.timeout_s))

    async def _run(self, flow: Flow[T]) -> T:
        return await drive_async(flow, self._transport, self._keep_or_forget)

    async def _obtained(self, flow: Flow[Lease], callbacks: Callbacks) -> AsyncHeldLease:
        return self._remember(AsyncHeldLease(self, await self._run(flow)), callbacks)
