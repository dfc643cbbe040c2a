"""A connection to a pool."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from aliquot.client import _errors as errors
from aliquot.client import _methods as methods
from aliquot.client._asking import Asked, Places, to_proto
from aliquot.client._async import leasing
from aliquot.client._async.calling import AsyncCaller
from aliquot.client._async.granting import AsyncGranting
from aliquot.client._async.held import AsyncHeldLease
from aliquot.client._async.keeper import AsyncKeeper
from aliquot.client._async.ports import AsyncTransport
from aliquot.client._async.seam import closing
from aliquot.client._async.transport import AsyncGrpcTransport
from aliquot.client._declaring import NodeDeclaration, node_to_proto
from aliquot.client._from_proto import lease_of, node_of, numbers_of
from aliquot.client._held_base import Callbacks
from aliquot.client._messages import read, sendable
from aliquot.client._methods import Answer, Method
from aliquot.client._pages import DEVICE_PAGES, LEASE_PAGES, NODE_PAGES, PAGE_SIZE, Listing
from aliquot.client._pool_base import DEFAULT_TIMEOUT_S, GONE_WITHIN_S, OnLost, OnNotice, OnResize, PoolBase
from aliquot.client._retrying import RetryPolicy
from aliquot.client._settings import connecting
from aliquot.client._values.base import Page
from aliquot.client._values.events import Event
from aliquot.client._values.leases import Explanation, Lease, LeaseState, NodeFit, Timeline, WaitUntil
from aliquot.client._values.nodes import Device, Node
from aliquot.client._values.pool import Status
from aliquot.client._values.requests import Request, RequestOptions
from aliquot.client._watching import FleetCursor, Relist, WatchCursor, WatchFilter
from aliquot.client.fleet import FleetChange
from aliquot.client.use import UseReport
from aliquot.common.limits import MAX_DECLARED_NODES
from aliquot.common.tls import ClientTls, channel_credentials

if TYPE_CHECKING:
    # What few programs ask for is imported when it is: its many values take a third of the time of all.
    from aliquot.client._async.access import AsyncAccess
    from aliquot.client._async.administration import AsyncAdmin
    from aliquot.client._async.supply import AsyncSupply
    from aliquot.client.forecast import Forecast

T = TypeVar("T")


class AsyncPool(PoolBase[AsyncHeldLease]):
    """A connection to a pool of GPUs, for one event loop. Close it, or use it in an `async with` block.

    Args:
        coordinator: one address (`host:port`), or several, of which one leads. None: `ALIQUOT_COORDINATOR`, else the
            configuration file's, else `localhost:7070`.
        tenant: who pays for requests that don't say. None: `ALIQUOT_TENANT`, else the file's.
        timeout_s: how long a call may take, retries included, unless the call says otherwise.
        retry: how calls that fail for a temporary reason are repeated.
        tls: certificate files. None: the configuration file's, else the authority that came with the login, else plain
            text, with which no token is sent beyond this machine.
        token: shown with every call; empty: none. None: `token_file`, else ALIQUOT_TOKEN_FILE, ALIQUOT_TOKEN, the
            configuration file's `token_file`, and what `aliquot login` and `aliquot up` have kept for this coordinator.
        token_file: a file with it, which is read again when the token is refused and another one is there.
        agent_sockets: sockets of this machine's agents. None: found by `local.find_agents`.
        transport: used instead of gRPC.
    """

    def __init__(
        self,
        coordinator: str | Sequence[str] | None = None,
        *,
        tenant: str | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retry: RetryPolicy | None = None,
        tls: ClientTls | None = None,
        token: str | None = None,
        token_file: str | Path | None = None,
        agent_sockets: Sequence[Path] | None = None,
        transport: AsyncTransport | None = None,
    ) -> None:
        found = connecting(coordinator, tenant, token=token, token_file=token_file, tls=tls)
        super().__init__(found, retry, timeout_s, agent_sockets)
        if transport is None:
            found.check()
            credentials = None if found.tls is None else channel_credentials(found.tls)
            transport = AsyncGrpcTransport(credentials, found.token)
        self._transport = transport
        self._keeper: AsyncKeeper = AsyncKeeper(self._transport, self._context, self._on_news)
        self._caller = AsyncCaller(self._transport, self._context, self._trusting)
        self._granting = AsyncGranting(self._caller, self._keeper)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Release what is still held, and drop the connections.

        A lease that this process itself still uses is left to expire, so that its agent doesn't stop this process.
        """
        held = [lease_id for lease_id, held in self._held.items() if not held.joined]
        self._held.clear()
        await self._keeper.close()
        if held:
            with contextlib.suppress(errors.PoolError):
                await self._granting.release_batch(held, min(self.timeout_s, 5.0))
        await self._transport.close()

    # ---------------------------------------------------------------------------------------------------- leases

    def lease(
        self,
        gpu: str | Request,
        *,
        places: Places | None = None,
        until: WaitUntil = WaitUntil.ACTIVE,
        wait_s: float | None = None,
        key: str = "",
        on_lost: OnLost | None = None,
        on_notice: OnNotice | None = None,
        on_resize: OnResize | None = None,
        **options: Unpack[RequestOptions],
    ) -> leasing.Leasing:
        """Ask for parts of GPUs, wait for them, and hold them: `async with pool.lease(...) as lease:`.

        Args:
            gpu: the request grammar, or a whole `Request`.
            places: where it must be, a node or a `MemberPlace` for each member, as in `grant_on`; None: anywhere.
            until: ACTIVE waits until every agent has set the limits; GRANTED until capacity is held.
            wait_s: how long to wait in the queue; None: as long as it takes.
            key: an idempotency key; a program that starts again with it gets the same lease. Empty: a fresh one.
            on_lost: called when the lease is no longer held.
            on_notice: called when the lease will be taken back, with the time (ms since 1970) when it is stopped.
            on_resize: called with the lease when an elastic lease (`min_count`, `max_count`) gains slices or must give
                some back: adapt, and `acknowledge`.
            **options: see `Request`.

        Raises:
            RequestSyntaxError: the text can't be read.
            NeverFits, NoCapacity, PlacementRefused, QuotaExceeded, TenantHeldBack, TierUnavailable, InvalidRequest: the
            pool refuses.
            IdempotencyMismatch: `key` was used for another request.
            NotGrantedInTime: after `wait_s`; the request is withdrawn.
            LeaseLost: somebody else ended it while it waited.
            Overloaded: the queue is full, or the coordinator has too much to do.
            Unavailable: no coordinator for `timeout_s`.
        """
        asked = self._asked(gpu, options, key, places)
        return leasing.start(partial(self._obtained, asked, until, wait_s, Callbacks(on_lost, on_notice, on_resize)))

    async def hold(
        self,
        lease: Lease,
        *,
        on_lost: OnLost | None = None,
        on_notice: OnNotice | None = None,
        on_resize: OnResize | None = None,
    ) -> AsyncHeldLease:
        """Keep a lease from `allocate` alive, and handle it like one from `lease`."""
        if not lease.detached:
            self._keeper.add(lease.lease_id, lease.ttl_s)
        return self._remember(AsyncHeldLease(self, lease, self._forget), Callbacks(on_lost, on_notice, on_resize))

    async def allocate(
        self,
        gpu: str | Request,
        *,
        until: WaitUntil = WaitUntil.ACTIVE,
        wait_s: float = DEFAULT_TIMEOUT_S,
        key: str = "",
        **options: Unpack[RequestOptions],
    ) -> Lease:
        """Ask for a lease that this pool does not keep alive: `hold` it, make it `detached`, or it expires.

        Returns the lease in the state reached after at most `wait_s` (seconds; an hour at most). It may be QUEUED, and
        then stays in the queue. Raises what `lease` raises, except `NotGrantedInTime` and `LeaseLost`.
        """
        return await self._allocate(self._asked(gpu, options, key), until, wait_s)

    async def grant_on(
        self,
        gpu: str | Request,
        places: Places,
        *,
        until: WaitUntil = WaitUntil.ACTIVE,
        wait_s: float = DEFAULT_TIMEOUT_S,
        key: str = "",
        **options: Unpack[RequestOptions],
    ) -> Lease:
        """As `allocate`, exactly where you have decided: a place for each member, as a node or a `MemberPlace`.

        It never waits in the queue, and takes nothing that is kept for others. Raises `PlacementRefused` with the
        obstacle, and what `lease` raises for limits.
        """
        return await self._allocate(self._asked(gpu, options, key, places), until, wait_s)

    async def fits(
        self, gpu: str | Request, nodes: Sequence[str] = (), **options: Unpack[RequestOptions]
    ) -> tuple[NodeFit, ...]:
        """Which of these nodes (ids or names; none: all) could take one member of a request now, and how they compare.

        Changes nothing. Raises `RequestSyntaxError`, and `InvalidRequest` for more than 5,000 nodes.
        """
        request = to_proto(self._ask(gpu, options))
        answer = await self._send(methods.POOL["Fits"], request=request, node_ids=nodes)
        return tuple(read(fit, NodeFit) for fit in answer.nodes)

    async def allocate_batch(
        self, requests: Sequence[str | Request], *, keys: Sequence[str] = ()
    ) -> list[Lease | errors.PoolError]:
        """Ask for many at once. Returns for each, in order, its lease (granted or queued) or its error.

        `keys` are idempotency keys, one for each; none: fresh ones. Raises `RequestSyntaxError` before anything is
        asked for.
        """
        return await self._granting.allocate_batch(self._several(requests, keys), self.timeout_s)

    async def grant_on_batch(
        self, requests: Sequence[str | Request], nodes: Sequence[str], *, keys: Sequence[str] = ()
    ) -> list[Lease | errors.PoolError]:
        """As `grant_on`, many at once: each request on the node beside it, or not at all. Requests of one member only.

        Returns for each, in order, its lease (granted) or its error. `keys` are idempotency keys, one for each; none:
        fresh ones. Raises `RequestSyntaxError` before anything is asked for.
        """
        return await self._granting.allocate_batch(self._several(requests, keys, nodes), self.timeout_s)

    async def release(
        self,
        lease_id: str,
        *,
        wait_gone: bool = False,
        reason: str = "",
        exit_code: int | None = None,
        timeout_s: float | None = None,
    ) -> Lease:
        """End a lease. Releasing twice is fine. Raises `LeaseNotFound`.

        `wait_gone` waits, up to `timeout_s` (None: 60 s), until its capacity is free. `exit_code` is that of the
        program that ran in it, and stays on the lease: 0 to 255, or -N where signal N ended it.
        """
        return await self._granting.release(
            lease_id,
            self.timeout_s if wait_gone or timeout_s is None else timeout_s,
            gone_within_s=(GONE_WITHIN_S if timeout_s is None else timeout_s) if wait_gone else None,
            reason=reason,
            exit_code=exit_code,
        )

    async def acknowledge(self, lease_id: str, shape: int) -> Lease:
        """Say that the launcher of an elastic lease has adapted to this `shape`. Returns the lease.

        Slices that it gives back are stopped now, and it may grow again. An older shape changes nothing. Raises
        `LeaseNotFound`, and `InvalidRequest` for a shape that it has not had yet.
        """
        return lease_of(await self._send(methods.LEASES["AcknowledgeShape"], lease_id=lease_id, shape=shape))

    async def use(self, *, tenant: str = "", lease_id: str = "", quiet_only: bool = False) -> UseReport:
        """What leases make of what they hold: those that waste most first. `tenant`: it and all below it.

        `quiet_only`: only leases that do nothing with it. Raises `LeaseNotFound`.
        """
        answer = await self._send(methods.LEASES["GetUse"], tenant=tenant, lease_id=lease_id, quiet_only=quiet_only)
        return read(answer, UseReport)

    async def exempt(self, lease_id: str, for_s: int, *, reason: str = "") -> Lease:
        """Let idleness of a lease have no consequences for so long (at most a day); 0: it has again.

        Returns the lease. Raises `LeaseNotFound`.
        """
        return lease_of(await self._send(methods.LEASES["ExemptLease"], lease_id=lease_id, for_s=for_s, reason=reason))

    async def extend(self, lease_id: str, time_limit_s: int, *, reason: str = "") -> Lease:
        """Let a lease that has a time limit have this longer one, counted from its grant, too. Safe to repeat.

        Returns the lease. Raises `ExtensionRefused` where its queue allows less, or others were promised what it holds
        for when it ends; `LeaseLost`, `LeaseNotFound`, `InvalidRequest`, `QuotaExceeded`.
        """
        return lease_of(
            await self._send(methods.LEASES["ExtendLease"], lease_id=lease_id, time_limit_s=time_limit_s, reason=reason)
        )

    async def confirm_notice(self, lease_id: str, number: int) -> None:
        """Say that the `number`-th warning of a lease's idleness has reached its holder.

        Nothing is ended for idleness before somebody was told. Raises `LeaseNotFound`.
        """
        await self._send(methods.LEASES["ConfirmNotice"], lease_id=lease_id, number=number)

    async def release_batch(self, lease_ids: Sequence[str]) -> list[Lease | errors.PoolError]:
        """End many. Returns for each, in order, its lease or its error."""
        return await self._granting.release_batch(lease_ids, self.timeout_s)

    async def explain(self, gpu: str | Request, **options: Unpack[RequestOptions]) -> Explanation:
        """Where a request would be placed now, or what it would wait for. Changes nothing.

        Raises `RequestSyntaxError`, `InvalidRequest`; that it can never fit is an answer, not an error.
        """
        answer = await self._send(methods.LEASES["Explain"], request=to_proto(self._ask(gpu, options)))
        return read(answer.explanation, Explanation)

    async def why(self, lease_id: str) -> tuple[Lease, Explanation]:
        """Why a lease waits or ended, or where it is. Raises `LeaseNotFound`."""
        answer = await self._send(methods.LEASES["Explain"], lease_id=lease_id)
        return lease_of(answer.lease), read(answer.explanation, Explanation)

    async def get(self, lease_id: str) -> Lease:
        """One lease as it is now. Raises `LeaseNotFound`."""
        return lease_of(await self._send(methods.LEASES["Get"], lease_id=lease_id))

    async def timeline(self, lease_id: str) -> Timeline:
        """What has happened to a lease, fact by fact, also before fail-overs. Raises `LeaseNotFound`.

        It is read in the coordinator's journal, which may take some seconds.
        """
        answer = await self._send(methods.LEASES["GetTimeline"], lease_id=lease_id)
        return read(answer, Timeline)

    def leases(
        self, *, tenant: str = "", queue: str = "", states: Sequence[LeaseState] = (), node_id: str = ""
    ) -> AsyncIterator[Lease]:
        """Leases, page by page while you iterate. No states: all but ENDED."""
        return self._items(LEASE_PAGES, tenant=tenant, queue=queue, states=numbers_of(states), node_id=node_id)

    async def leases_page(
        self,
        page_token: str = "",
        page_size: int = PAGE_SIZE,
        *,
        tenant: str = "",
        queue: str = "",
        states: Sequence[LeaseState] = (),
        node_id: str = "",
    ) -> Page[Lease]:
        """A page of `leases`, of at most 1,000. Raises `InvalidRequest` for a token that is no page's."""
        chosen = {"tenant": tenant, "queue": queue, "states": numbers_of(states), "node_id": node_id}
        return await self._page(LEASE_PAGES, page_token, page_size, **chosen)

    async def watch(
        self,
        *,
        tenant: str = "",
        lease_ids: Sequence[str] = (),
        nodes: bool = False,
        after_seq: int = 0,
        relist: bool = True,
    ) -> AsyncIterator[Event]:
        """Changes as they become durable, without end; `after_seq` 0: from now on.

        Survives restarts and failovers. If changes were missed, everything is listed again: one `Resynced`, without
        the leases where `relist` is false, so that the caller may list as it likes. After a break a change may come
        twice. Close the iterator (`aclose`) to end it.
        """
        cursor = WatchCursor(self._context, WatchFilter(tenant, lease_ids, nodes), after_seq)
        async with closing(self._caller.stream(cursor)) as messages:
            async for message in messages:
                if not isinstance(message, Relist):
                    for event in cursor.take(message):
                        yield event
                elif relist:
                    found = await self._caller.pages(LEASE_PAGES, self.timeout_s, tenant=tenant)
                    yield cursor.relisted(found.seq, found.items)
                else:
                    yield cursor.relisted((await self._page(LEASE_PAGES, "", 1, tenant=tenant)).seq, ())

    async def watch_fleet(
        self, *, layout: int = 0, version: int = 0, guard: bool = False
    ) -> AsyncIterator[FleetChange]:
        """All devices as columns: a snapshot, then what changes, without end; see `aliquot.client.fleet`.

        `layout` and `version` are those of a change that was had before, to go on there if that can be. Survives
        restarts and failovers. With `guard` only signs of life come, as long as the caller may watch. Close the
        iterator (`aclose`) to end it. Raises `NotPermitted`, and `Overloaded` where too many watch.
        """
        cursor = FleetCursor(self._context, layout, version, guard=guard)
        async with closing(self._caller.stream(cursor)) as messages:
            async for message in messages:
                change = cursor.take(message)
                if change is not None:
                    yield change

    # -------------------------------------------------------------------------------------------- the pool itself

    def nodes(self, *, pool: str = "", with_devices: bool = True) -> AsyncIterator[Node]:
        """Nodes, page by page while you iterate."""
        return self._items(NODE_PAGES, pool=pool, with_devices=with_devices)

    async def nodes_page(
        self, page_token: str = "", page_size: int = PAGE_SIZE, *, pool: str = "", with_devices: bool = True
    ) -> Page[Node]:
        """A page of `nodes`, of at most 1,000. Raises `InvalidRequest` for a token that is no page's."""
        return await self._page(NODE_PAGES, page_token, page_size, pool=pool, with_devices=with_devices)

    async def node(self, node_id: str) -> Node:
        """One node by id or name. Raises `NodeNotFound`."""
        return node_of(await self._send(methods.POOL["GetNode"], node_id=node_id))

    def devices(self, *, pool: str = "", node_id: str = "", model: str = "") -> AsyncIterator[Device]:
        """Devices, page by page while you iterate."""
        return self._items(DEVICE_PAGES, pool=pool, node_id=node_id, model=model)

    async def devices_page(
        self, page_token: str = "", page_size: int = PAGE_SIZE, *, pool: str = "", node_id: str = "", model: str = ""
    ) -> Page[Device]:
        """A page of `devices`, of at most 1,000. Raises `InvalidRequest` for a token that is no page's."""
        return await self._page(DEVICE_PAGES, page_token, page_size, pool=pool, node_id=node_id, model=model)

    async def declare(self, nodes: Iterable[NodeDeclaration]) -> list[Node]:
        """Declare nodes before, or without, their agents. Declaring again replaces.

        Raises `InvalidRequest`, and `NameTaken` if a name or UUID is another node's.
        """
        with sendable():
            asked = [node_to_proto(node) for node in nodes]
        declared: list[Node] = []
        method = methods.POOL["DeclareNodes"]
        for start in range(0, len(asked), MAX_DECLARED_NODES):
            message = method.request(nodes=asked[start : start + MAX_DECLARED_NODES])
            # The whole time for one attempt: so many take long.
            answer = await self._caller.call(method, message, self.timeout_s, attempt_timeout_s=self.timeout_s)
            declared += map(node_of, answer.nodes)
        return declared

    async def remove_node(self, node_id: str, *, force: bool = False) -> None:
        """Forget a node.

        Raises `NodeNotFound`, and `InUse` while it holds slices, unless it is LOST and `force` writes them off.
        """
        await self._send(methods.POOL["RemoveNode"], node_id=node_id, force=force)

    async def cordon(self, node_id: str, *, reason: str = "") -> Node:
        """Place nothing new on the node; what runs stays. Raises `NodeNotFound`."""
        return node_of(await self._send(methods.POOL["Cordon"], node_id=node_id, reason=reason))

    async def uncordon(self, node_id: str) -> Node:
        """Place leases on the node again. Raises `NodeNotFound`."""
        return node_of(await self._send(methods.POOL["Uncordon"], node_id=node_id))

    async def drain(self, node_id: str, *, reason: str = "", grace_s: int = 0) -> Node:
        """Cordon, and end its leases with this grace (0: each lease's own). Doesn't wait until they have ended.

        Raises `NodeNotFound`.
        """
        return node_of(await self._send(methods.POOL["Drain"], node_id=node_id, reason=reason, grace_s=grace_s))

    @property
    def admin(self) -> AsyncAdmin:
        """Tenants, queues, pools, prices and the ledger, for administrators."""
        from aliquot.client._async.administration import AsyncAdmin  # noqa: PLC0415 - see above

        return AsyncAdmin(self._caller, self.timeout_s)

    @property
    def supply(self) -> AsyncSupply:
        """Nodes that come when they are missed, and go when they are not."""
        from aliquot.client._async.supply import AsyncSupply  # noqa: PLC0415 - see above

        return AsyncSupply(self._caller, self.timeout_s)

    @property
    def access(self) -> AsyncAccess:
        """Who this program is, roles, tokens, and who did what."""
        from aliquot.client._async.access import AsyncAccess  # noqa: PLC0415 - see above

        return AsyncAccess(self._caller, self.timeout_s)

    async def status(self) -> Status:
        """Totals per pool, model and tenant."""
        answer = await self._send(methods.POOL["GetStatus"])
        return read(answer, Status)

    async def forecast(self, series: str | None = None) -> Forecast:
        """Demand by the hour, as it is expected to be: of all series that the caller may see.

        With `series` (`tenant/vision`, `model/A100-80`, `pool/a`, or empty for the whole): of that one, with its past.
        Raises `InvalidRequest` for a kind that there is not.
        """
        from aliquot.client.forecast import Forecast  # noqa: PLC0415 - see above

        kind, _, name = (series or "").partition("/")
        # Absent, it is all of them; of empty words, the whole.
        asked = {} if series is None else {"series": {"kind": kind, "name": name}}
        return read(await self._send(methods.POOL["Forecast"], **asked), Forecast)

    async def _allocate(self, asked: Asked, until: WaitUntil, wait_s: float) -> Lease:
        timeout_s = wait_s + self.timeout_s
        return await self._granting.allocate(asked, wait_until=until, wait_s=wait_s, timeout_s=timeout_s)

    async def _page(self, listing: Listing[T], token: str, size: int, **fields: Any) -> Page[T]:  # noqa: ANN401
        return await self._caller.page(listing, self.timeout_s, token, size, **fields)

    async def _items(self, listing: Listing[T], **fields: object) -> AsyncIterator[T]:
        token = ""
        while True:
            found = await self._page(listing, token, 0, **fields)
            for item in found.items:
                yield item
            token = found.next_token
            if not token:
                return

    async def _send(self, method: Method[Any, Answer], **fields: object) -> Answer:
        """Make a call with these fields in its message."""
        return await self._caller.send(method, self.timeout_s, **fields)

    async def _obtained(
        self, asked: Asked, until: WaitUntil, wait_s: float | None, callbacks: Callbacks
    ) -> AsyncHeldLease:
        lease = await self._granting.obtain(asked, until=until, wait_s=wait_s, timeout_s=self.timeout_s)
        return self._remember(AsyncHeldLease(self, lease, self._forget), callbacks)
