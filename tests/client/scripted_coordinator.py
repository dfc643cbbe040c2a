"""A coordinator reduced to a dictionary, behind real gRPC, for the faults that a real one can't be asked to have.

It grants what is asked as long as `capacity` lasts, queues the rest, and does what its script says: fail calls, hang,
name another leader, lose leases, forget the past.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent import futures
from typing import Any, NoReturn

import grpc
from google.protobuf import duration_pb2
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2

from aliquot.client import _methods as methods
from aliquot.v1 import leases_pb2, pool_pb2, types_pb2

EVENTS_KEPT = 1000


class Fault:
    """One failure to inject: a status with details."""

    def __init__(
        self,
        code: grpc.StatusCode,
        reason: str = "",
        message: str = "scripted",
        *,
        metadata: dict[str, str] | None = None,
        retry_after_s: float | None = None,
        details: tuple[Message, ...] = (),
    ) -> None:
        self.code, self.message = code, message
        self.status = status_pb2.Status(code=code.value[0], message=message)
        if reason:
            info = error_details_pb2.ErrorInfo(reason=reason, domain="aliquot.dev", metadata=metadata or {})
            self.status.details.add().Pack(info)
        if retry_after_s is not None:
            delay = duration_pb2.Duration(nanos=int(retry_after_s * 1e9))
            self.status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
        for detail in details:
            self.status.details.add().Pack(detail)

    def abort(self, context: grpc.ServicerContext) -> NoReturn:
        context.set_trailing_metadata((("grpc-status-details-bin", self.status.SerializeToString()),))
        context.abort(self.code, self.message)
        raise AssertionError


class ScriptedCoordinator:
    """Start it with `start`; `stop` is as rude as kill -9; `start` again takes the same port and the same leases."""

    def __init__(self, capacity: int = 1000, credentials: grpc.ServerCredentials | None = None) -> None:
        self.capacity = capacity
        self.credentials = credentials
        self.leases: dict[str, types_pb2.Lease] = {}
        self.keys: dict[tuple[str, str], str] = {}
        self.calls: Counter[str] = Counter()
        self.kept: Counter[str] = Counter()
        self.keep_alive_messages = 0
        self.script: dict[str, list[Fault]] = {}
        self.hanging: set[str] = set()
        self.lost: dict[str, str] = {}
        self.preempting: dict[str, int] = {}
        self.mute_keep_alive = False
        self.shown: dict[str, list[str]] = {}
        """What callers have shown as their token, by call."""
        self.accepted: set[str] | None = None
        """The tokens that count; None: nobody is asked for one."""
        self.seq = 100
        self.oldest_seq = 0
        self.events: list[leases_pb2.WatchEvent] = []
        self.nodes: list[types_pb2.Node] = []
        self.changed = threading.Condition(threading.RLock())
        self.port = 0
        self._ids = itertools.count(1)
        self._server: grpc.Server | None = None

    # ------------------------------------------------------------------------------------------- its own life

    def start(self) -> str:
        server = grpc.server(futures.ThreadPoolExecutor(32), options=[("grpc.so_reuseport", 0)])
        server.add_generic_rpc_handlers(self._handlers())
        deadline = time.monotonic() + 10
        while True:
            try:
                self.port = (
                    server.add_insecure_port(self.address)
                    if self.credentials is None
                    else server.add_secure_port(self.address, self.credentials)
                )
                break
            except RuntimeError:
                # The port of before may need a moment.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        server.start()
        self._server = server
        return self.address

    def stop(self) -> None:
        if self._server is not None:
            with self.changed:
                server, self._server = self._server, None
                self.changed.notify_all()
            server.stop(None).wait()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def fail(self, call: str, *faults: Fault) -> None:
        """The next calls of this name fail, one fault each."""
        self.script.setdefault(call, []).extend(faults)

    def wait_for(self, condition: Any, timeout_s: float = 30) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, timeout_s), "the coordinator never saw it"

    def lose(self, lease_id: str, reason: str = "LEASE_EXPIRED", end_reason: str = "EXPIRED") -> None:
        with self.changed:
            self.lost[lease_id] = reason
            self._end(self.leases[lease_id], end_reason)

    def free(self, slots: int = 1) -> None:
        """Give more capacity and grant what waits."""
        with self.changed:
            self.capacity += slots
            for lease in self.leases.values():
                if lease.state == types_pb2.LEASE_STATE_QUEUED and self._used() < self.capacity:
                    self._grant(lease)

    # ------------------------------------------------------------------------------------------- LeaseService

    def allocate(self, request: leases_pb2.AllocateRequest, context: Any) -> leases_pb2.AllocateResponse:
        self._enter("Allocate", context)
        with self.changed:
            lease, replayed = self._allocate(request)
            wanted = request.wait_until in {leases_pb2.WAIT_UNTIL_GRANTED, leases_pb2.WAIT_UNTIL_ACTIVE}
            if wanted:
                self.changed.wait_for(
                    lambda: lease.state != types_pb2.LEASE_STATE_QUEUED or self._server is None,
                    (request.wait_timeout_ms or 30_000) / 1000,
                )
            answer = types_pb2.Lease()
            answer.CopyFrom(lease)
            answer.secret = f"secret-of-{lease.lease_id}"
            return leases_pb2.AllocateResponse(lease=answer, replayed=replayed)

    def allocate_batch(
        self, request: leases_pb2.AllocateBatchRequest, context: Any
    ) -> leases_pb2.AllocateBatchResponse:
        self._enter("AllocateBatch", context)
        response = leases_pb2.AllocateBatchResponse()
        with self.changed:
            for item in request.items:
                if item.request.name == "impossible":
                    fault = Fault(grpc.StatusCode.FAILED_PRECONDITION, "NEVER_FITS", "too big")
                    response.results.add(error=fault.status)
                else:
                    response.results.add(lease=self._allocate(item)[0])
            for grant in request.grants:
                item = leases_pb2.AllocateRequest(request=grant.request, idempotency_key=grant.idempotency_key)
                response.results.add(lease=self._allocate(item)[0])
        return response

    def grant_on(self, request: leases_pb2.GrantOnRequest, context: Any) -> leases_pb2.AllocateResponse:
        self._enter("GrantOn", context)
        item = leases_pb2.AllocateRequest(request=request.request, idempotency_key=request.idempotency_key)
        with self.changed:
            return leases_pb2.AllocateResponse(lease=self._allocate(item)[0])

    def explain(self, request: leases_pb2.ExplainRequest, context: Any) -> leases_pb2.ExplainResponse:
        self._enter("Explain", context)
        return leases_pb2.ExplainResponse(explanation=types_pb2.Explanation(fits_now=True, summary="fits"))

    def release(self, request: leases_pb2.ReleaseRequest, context: Any) -> leases_pb2.ReleaseResponse:
        self._enter("Release", context)
        with self.changed:
            lease = self._known(request.lease_id, context)
            self._end(lease, "RELEASED")
            return leases_pb2.ReleaseResponse(lease=lease)

    def release_batch(self, request: leases_pb2.ReleaseBatchRequest, context: Any) -> leases_pb2.ReleaseBatchResponse:
        self._enter("ReleaseBatch", context)
        response = leases_pb2.ReleaseBatchResponse()
        with self.changed:
            for lease_id in request.lease_ids:
                lease = self.leases.get(lease_id)
                if lease is None:
                    response.results.add(error=Fault(grpc.StatusCode.NOT_FOUND, "LEASE_NOT_FOUND").status)
                else:
                    self._end(lease, "RELEASED")
                    response.results.add(lease=lease)
        return response

    def get(self, request: leases_pb2.GetRequest, context: Any) -> types_pb2.Lease:
        self._enter("Get", context)
        with self.changed:
            return self._known(request.lease_id, context)

    def list_leases(self, request: leases_pb2.ListRequest, context: Any) -> leases_pb2.ListResponse:
        self._enter("List", context)
        with self.changed:
            start = int(request.page_token or 0)
            size = 3
            live = [
                lease
                for lease in self.leases.values()
                if lease.state != types_pb2.LEASE_STATE_ENDED
                and (not request.tenant or lease.request.tenant == request.tenant)
            ]
            token = str(start + size) if start + size < len(live) else ""
            return leases_pb2.ListResponse(leases=live[start : start + size], next_page_token=token, seq=self.seq)

    def keep_alive(
        self, requests: Iterator[leases_pb2.KeepAliveRequest], context: Any
    ) -> Iterator[leases_pb2.KeepAliveResponse]:
        self._enter("KeepAlive", context)
        for request in requests:
            with self.changed:
                self.keep_alive_messages += 1
                self.kept.update(request.lease_ids)
                self.changed.notify_all()
                if self.mute_keep_alive:
                    continue
                known = [self.leases[i] for i in request.lease_ids if i in self.leases and i not in self.lost]
                ttl_ms = min(((lease.request.ttl_s or 60) * 1000 for lease in known), default=0)
                lost = {i: self.lost.get(i, "LEASE_NOT_FOUND") for i in request.lease_ids if i in self.lost}
                response = leases_pb2.KeepAliveResponse(
                    kept=len(known), lost=lost, renew_within_ms=ttl_ms, preempting=self.preempting
                )
            yield response

    def watch(self, request: leases_pb2.WatchRequest, context: Any) -> Iterator[leases_pb2.WatchEvent]:
        self._enter("Watch", context)
        server = self._server
        with self.changed:
            if request.after_seq and request.after_seq < self.oldest_seq:
                Fault(grpc.StatusCode.OUT_OF_RANGE, "WATCH_COMPACTED").abort(context)
            sent = request.after_seq or self.seq
        while context.is_active() and self._server is server:
            with self.changed:
                if self.seq <= sent:
                    self.changed.wait(0.2)
                fresh = [event for event in self.events if event.seq > sent]
                sent = max(sent, self.seq)
            yield from fresh
            if not fresh:
                yield leases_pb2.WatchEvent(seq=sent, bookmark=leases_pb2.Bookmark())

    # -------------------------------------------------------------------------------------------- PoolService

    def list_nodes(self, request: pool_pb2.ListNodesRequest, context: Any) -> pool_pb2.ListNodesResponse:
        self._enter("ListNodes", context)
        start = int(request.page_token or 0)
        token = str(start + 2) if start + 2 < len(self.nodes) else ""
        return pool_pb2.ListNodesResponse(nodes=self.nodes[start : start + 2], next_page_token=token)

    def declare_nodes(self, request: pool_pb2.DeclareNodesRequest, context: Any) -> pool_pb2.DeclareNodesResponse:
        self._enter("DeclareNodes", context)
        self.nodes.extend(request.nodes)
        return pool_pb2.DeclareNodesResponse(nodes=request.nodes)

    def get_status(self, request: pool_pb2.GetStatusRequest, context: Any) -> pool_pb2.Status:
        self._enter("GetStatus", context)
        return pool_pb2.Status(seq=self.seq, granting=True, leases=len(self.leases))

    # ------------------------------------------------------------------------------------------------- inside

    def _handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        unary, streaming = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        served: dict[methods.Method[Any, Any], tuple[Any, Any]] = {
            methods.LEASES["Allocate"]: (unary, self.allocate),
            methods.LEASES["AllocateBatch"]: (unary, self.allocate_batch),
            methods.LEASES["GrantOn"]: (unary, self.grant_on),
            methods.LEASES["Explain"]: (unary, self.explain),
            methods.LEASES["Release"]: (unary, self.release),
            methods.LEASES["ReleaseBatch"]: (unary, self.release_batch),
            methods.LEASES["Get"]: (unary, self.get),
            methods.LEASES["List"]: (unary, self.list_leases),
            methods.LEASES["KeepAlive"]: (grpc.stream_stream_rpc_method_handler, self.keep_alive),
            methods.LEASES["Watch"]: (streaming, self.watch),
            methods.POOL["ListNodes"]: (unary, self.list_nodes),
            methods.POOL["DeclareNodes"]: (unary, self.declare_nodes),
            methods.POOL["GetStatus"]: (unary, self.get_status),
        }
        handlers: dict[str, dict[str, Any]] = {}
        for method, (kind, behaviour) in served.items():
            _, service, name = method.path.split("/")
            handler = kind(behaviour, method.request.FromString, method.answer.SerializeToString)
            handlers.setdefault(service, {})[name] = handler
        return tuple(grpc.method_handlers_generic_handler(name, known) for name, known in handlers.items())

    def _enter(self, call: str, context: Any) -> None:
        shown = dict(context.invocation_metadata()).get("authorization", "").removeprefix("Bearer ")
        with self.changed:
            self.calls[call] += 1
            self.shown.setdefault(call, []).append(shown)
            unknown = self.accepted is not None and shown not in self.accepted
            faults = self.script.get(call)
            fault = faults.pop(0) if faults else None
            self.changed.notify_all()
            if call in self.hanging:
                self.changed.wait_for(lambda: call not in self.hanging or self._server is None)
        if fault is not None:
            fault.abort(context)
        if unknown:
            reason = "TOKEN_UNKNOWN" if shown else "TOKEN_MISSING"
            Fault(grpc.StatusCode.UNAUTHENTICATED, reason, "this token is not known").abort(context)

    def _allocate(self, request: leases_pb2.AllocateRequest) -> tuple[types_pb2.Lease, bool]:
        scope = (request.request.tenant, request.idempotency_key)
        if request.idempotency_key and scope in self.keys:
            return self.leases[self.keys[scope]], True
        lease = types_pb2.Lease(
            lease_id=f"l-{next(self._ids):013}", state=types_pb2.LEASE_STATE_QUEUED, request=request.request
        )
        lease.waiting.summary = "the pool is full"
        self.leases[lease.lease_id] = lease
        self.keys[scope] = lease.lease_id
        if self._used() < self.capacity:
            self._grant(lease)
        return lease, False

    def _grant(self, lease: types_pb2.Lease) -> None:
        lease.state = types_pb2.LEASE_STATE_ACTIVE
        lease.ClearField("waiting")
        lease.slices.add(
            slice_id=f"s-{lease.lease_id}",
            node_id="n-1",
            node_name="node-1",
            device_uuid="GPU-1",
            device_model="A100-40",
            share_milli=250,
            memory_bytes=10 << 30,
            state=types_pb2.SLICE_STATE_ACTIVE,
            tier=types_pb2.TIER_WATCHDOG,
        )
        self._tell(lease)

    def _end(self, lease: types_pb2.Lease, reason: str) -> None:
        if lease.state != types_pb2.LEASE_STATE_ENDED:
            lease.state = types_pb2.LEASE_STATE_ENDED
            lease.end_reason = reason
            self._tell(lease)

    def _tell(self, lease: types_pb2.Lease) -> None:
        self.seq += 1
        copy = types_pb2.Lease()
        copy.CopyFrom(lease)
        self.events.append(leases_pb2.WatchEvent(seq=self.seq, at_ms=1, lease=copy))
        self.changed.notify_all()

    def _used(self) -> int:
        return sum(
            lease.state not in {types_pb2.LEASE_STATE_QUEUED, types_pb2.LEASE_STATE_ENDED}
            for lease in self.leases.values()
        )

    def _known(self, lease_id: str, context: Any) -> types_pb2.Lease:
        lease = self.leases.get(lease_id)
        if lease is None:
            Fault(
                grpc.StatusCode.NOT_FOUND, "LEASE_NOT_FOUND", f"no lease {lease_id}", metadata={"hint": "look at ls"}
            ).abort(context)
        return lease
