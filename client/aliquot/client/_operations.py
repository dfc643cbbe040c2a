"""The calls of a pool, each as a flow: the behaviour of both twins, without threads, asyncio or grpc."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from aliquot.client import _errors as errors
from aliquot.client import _methods as methods
from aliquot.client._asking import Request, to_proto
from aliquot.client._declaring import NodeDeclaration, node_to_proto
from aliquot.client._flow import Context, Flow, call, send
from aliquot.client._from_proto import (
    lease_of,
    node_of,
)
from aliquot.client._grpc_status import read_status
from aliquot.client._mapping import to_error
from aliquot.client._messages import read
from aliquot.client._methods import Method
from aliquot.client._values.leases import Lease, MemberPlace, NodeFit, WaitUntil
from aliquot.client._values.nodes import Node
from aliquot.common.ids import IdGenerator
from aliquot.common.limits import MAX_BATCH_ITEMS, MAX_DECLARED_NODES, MAX_WAIT_MS
from aliquot.v1 import leases_pb2, pool_pb2

if TYPE_CHECKING:
    from aliquot.client.forecast import Forecast

T = TypeVar("T")
Places = str | Sequence[str | MemberPlace]
"""One for each member of a request: a node (id or name), or a node and its devices. A text is one node."""
PAGE_SIZE = 100
ANSWER_SLACK_S = 10.0
"""How much longer than its wait a call may take before it counts as unanswered."""

_ids = IdGenerator()


@dataclass(frozen=True, slots=True)
class Asked:
    """A request under an idempotency key: repeated with the same one it gives the same lease."""

    request: Request
    key: str
    places: Places | None = None
    """Exactly there, or refused; None: anywhere."""


def fresh_key() -> str:
    """A new idempotency key."""
    return _ids.idempotency_key()


def allocate(context: Context, asked: Asked, *, wait_until: WaitUntil, wait_s: float, timeout_s: float) -> Flow[Lease]:
    """Ask once. The coordinator waits up to `wait_s` for `wait_until` and answers with the state reached by then.

    `timeout_s` bounds the whole, retries included.
    """
    wait_ms = min(MAX_WAIT_MS, max(1, round(wait_s * 1000)))
    method = methods.LEASES["Allocate" if asked.places is None else "GrantOn"]
    message = _to_proto(asked)
    message.wait_until = leases_pb2.WaitUntil.Value(f"WAIT_UNTIL_{wait_until}")
    message.wait_timeout_ms = wait_ms
    answer = yield from call(context, method, message, timeout_s, attempt_timeout_s=wait_ms / 1000 + ANSWER_SLACK_S)
    return lease_of(answer.lease)


def _to_proto(asked: Asked) -> leases_pb2.AllocateRequest | leases_pb2.GrantOnRequest:
    body, places = to_proto(asked.request), asked.places
    if places is None:
        return leases_pb2.AllocateRequest(request=body, idempotency_key=asked.key)
    there = map(_place_to_proto, [places] if isinstance(places, str) else places)
    return leases_pb2.GrantOnRequest(request=body, idempotency_key=asked.key, places=there)


def _place_to_proto(place: str | MemberPlace) -> leases_pb2.MemberPlace:
    if isinstance(place, str):
        return leases_pb2.MemberPlace(node_id=place)
    return leases_pb2.MemberPlace(node_id=place.node_id, device_uuids=place.device_uuids)


def fits(context: Context, request: Request, node_ids: Sequence[str], timeout_s: float) -> Flow[tuple[NodeFit, ...]]:
    """Which of these nodes could take one member of a request now. Changes nothing."""
    message = pool_pb2.FitsRequest(request=to_proto(request), node_ids=node_ids)
    answer = yield from call(context, methods.POOL["Fits"], message, timeout_s)
    return tuple(NodeFit(fit.node_id, fit.reason, fit.detail, fit.score, fit.members) for fit in answer.nodes)


def allocate_batch(context: Context, asked: Sequence[Asked], timeout_s: float) -> Flow[list[Lease | errors.PoolError]]:
    """Ask for many, in messages of at most 256: all of them anywhere, or each at its place. Returns for each, in order,
    its lease or its error.
    """
    results: list[Lease | errors.PoolError] = []
    for chunk in _chunks(asked, MAX_BATCH_ITEMS):
        field = "items" if chunk[0].places is None else "grants"
        answer = yield from send(
            context, methods.LEASES["AllocateBatch"], timeout_s, **{field: list(map(_to_proto, chunk))}
        )
        results += _results(context, methods.LEASES["AllocateBatch"], answer, timeout_s)
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
    timeout_s: float,
    *,
    gone_within_s: float | None = None,
    reason: str = "",
    exit_code: int | None = None,
) -> Flow[Lease]:
    """End a lease, and (`gone_within_s`) wait so long until its capacity is free, beside `timeout_s`. For one that has
    ended already, the answer is that lease. `exit_code` may be `Popen`'s own.
    """
    wait_ms = 0 if gone_within_s is None else max(1, round(gone_within_s * 1000))
    if exit_code is not None:
        exit_code = exit_code if exit_code >= 0 else 128 - exit_code
    message = leases_pb2.ReleaseRequest(
        lease_id=lease_id, wait_gone=wait_ms > 0, wait_timeout_ms=wait_ms, reason=reason, exit_code=exit_code
    )
    wait_s = wait_ms / 1000
    answer = yield from call(
        context, methods.LEASES["Release"], message, timeout_s + wait_s, attempt_timeout_s=wait_s + ANSWER_SLACK_S
    )
    return lease_of(answer.lease)


def release_batch(context: Context, lease_ids: Sequence[str], timeout_s: float) -> Flow[list[Lease | errors.PoolError]]:
    """End many. Returns for each, in order, its lease or its error."""
    results: list[Lease | errors.PoolError] = []
    for chunk in _chunks(lease_ids, MAX_BATCH_ITEMS):
        message = leases_pb2.ReleaseBatchRequest(lease_ids=chunk)
        answer = yield from call(context, methods.LEASES["ReleaseBatch"], message, timeout_s)
        results += _results(context, methods.LEASES["ReleaseBatch"], answer, timeout_s)
    return results


def declare(context: Context, declarations: Iterable[NodeDeclaration], timeout_s: float) -> Flow[list[Node]]:
    """Declare nodes, in messages of at most 1000."""
    nodes: list[Node] = []
    for chunk in _chunks(list(declarations), MAX_DECLARED_NODES):
        message = pool_pb2.DeclareNodesRequest(nodes=[node_to_proto(declaration) for declaration in chunk])
        answer = yield from call(context, methods.POOL["DeclareNodes"], message, timeout_s, attempt_timeout_s=timeout_s)
        nodes.extend(map(node_of, answer.nodes))
    return nodes


def forecast(context: Context, series: str | None, timeout_s: float) -> Flow[Forecast]:
    """Demand as it was and as it is expected to be."""
    from aliquot.client.forecast import Forecast  # noqa: PLC0415 - asked for seldom

    request = pool_pb2.ForecastRequest()
    if series is not None:
        kind, _, name = series.partition("/")
        request.series.SetInParent()
        request.series.kind, request.series.name = kind, name
    return read((yield from call(context, methods.POOL["Forecast"], request, timeout_s)), Forecast)


def _chunks(items: Sequence[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
