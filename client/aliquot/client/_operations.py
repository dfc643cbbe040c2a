"""The calls of a pool, each as a flow: the behaviour of both twins, without threads, asyncio or grpc."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from aliquot.client import _errors as errors
from aliquot.client import _methods as methods
from aliquot.client._asking import Request, to_proto
from aliquot.client._declaring import NodeDeclaration, node_to_proto
from aliquot.client._flow import Context, Flow, call
from aliquot.client._from_proto import (
    LEASE_STATE_NUMBERS,
    device_of,
    lease_of,
    node_of,
)
from aliquot.client._grpc_status import read_status
from aliquot.client._mapping import to_error
from aliquot.client._messages import read
from aliquot.client._methods import Method
from aliquot.client._values.base import Page
from aliquot.client._values.leases import Lease, LeaseState, MemberPlace, NodeFit, WaitUntil
from aliquot.client._values.nodes import Device, Node
from aliquot.client.forecast import Forecast
from aliquot.common.ids import IdGenerator
from aliquot.common.limits import MAX_BATCH_ITEMS, MAX_DECLARED_NODES, MAX_WAIT_MS
from aliquot.v1 import leases_pb2, pool_pb2

T = TypeVar("T")
Places = str | Sequence[str | MemberPlace]
"""One for each member of a request: a node (id or name), or a node and its devices. A text is one node."""
LEASE_PAGE_SIZE = 500
NODE_PAGE_SIZE = 200
PAGE_SIZE = 100
ANSWER_SLACK_S = 10.0
"""How much longer than its wait a call may take before it counts as unanswered."""

_ids = IdGenerator()


@dataclass(frozen=True, slots=True)
class DeviceFilter:
    """Which devices to list. Empty fields don't filter."""

    pool: str = ""
    node_id: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class LeaseFilter:
    """Which leases to list. Empty fields don't filter; no states means all but ENDED."""

    tenant: str = ""
    queue: str = ""
    states: Sequence[LeaseState] = ()
    node_id: str = ""


def fresh_key() -> str:
    """A new idempotency key."""
    return _ids.idempotency_key()


def allocate(
    context: Context,
    request: Request,
    places: Places | None = None,
    *,
    key: str,
    wait_until: WaitUntil,
    wait_s: float,
    timeout_s: float,
) -> Flow[Lease]:
    """Ask once. The coordinator waits up to `wait_s` for `wait_until` and answers with the state reached by then.

    With `places` it is granted exactly there, or refused. `timeout_s` bounds the whole, retries included. Repeating
    with the same key gives the same lease.
    """
    wait_ms = min(MAX_WAIT_MS, max(1, round(wait_s * 1000)))
    attempt_s = wait_ms / 1000 + ANSWER_SLACK_S
    body, until = to_proto(request), leases_pb2.WaitUntil.Value(f"WAIT_UNTIL_{wait_until}")
    if places is not None:
        there = leases_pb2.GrantOnRequest(
            request=body,
            idempotency_key=key,
            places=map(_place_to_proto, [places] if isinstance(places, str) else places),
            wait_until=until,
            wait_timeout_ms=wait_ms,
        )
        answer = yield from call(context, methods.GRANT_ON, there, timeout_s, attempt_timeout_s=attempt_s)
    else:
        anywhere = leases_pb2.AllocateRequest(
            request=body, idempotency_key=key, wait_until=until, wait_timeout_ms=wait_ms
        )
        answer = yield from call(context, methods.ALLOCATE, anywhere, timeout_s, attempt_timeout_s=attempt_s)
    return lease_of(answer.lease)


def _place_to_proto(place: str | MemberPlace) -> leases_pb2.MemberPlace:
    if isinstance(place, str):
        return leases_pb2.MemberPlace(node_id=place)
    return leases_pb2.MemberPlace(node_id=place.node_id, device_uuids=place.device_uuids)


def fits(context: Context, request: Request, node_ids: Sequence[str], timeout_s: float) -> Flow[tuple[NodeFit, ...]]:
    """Which of these nodes could take one member of a request now. Changes nothing."""
    message = pool_pb2.FitsRequest(request=to_proto(request), node_ids=node_ids)
    answer = yield from call(context, methods.FITS, message, timeout_s)
    return tuple(NodeFit(fit.node_id, fit.reason, fit.detail, fit.score, fit.members) for fit in answer.nodes)


def allocate_batch(
    context: Context, requests: Sequence[Request], keys: Sequence[str], timeout_s: float
) -> Flow[list[Lease | errors.PoolError]]:
    """Ask for many, in messages of at most 256. Returns for each, in order, its lease or its error."""
    results: list[Lease | errors.PoolError] = []
    for chunk in _chunks(list(zip(requests, keys, strict=True)), MAX_BATCH_ITEMS):
        message = leases_pb2.AllocateBatchRequest(
            items=[leases_pb2.AllocateRequest(request=to_proto(request), idempotency_key=key) for request, key in chunk]
        )
        answer = yield from call(context, methods.ALLOCATE_BATCH, message, timeout_s)
        results += _results(context, methods.ALLOCATE_BATCH, answer, timeout_s)
    return results


def grant_on_batch(
    context: Context, requests: Sequence[Request], places: Sequence[str], keys: Sequence[str], timeout_s: float
) -> Flow[list[Lease | errors.PoolError]]:
    """Ask for many, each on its node or not at all. Returns for each, in order, its lease or its error."""
    results: list[Lease | errors.PoolError] = []
    for chunk in _chunks(list(zip(requests, places, keys, strict=True)), MAX_BATCH_ITEMS):
        message = leases_pb2.AllocateBatchRequest(
            grants=[
                leases_pb2.GrantOnRequest(
                    request=to_proto(request), idempotency_key=key, places=[leases_pb2.MemberPlace(node_id=place)]
                )
                for request, place, key in chunk
            ]
        )
        answer = yield from call(context, methods.ALLOCATE_BATCH, message, timeout_s)
        results += _results(context, methods.ALLOCATE_BATCH, answer, timeout_s)
    return results


