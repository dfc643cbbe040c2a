"""The agents' sessions: handshake, snapshots, deltas, confirmations, and who is still there.

A session has an epoch of its own, made of the leader epoch and a counter, so that it is higher than any that the
node ever had. One session per node: a newer one replaces the older. Telemetry stays in memory; only what changes
what may be granted (registration, health, foreign memory beyond a deadband, confirmations, silence) becomes a
command.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from sys import intern
from typing import Any

from google.protobuf.message import DecodeError

from aliquot.common import limits
from aliquot.common.clock import Clock
from aliquot.common.errors import AliquotError, InvalidFieldError
from aliquot.coordinator.agents.desired import nodes_to_tell
from aliquot.coordinator.agents.identity import AgentRule, any_agent
from aliquot.coordinator.agents.liveness import Liveness, LivenessConfig
from aliquot.coordinator.agents.session import Context, Session, refuse_second
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.errors import SessionReplaced
from aliquot.coordinator.core.facts import NodeState
from aliquot.coordinator.core.leases import Lease
from aliquot.coordinator.core.state import Node
from aliquot.coordinator.errors import Overloaded, ProtocolVersion, ShuttingDown
from aliquot.coordinator.reading.metrics import Metrics
from aliquot.coordinator.reading.reports import as_held, foreign_changed
from aliquot.coordinator.reading.telemetry import AboutDevice, AboutNode, Telemetry
from aliquot.coordinator.reading.usage import ObservedUse
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.wire import errors as rpc_errors
from aliquot.coordinator.wire.nodes import read_registered
from aliquot.coordinator.writing.groups import Reply
from aliquot.coordinator.writing.writer import Writer
from aliquot.v1 import agent_pb2, types_pb2

log = logging.getLogger(__name__)

PROTOCOL = 1
SESSIONS_MAX = 20_000
_EPOCHS_PER_LEADER = 1 << 32
_LEADER_EPOCH_MAX = (1 << 31) - 2
"""Session epochs are made of it and of as many bits again."""
_EPOCHS_SKIPPED_MAX = 1_000_000
"""Every start of a coordinator takes one: more than any pool has between a backup and its failure."""
_HELLO_TIMEOUT_S = 10.0
_HEARTBEAT_TAG = 0x22
"""First byte of an AgentMessage that holds a Heartbeat (field 4, length-delimited)."""
_SNAPSHOTS_PER_S = 500
MAX_PROBLEM_CHARS = 512
_WATCHED = (NodeState.RECONCILING, NodeState.READY, NodeState.SUSPECT)


@dataclass(frozen=True, slots=True)
class SessionsConfig:
    """How often agents speak, and when they count as silent."""

    heartbeat_ms: int = 5_000
    delta_min_ms: int = 1_000
    suspect_after_heartbeats: int = 3
    lost_ms: int = 30_000

    @property
    def liveness(self) -> LivenessConfig:
        """When to give up on whom."""
        return LivenessConfig(self.heartbeat_ms * self.suspect_after_heartbeats, self.lost_ms)


class Sessions:
    """See the module's docstring."""

    def __init__(
        self,
        *,
        writer: Writer,
        view: View,
        clock: Clock,
        telemetry: Telemetry,
        observed: ObservedUse,
        metrics: Metrics,
        pool_secret: bytes,
        version: str,
        config: SessionsConfig | None = None,
        allowed: AgentRule = any_agent,
    ) -> None:
        self._writer = writer
        self._view = view
        self._clock = clock
        self._telemetry = telemetry
        self._observed = observed
        self._metrics = metrics
        self._pool_secret = pool_secret
        self._version = version
        self._allowed = allowed
        self._config = config or SessionsConfig()
        self._by_node: dict[str, Session] = {}
        self._epochs = 0
        self._raising = asyncio.Lock()
        self._closing = False
        self._intervals_factor = 1
        self._tasks: set[asyncio.Task[Any]] = set()
        self._liveness = Liveness(self._config.liveness, self._by_node, view, self._silent)
        for node_id, node in view.nodes.items():
            self.node_changed(node_id, node)

    def __len__(self) -> int:
        return len(self._by_node)

    async def serve(self, context: Context) -> None:
        """Handle one agent's stream until it ends."""
        session: Session | None = None
        try:
            session = await self._greet(context)
            await self._listen(session, context)
            await session.raise_end()
        except (AliquotError, DecodeError) as error:
            shown = error if isinstance(error, AliquotError) else InvalidFieldError("message", "can't be decoded")
            self._metrics.refused[rpc_errors.reason_of(shown)] += 1
            log.warning("session of node %s refused: %s", session.node_id if session else "?", shown)
            if session is not None:
                await session.raise_end()
                session.ended = True
            await rpc_errors.abort(context, shown)
        finally:
            if session is not None:
                session.ended = True
                if self._by_node.get(session.node_id) is session:
                    self._telemetry.heard(session.node_id, self.last_heard_ms(session.node_id))
                    self._telemetry.gone(session.node_id)
                    del self._by_node[session.node_id]
                    self._liveness.absent(session.node_id, session.last_heard_ms)

    async def _greet(self, context: Context) -> Session:
        try:
            async with asyncio.timeout(_HELLO_TIMEOUT_S):
                raw = await context.read()
        except TimeoutError:
            raise InvalidFieldError("hello", f"did not come within {_HELLO_TIMEOUT_S:.0f} s") from None
        # Only now: an agent that is refused while it still writes hears nothing of why.
        if self._closing:
            raise ShuttingDown("this coordinator is shutting down", hint="connect again in a moment")
        if len(self._by_node) >= SESSIONS_MAX:
            raise Overloaded(f"{SESSIONS_MAX} agents are connected, which is the bound", retry_after_ms=10_000)
        if not isinstance(raw, bytes):
            raise InvalidFieldError("hello", "the stream ended before it began")
        message = agent_pb2.AgentMessage.FromString(raw)
        if message.WhichOneof("message") != "hello":
            raise InvalidFieldError("hello", "the first message must be Hello")
        hello = message.hello
        if not hello.protocol_min <= PROTOCOL <= hello.protocol_max:
            raise ProtocolVersion(
                f"the agent speaks protocols {hello.protocol_min} to {hello.protocol_max}, this coordinator {PROTOCOL}",
                hint="upgrade the older of the two",
            )
        if not hello.node_id or len(hello.node_id) > limits.MAX_NODE_CHARS:
            raise InvalidFieldError("hello.node_id", f"has 1 to {limits.MAX_NODE_CHARS} characters")
        self._allowed(context, hello.node_id)
        now_ms = self._clock.monotonic_ms()
        refuse_second(self._by_node.get(hello.node_id), hello.boot_id, now_ms - self._config.liveness.suspect_ms)
        await self._outrank(hello.leader_epoch)
        leader_epoch = self._view.leader_epoch
        self._epochs += 1
        epoch = leader_epoch * _EPOCHS_PER_LEADER + self._epochs
        session = Session(hello, epoch, context, self._view, self._pool_secret, now_ms)
        self._replace(session)
        self._telemetry.put_node(hello.node_id, AboutNode(hello.agent_version[:128], "", self._clock.now_ms()))
        welcome = agent_pb2.Welcome(
            protocol=PROTOCOL,
            session_epoch=epoch,
            leader_epoch=leader_epoch,
            intervals=self._intervals(),
            coordinator_version=self._version,
        )
        # Through the session, which writes one message at a time: from here on others may have something to say too.
        session.say(agent_pb2.CoordinatorMessage(welcome=welcome))
        return session

    async def _outrank(self, obeyed_epoch: int) -> None:
        """Lead in an epoch above one that an agent has obeyed and that our journal does not know.

        Either the journal is older than what it has led, such as a backup that was put back: then it goes on in a
        higher epoch, because the agent would refuse ours for ever. Or we were replaced and do not know it yet: then
        the journal says so when the epoch is to be raised, and we stop. The journal decides, never the agent.
        """
        if obeyed_epoch <= self._view.leader_epoch:
            return
        async with self._raising:  # ten thousand agents may say the same
            known_epoch = self._view.leader_epoch
            if obeyed_epoch <= known_epoch:
                return
            if obeyed_epoch > min(known_epoch + _EPOCHS_SKIPPED_MAX, _LEADER_EPOCH_MAX):
                raise InvalidFieldError(
                    "hello.leader_epoch",
                    f"{obeyed_epoch} is far above this pool's {known_epoch}: it can't be of this pool",
                    hint="remove node.record from this agent's state directory to let it forget what it has obeyed",
                )
            log.warning(
                "an agent has obeyed leader epoch %d, which this journal does not know (it is at %d): was an older "
                "copy of it put back? Going on in epoch %d",
                obeyed_epoch,
                known_epoch,
                obeyed_epoch + 1,
            )
            await self._writer.raise_leader_epoch(obeyed_epoch + 1)

    def _replace(self, session: Session) -> None:
        old = self._by_node.get(session.node_id)
        self._by_node[session.node_id] = session
        self._liveness.present(session.node_id)
        if old is not None:
            log.info("a newer session of node %s replaces the older one", session.node_id)
            goodbye = agent_pb2.Goodbye(reason="REPLACED", reconnect_after_ms=30_000)
            error = SessionReplaced(
                f"another session of node {session.node_id} has begun",
                hint="if two agents share a state folder or a node id, stop one of them",
            )
            self._spawn(old.end(goodbye, error))

    async def _listen(self, session: Session, context: Context) -> None:
        clock, count = self._clock, self._metrics.agent_messages
        while not session.ended:
            raw = await context.read()
            if not isinstance(raw, bytes):
                return
            session.last_heard_ms = clock.monotonic_ms()
            if session.suspect:
                session.suspect = not self._tell(c.NodeHeard(session.node_id, session.epoch))
            if raw and raw[0] == _HEARTBEAT_TAG and len(raw) > 2:
                count["heartbeat"] += 1
                self._heartbeat(session, _heartbeat_seq(raw))
                continue
            message = agent_pb2.AgentMessage.FromString(raw)
            kind = message.WhichOneof("message") or "unknown"
            count[kind] += 1
            if kind == "delta":
                self._delta(session, message.delta)
            elif kind == "reports":
                await self._reports(session, message.reports)
            elif kind == "snapshot":
                await self._snapshot(session, message.snapshot)
            elif kind == "heartbeat":  # encoded in a way that the look above does not know
                self._heartbeat(session, message.heartbeat.seq)

    async def _snapshot(self, session: Session, snapshot: agent_pb2.Snapshot) -> None:
        if snapshot.session_epoch not in (0, session.epoch):  # repeated on the way; what it lacks is not gone
            self._metrics.agent_messages["stale_snapshots"] += 1
            return
        read = self._observed.tier_notes.read(session.node_id, snapshot.slices)
        if not session.live:
            await self._register(session, snapshot, read)
        else:
            if self._has_other_devices(session, snapshot):
                return
            # A second snapshot on a session that goes on: the node is as it was, so only its reports are news.
            await self._submit(c.ReportSlices(session.node_id, session.epoch, read))
            session.note_reports(snapshot.slices)
            await self._cuts(session, snapshot)
        for measured in snapshot.uses:
            self._observed.saw(session.node_id, measured)
        session.delta_seq = snapshot.seq
        session.awaiting_snapshot = False
        for device in snapshot.node.devices:
            self._device(session, device.uuid, device.telemetry if device.HasField("telemetry") else None)
            self._give(session, device.uuid, device.foreign_bytes, healthy=device.healthy, reason=device.health_reason)

    def _has_other_devices(self, session: Session, snapshot: agent_pb2.Snapshot) -> bool:
        """A device came, went or was partitioned anew: what is placed there is settled by a new handshake."""
        node = self._view.nodes.get(session.node_id)
        if node is None:
            return False
        spec = read_registered(snapshot.node, session.node_id)
        if (as_held(spec.devices, self._view.totals.devices), spec.cards) == (node.spec.devices, node.spec.cards):
            return False
        log.info("node %s has other devices now: its agent is asked to connect again", session.node_id)
        goodbye = agent_pb2.Goodbye(reason="DEVICES_CHANGED", reconnect_after_ms=100)
        error = SessionReplaced("the node has other devices than it registered with", hint="connect again")
        self._spawn(session.end(goodbye, error))
        return True

    async def _register(
        self, session: Session, snapshot: agent_pb2.Snapshot, reports: tuple[c.SliceReport, ...]
    ) -> None:
        spec = read_registered(snapshot.node, session.node_id)
        await self._submit(c.RegisterNode(spec, session.epoch))
        self._telemetry.put_driver(session.node_id, snapshot.node.driver_version[:128])
        for device in snapshot.node.devices:
            tiers = tuple(int(tier) for tier in device.tiers[:16])
            self._telemetry.put_device(
                device.uuid, AboutDevice(intern(device.product_name[:128]), device.pci_bus_id[:64], tiers)
            )
        await self._submit(c.ReconcileNode(session.node_id, session.epoch, reports))
        await self._cuts(session, snapshot)
        session.note_reports(snapshot.slices)
        session.go_live()

    async def _cuts(self, session: Session, snapshot: agent_pb2.Snapshot) -> None:
        """What became of orders to cut cards."""
        for card in snapshot.node.cards:
            if card.cut:
                problem = card.problem[:MAX_PROBLEM_CHARS]
                await self._submit(c.ReportCut(session.node_id, session.epoch, card.uuid, card.cut, problem))

    def _heartbeat(self, session: Session, seq: int) -> None:
        if seq != session.delta_seq and not session.awaiting_snapshot:
            self._ask_for_snapshot(session, "GAP")

    def _delta(self, session: Session, delta: agent_pb2.Delta) -> None:
        if session.awaiting_snapshot:
            return
        if delta.seq != session.delta_seq + 1:
            self._ask_for_snapshot(session, "GAP")
            return
        session.delta_seq = delta.seq
        for report in delta.devices:
            self._device(session, report.uuid, report.telemetry if report.HasField("telemetry") else None)
            for measured in report.slices:
                self._observed.saw(session.node_id, measured)
            if report.HasField("foreign_bytes") or report.HasField("healthy"):
                foreign, healthy = session.told_devices.get(report.uuid, (0, True))
                self._give(
                    session,
                    report.uuid,
                    report.foreign_bytes if report.HasField("foreign_bytes") else foreign,
                    healthy=report.healthy if report.HasField("healthy") else healthy,
                    reason=report.health_reason,
                )

    def _device(self, session: Session, uuid: str, reading: types_pb2.DeviceTelemetry | None) -> None:
        use = self._view.totals.devices.get(uuid)
        if reading is None or use is None or use.node_id != session.node_id:
            return
        self._telemetry.record(uuid, reading)
        if self._writer.planner is not None and reading.HasField("gpu_utilisation_percent"):
            self._writer.planner.device_measured(uuid, min(reading.gpu_utilisation_percent, 100) * 10)

    def _give(self, session: Session, uuid: str, foreign_bytes: int, *, healthy: bool, reason: str) -> None:
        """What a device can give, if it differs by more than the deadband from what the writer was told."""
        known = session.told_devices.get(uuid)
        if known is None:
            device = self._view.device(uuid)
            known = (device.foreign_bytes, device.healthy)
        if known[1] == healthy and not foreign_changed(known[0], foreign_bytes):
            session.told_devices[uuid] = known
            return
        session.told_devices[uuid] = (foreign_bytes, healthy)
        self._tell(
            c.ReportDevice(
                session.node_id, session.epoch, uuid, foreign_bytes, healthy, "" if healthy else reason[:256]
            )
        )

    async def _reports(self, session: Session, reports: agent_pb2.SliceReports) -> None:
        if reports.session_epoch != session.epoch or not session.live:
            self._metrics.agent_messages["stale_reports"] += 1
            return
        if len(reports.reports) > limits.MAX_SLICE_REPORTS:
            raise InvalidFieldError("reports", f"{len(reports.reports)} at once; at most {limits.MAX_SLICE_REPORTS}")
        read = self._observed.tier_notes.read(session.node_id, reports.reports)
        command = c.ReportSlices(session.node_id, session.epoch, read)
        try:
            reply = await self._accepted(command)
        except AliquotError:
            session.awaiting_snapshot = True  # when the journal is back, everybody is asked for everything
            return
        reply.add_done_callback(partial(self._reported, session, reports))

    def _reported(self, session: Session, reports: agent_pb2.SliceReports, reply: asyncio.Future[Any]) -> None:
        if reply.cancelled() or reply.exception() is not None:
            session.awaiting_snapshot = True
        elif not session.ended:
            session.note_reports(reports.reports)

    async def _submit(self, command: c.Command) -> None:
        await (await self._accepted(command))

    async def _accepted(self, command: c.Command) -> Reply:
        """Submit when there is room: not reading meanwhile is the back-pressure."""
        while True:
            try:
                return self._writer.submit(command)
            except Overloaded:
                await asyncio.sleep(0.1)

    def _tell(self, command: c.Command) -> bool:
        """Submit without waiting; whether it was accepted. What is lost is said again sooner or later."""
        try:
            self._writer.submit(command)
        except AliquotError:
            return False
        return True

    def _silent(self, node_id: str, session_epoch: int, lost: bool, reason: str) -> bool:  # noqa: FBT001 - a callback
        accepted = self._tell(c.NodeSilent(node_id, session_epoch, lost, reason))
        session = self._by_node.get(node_id)
        if accepted and lost and session is not None:
            goodbye = agent_pb2.Goodbye(reason="LOST", reconnect_after_ms=1_000)
            error = SessionReplaced(f"nothing was heard of node {node_id} for too long", hint="connect again")
            self._spawn(session.end(goodbye, error))
        return accepted

    def lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        """Mark the sessions whose agents must hear of this."""
        for node_id in nodes_to_tell(old, new):
            session = self._by_node.get(node_id)
            if session is not None and new is not None:
                session.mark(new.lease_id)

    def node_changed(self, node_id: str, node: Node | None) -> None:
        """A node that was removed has nothing more to say; one that a lost session left behind is watched."""
        self._telemetry.node_changed(node_id, node)
        session = self._by_node.get(node_id)
        if session is not None:
            session.tell_cuts(node)
        if node is None:
            self._liveness.present(node_id)
        elif node_id not in self._by_node and node.state in _WATCHED:
            self._liveness.absent(node_id, self._clock.monotonic_ms())

    def last_heard_ms(self, node_id: str) -> int:
        """When the node was last heard, on the wall clock; 0: not by this process."""
        session = self._by_node.get(node_id)
        if session is None:
            return self._telemetry.node(node_id).last_heard_ms
        return self._clock.now_ms() - (self._clock.monotonic_ms() - session.last_heard_ms)

    def sweep(self) -> None:
        """Look for silence. Once a second."""
        self._liveness.sweep(self._clock.monotonic_ms())

    def start_again(self) -> None:
        """Everybody counts as heard just now: it was us who could not hear."""
        self._liveness.start_again(self._clock.monotonic_ms())

    def set_pressure(self, factor: int) -> None:
        """Ask agents to speak `factor` times less often than configured."""
        if factor == self._intervals_factor:
            return
        self._intervals_factor = factor
        log.info("agents are asked for a heartbeat every %d ms", self._config.heartbeat_ms * factor)
        self._liveness.config = LivenessConfig(
            self._config.heartbeat_ms * factor * self._config.suspect_after_heartbeats,
            max(self._config.lost_ms, self._config.heartbeat_ms * factor * 6),
        )
        for session in self._by_node.values():
            session.say(agent_pb2.CoordinatorMessage(intervals=self._intervals()))

    async def ask_all(self, reason: str) -> None:
        """Ask every agent for a snapshot, a few hundred a second: commands of theirs may have been lost."""
        for number, session in enumerate(list(self._by_node.values())):
            if session.live:
                self._ask_for_snapshot(session, reason)
            if number % _SNAPSHOTS_PER_S == _SNAPSHOTS_PER_S - 1:
                await asyncio.sleep(1)

    async def goodbye(self) -> None:
        """End all sessions, because the coordinator stops."""
        self._closing = True
        error = ShuttingDown("this coordinator is shutting down", hint="connect again in a moment")
        goodbye = agent_pb2.Goodbye(reason="SHUTTING_DOWN", reconnect_after_ms=1_000)
        sessions = list(self._by_node.values())
        await asyncio.gather(*(session.end(goodbye, error) for session in sessions), return_exceptions=True)

    def _ask_for_snapshot(self, session: Session, reason: str) -> None:
        session.awaiting_snapshot = True
        session.told_devices.clear()
        request = agent_pb2.SnapshotRequest(reason=reason)
        session.say(agent_pb2.CoordinatorMessage(snapshot_request=request))

    def _intervals(self) -> agent_pb2.Intervals:
        factor = self._intervals_factor
        return agent_pb2.Intervals(
            heartbeat_ms=self._config.heartbeat_ms * factor, delta_min_ms=self._config.delta_min_ms * factor
        )

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _heartbeat_seq(raw: bytes) -> int:
    """The `seq` of an encoded Heartbeat message: a varint after the tag of field 1, absent when 0."""
    if len(raw) < 4 or raw[2] != 0x08:
        return 0
    seq = shift = 0
    for byte in raw[3:]:
        seq |= (byte & 0x7F) << shift
        if byte < 0x80:
            return seq
        shift += 7
    return seq
