"""One agent's stream: what it says becomes commands, what is wanted of it is written back.

The stream is read in its handler's task and written by at most one task at a time, started only while there is
something to say, so that ten thousand quiet agents cost ten thousand waiting reads and nothing else. What is to be
said is a set of leases, not a queue of messages: an agent that reads slowly gets the latest wish, once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from aliquot.common import limits
from aliquot.common.errors import AliquotError
from aliquot.common.limits import KIB, MIB
from aliquot.coordinator.agents.desired import Wish, cut_order, desired_slice, stop_stray, wish_of
from aliquot.coordinator.core.books.health.records import Sign
from aliquot.coordinator.core.books.leases.records import lease_id_of
from aliquot.coordinator.core.books.nodes import Node
from aliquot.coordinator.core.values.errors import SessionReplaced
from aliquot.coordinator.core.values.types import CutState
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.wire import errors as rpc_errors
from aliquot.coordinator.wire.health import care_message
from aliquot.v1 import agent_pb2

BURST_BYTES = 8 * MIB
"""Two of the largest messages."""
BYTES_PER_S = 256 * KIB
COMMAND_BYTES = 4 * KIB
"""What a command counts: as much as it takes to read so many bytes."""


class Pace:
    """How much one agent may have the coordinator do: it is not read on before it has waited for what it asked beyond
    that. Far above what any node has to say, so that only one that is broken, or means harm, ever waits. Bytes of
    messages are counted, and commands that follow from them.
    """

    __slots__ = ("_at_ms", "_left")

    def __init__(self, now_ms: int) -> None:
        """`now_ms`: of a monotonic clock, as everywhere here."""
        self._left = float(BURST_BYTES)
        self._at_ms = now_ms

    def spend(self, cost_bytes: int) -> None:
        """Count it."""
        self._left -= cost_bytes

    def wait_s(self, now_ms: int) -> float:
        """How long it has to wait."""
        earned = (now_ms - self._at_ms) * BYTES_PER_S / 1000
        self._left = min(self._left + earned, float(BURST_BYTES))
        self._at_ms = now_ms
        return max(0.0, -self._left / BYTES_PER_S)


log = logging.getLogger(__name__)

HELD = (agent_pb2.SLICE_STATUS_PENDING, agent_pb2.SLICE_STATUS_ACTIVE, agent_pb2.SLICE_STATUS_STOPPING)
_WRITTEN_WITHIN_S = 10.0
"""An agent that does not read that long is not told why it is refused."""
_UNTOLD_MAX = 4 * limits.MAX_SLICE_REPORTS
"""Slices that an agent which does not read has still to be told of. The rest it will report again: nobody forgets a
reservation before it is told to.
"""
OVER = (agent_pb2.SLICE_STATUS_GONE, agent_pb2.SLICE_STATUS_FAILED)

Context = grpc.aio.ServicerContext[Any, Any]
OvertimeOf = Callable[[Iterable[str], int], Iterable[agent_pb2.TenantOvertime]]


@dataclass(slots=True, eq=False, repr=False)
class Session:
    """The state of one connection. The `Roster` owns it."""

    node_id: str
    boot_id: str
    """Of the machine that its agent runs on: another one after every restart."""
    epoch: int
    last_heard_ms: int
    key_sha256: bytes
    """Of the key that opened it."""
    _context: Context
    _view: View
    _pool_secret: bytes
    _overtime_of: OvertimeOf
    """How long tenants were over limits, as agents said in other sessions."""
    trusts_authorities: bool = False
    """Its agent has said which of the pool's authorities it trusts, and so knows that there may be others."""
    absent_since_ms: int | None = None
    """Since when nobody had spoken for the node when it began; None: somebody did."""
    pace: Pace = field(init=False)
    delta_seq: int = 0
    awaiting_snapshot: bool = True
    live: bool = False
    """Reconciled: desired state may be sent."""
    suspect: bool = False
    ended: bool = False
    told_devices: dict[str, tuple[int, bool, Sign | None]] = field(default_factory=dict)
    """Foreign memory, health and its sign of each device as last handed to the writer."""
    unknown: dict[str, agent_pb2.SliceReport] = field(default_factory=dict)
    """What it holds and the books do not know, by slice: quarantined there, as the journal may be a copy."""
    _dirty: dict[str, None] = field(default_factory=dict)
    _full: bool = False
    _settled: dict[str, None] = field(default_factory=dict)
    _strays: dict[str, agent_pb2.DesiredSlice] = field(default_factory=dict)
    _overtime: dict[str, None] = field(default_factory=dict)
    _told_cuts: set[int] = field(default_factory=set)
    _told_care: set[int] = field(default_factory=set)
    _messages: dict[tuple[str | None, int], agent_pb2.CoordinatorMessage] = field(default_factory=dict)
    """By kind, and by number for orders about cards: what is said again before it was sent is sent once."""
    _writing: asyncio.Task[None] | None = None
    _ending: asyncio.Future[grpc.aio.AbortError | None] | None = None

    def __post_init__(self) -> None:
        self.pace = Pace(self.last_heard_ms)

    # -- what is to be said

    def say(self, message: agent_pb2.CoordinatorMessage) -> None:
        """Send one message when its turn comes."""
        self._messages[message.WhichOneof("message"), message.cut.number or message.care.number] = message
        self._start_writing()

    def ask_for_snapshot(self, reason: str) -> None:
        """Have everything told anew."""
        self.awaiting_snapshot = True
        self.told_devices.clear()
        self.say(agent_pb2.CoordinatorMessage(snapshot_request=agent_pb2.SnapshotRequest(reason=reason)))

    def mark(self, lease_id: str) -> None:
        """What is wanted of this lease's slices here has changed."""
        self._dirty[lease_id] = None
        if self.live:
            self._start_writing()

    def tell_overtime(self, tenant: str) -> None:
        """Send how long leases of a tenant were over limits on other nodes."""
        self._overtime[tenant] = None
        if self.live:
            self._start_writing()

    def go_live(self) -> None:
        """Its node is reconciled: send everything."""
        self.live = True
        self._full = True
        self._start_writing()
        self.tell_orders(self._view.nodes.get(self.node_id))

    def tell_orders(self, node: Node | None) -> None:
        """Send the orders about its cards that are under way, each once."""
        for care in node.care if node is not None and self.live else ():
            if care.number not in self._told_care:
                self._told_care.add(care.number)
                message = care_message(care, self._view.leader_epoch, self.epoch)
                self.say(agent_pb2.CoordinatorMessage(care=message))
        for cut in node.cuts if node is not None and self.live else ():
            if cut.state is CutState.ORDERED and cut.number not in self._told_cuts:
                self._told_cuts.add(cut.number)
                order = cut_order(cut, self._view.leader_epoch, self.epoch)
                self.say(agent_pb2.CoordinatorMessage(cut=order))

    def note_reports(self, reports: Iterable[agent_pb2.SliceReport]) -> None:
        """After reports are durable: settle what is over, and stop what is held although nothing wants it."""
        on_node = self._view.slices_on(self.node_id)
        for report in reports:
            if len(report.slice_id) > limits.MAX_NAME_CHARS:
                continue  # none of ours
            wanted = report.slice_id in on_node
            self.unknown.pop(report.slice_id, None)
            if report.status in OVER:
                self._strays.pop(report.slice_id, None)
                if not wanted and len(self._settled) < _UNTOLD_MAX:
                    self._settled[report.slice_id] = None
            elif report.status in HELD and not wanted:
                lease = self._view.leases.get(report.lease_id or lease_id_of(report.slice_id))
                known = lease is not None or report.slice_id in self._view.written_off
                if known and len(self._strays) < _UNTOLD_MAX:
                    self._strays[report.slice_id] = stop_stray(report, lease)
                elif not known and len(self.unknown) < _UNTOLD_MAX:
                    self.unknown[report.slice_id] = _trimmed(report)
        if self.live and (self._settled or self._strays):
            self._start_writing()

    @property
    def untold(self) -> int:
        """Messages and slices that it is still to be told of."""
        return len(self._messages) + len(self._dirty) + len(self._settled) + len(self._strays)

    def _start_writing(self) -> None:
        if self._writing is None and not self.ended:
            self._writing = asyncio.create_task(self._write())

    async def _write(self) -> None:
        try:
            while not self.ended:
                message = self._next_message()
                if message is None:
                    break
                await self._context.write(message.SerializeToString())
        except Exception as error:  # noqa: BLE001 - a broken stream ends its reader too, which is where it is handled
            log.debug("writing to node %s failed: %r", self.node_id, error)
        finally:
            self._writing = None

    def _next_message(self) -> agent_pb2.CoordinatorMessage | None:
        if self._messages:
            return self._messages.pop(next(iter(self._messages)))
        if not self.live or not (self._full or self._dirty or self._settled or self._strays or self._overtime):
            return None
        desired = agent_pb2.Desired(
            leader_epoch=self._view.leader_epoch, session_epoch=self.epoch, full=self._full, settled=self._settled
        )
        self._settled.clear()
        if self._full:
            lease_ids: Iterable[str] = dict.fromkeys(self._view.slices_on(self.node_id).values())
            self._full = False
            self._dirty.clear()
            self._fill(desired, lease_ids)
        else:
            batch: list[str] = []
            while self._dirty and len(batch) < limits.MAX_SLICE_REPORTS:
                batch.append(next(iter(self._dirty)))
                del self._dirty[batch[-1]]
            self._fill(desired, batch)
        desired.slices.extend(self._strays.values())
        self._strays.clear()
        tenants = {*self._overtime, *(piece.tenant for piece in desired.slices)}
        desired.overtime.extend(self._overtime_of(sorted(tenants), self.epoch))
        self._overtime.clear()
        return agent_pb2.CoordinatorMessage(desired=desired)

    def _fill(self, desired: agent_pb2.Desired, lease_ids: Iterable[str]) -> None:
        for lease_id in lease_ids:
            lease = self._view.leases.get(lease_id)
            if lease is None:
                continue
            for piece in lease.slices:
                if piece.plan.node_id == self.node_id and wish_of(piece) is not Wish.NOTHING:
                    desired.slices.append(desired_slice(lease, piece, self._pool_secret))

    # -- the end

    async def end(self, goodbye: agent_pb2.Goodbye, error: AliquotError) -> None:
        """Say goodbye and close the stream with an error; the reader then sees its end."""
        if self.ended:
            return
        self.ended = True
        self._ending = asyncio.get_running_loop().create_future()
        aborted: grpc.aio.AbortError | None = None
        try:
            if await self._written():
                await self._context.write(agent_pb2.CoordinatorMessage(goodbye=goodbye).SerializeToString())
            await rpc_errors.abort(self._context, error)
        except grpc.aio.AbortError as error_told:
            aborted = error_told
        except (grpc.aio.BaseError, asyncio.InvalidStateError, grpc.RpcError) as closed:
            log.debug("session of node %s closed: %r", self.node_id, closed)
        finally:
            self._ending.set_result(aborted)

    async def refuse(self, error: AliquotError) -> None:
        """Close the stream with an error, for its handler; raises what `end` closed it with, if that came first."""
        await self.raise_end()
        self.ended = True
        await self._written()
        await rpc_errors.abort(self._context, error)

    async def _written(self) -> bool:
        """Let what is being written go out: a stream can't be closed in the midst of it. Whether that was so."""
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=_WRITTEN_WITHIN_S)
        return self._writing is None

    async def raise_end(self) -> None:
        """For the stream's handler, when it has read to the end: wait for `end`, if that was called; raise its error.

        A handler that returns earlier would end the stream well; one that does not raise what the abort raised is
        taken for one that hides it. Raises grpc.aio.AbortError.
        """
        if self._ending is not None and (aborted := await asyncio.shield(self._ending)) is not None:
            raise aborted