def _results(
    context: Context,
    method: Method[Any, Any],
    answer: leases_pb2.AllocateBatchResponse | leases_pb2.ReleaseBatchResponse,
    timeout_s: float,
) -> list[Lease | errors.PoolError]:
    results: list[Lease | errors.PoolError] = []
    for result in answer.results:
        if result.WhichOneof("result") == "lease":
            results.append(lease_of(result.lease))
        else:
            failure = read_status(result.error, context.endpoints.current)
            results.append(to_error(failure, method, context.endpoints.addresses, timeout_s))
    return results


def release(
    context: Context,
    lease_id: str,
    *,
    wait_gone: bool,
    wait_s: float,
    reason: str,
    timeout_s: float,
    exit_code: int | None = None,
) -> Flow[Lease]:
    """End a lease. For one that has ended already, the answer is that lease. `exit_code` may be `Popen`'s own."""
    wait_ms = max(1, round(wait_s * 1000)) if wait_gone else 0
    if exit_code is not None:
        exit_code = exit_code if exit_code >= 0 else 128 - exit_code
    message = leases_pb2.ReleaseRequest(
        lease_id=lease_id, wait_gone=wait_gone, wait_timeout_ms=wait_ms, reason=reason, exit_code=exit_code
    )
    answer = yield from call(
        context, methods.RELEASE, message, timeout_s, attempt_timeout_s=wait_ms / 1000 + ANSWER_SLACK_S
    )
    return lease_of(answer.lease)


def release_batch(context: Context, lease_ids: Sequence[str], timeout_s: float) -> Flow[list[Lease | errors.PoolError]]:
    """End many. Returns for each, in order, its lease or its error."""
    results: list[Lease | errors.PoolError] = []
    for chunk in _chunks(lease_ids, MAX_BATCH_ITEMS):
        message = leases_pb2.ReleaseBatchRequest(lease_ids=chunk)
        answer = yield from call(context, methods.RELEASE_BATCH, message, timeout_s)
        results += _results(context, methods.RELEASE_BATCH, answer, timeout_s)
    return results


def list_page(
    context: Context, which: LeaseFilter, token: str, timeout_s: float, size: int = LEASE_PAGE_SIZE
) -> Flow[Page[Lease]]:
    """One page of leases."""
    message = leases_pb2.ListRequest(
        tenant=which.tenant,
        queue=which.queue,
        states=[LEASE_STATE_NUMBERS[state] for state in which.states],
        node_id=which.node_id,
        page_size=size,
        page_token=token,
    )
    answer = yield from call(context, methods.LIST, message, timeout_s)
    return Page(tuple(map(lease_of, answer.leases)), answer.next_page_token, answer.seq)


def list_all(context: Context, which: LeaseFilter, timeout_s: float) -> Flow[tuple[int, tuple[Lease, ...]]]:
    """All pages, and the sequence number of the first: a watch from there misses nothing."""
    page = yield from list_page(context, which, "", timeout_s)
    seq, leases = page.seq, list(page.items)
    while page.next_token:
        page = yield from list_page(context, which, page.next_token, timeout_s)
        leases.extend(page.items)
    return seq, tuple(leases)


def nodes_page(
    context: Context, pool: str, token: str, timeout_s: float, *, with_devices: bool, size: int = NODE_PAGE_SIZE
) -> Flow[Page[Node]]:
    """One page of nodes."""
    message = pool_pb2.ListNodesRequest(pool=pool, page_size=size, page_token=token, with_devices=with_devices)
    answer = yield from call(context, methods.LIST_NODES, message, timeout_s)
    return Page(tuple(map(node_of, answer.nodes)), answer.next_page_token, answer.seq)


def devices_page(
    context: Context, which: DeviceFilter, token: str, timeout_s: float, size: int = LEASE_PAGE_SIZE
) -> Flow[Page[Device]]:
    """One page of devices."""
    message = pool_pb2.ListDevicesRequest(
        pool=which.pool, node_id=which.node_id, model=which.model, page_size=size, page_token=token
    )
    answer = yield from call(context, methods.LIST_DEVICES, message, timeout_s)
    return Page(tuple(map(device_of, answer.devices)), answer.next_page_token, 0)


def declare(context: Context, declarations: Iterable[NodeDeclaration], timeout_s: float) -> Flow[list[Node]]:
    """Declare nodes, in messages of at most 1000."""
    nodes: list[Node] = []
    for chunk in _chunks(list(declarations), MAX_DECLARED_NODES):
        message = pool_pb2.DeclareNodesRequest(nodes=[node_to_proto(declaration) for declaration in chunk])
        answer = yield from call(context, methods.DECLARE_NODES, message, timeout_s, attempt_timeout_s=timeout_s)
        nodes.extend(map(node_of, answer.nodes))
    return nodes


def forecast(context: Context, series: str | None, timeout_s: float) -> Flow[Forecast]:
    """Demand as it was and as it is expected to be."""
    request = pool_pb2.ForecastRequest()
    if series is not None:
        kind, _, name = series.partition("/")
        request.series.SetInParent()
        request.series.kind, request.series.name = kind, name
    return read((yield from call(context, methods.FORECAST, request, timeout_s)), Forecast)


def _chunks(items: Sequence[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