def _trimmed(report: agent_pb2.SliceReport) -> agent_pb2.SliceReport:
    """What is kept of a report as long as its session lasts, whatever its agent has written into it."""
    return agent_pb2.SliceReport(
        slice_id=report.slice_id,
        lease_id=report.lease_id[: limits.MAX_NAME_CHARS],
        lease_epoch=report.lease_epoch,
        status=report.status,
        device_uuid=report.device_uuid[: limits.MAX_DEVICE_UUID_CHARS],
        share_milli=report.share_milli,
        memory_bytes=report.memory_bytes,
    )


def refuse_second(first: Session | None, boot_id: str, quiet_since_ms: int) -> None:
    """Another machine is a node only when the first is not heard any more. Raises SessionReplaced.

    A machine made from the image of a node has its id but not its GPUs, so it would end every lease there. An agent
    that starts again on the same machine replaces its older session at once; after a restart of the machine, when that
    has ended or was quiet since `quiet_since_ms`.
    """
    if first is None or first.ended or boot_id == first.boot_id:
        return
    if first.last_heard_ms > quiet_since_ms:
        raise SessionReplaced(
            f"another machine is connected as node {first.node_id}",
            hint="if this one was made from the image of that one, remove node.record from the state directory of its "
            "agent, or start that with a --node-id of its own; after a restart it is let in within seconds",
        )
