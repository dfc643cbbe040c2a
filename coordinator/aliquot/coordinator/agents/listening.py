"""What agents say once they are connected: snapshots, deltas, confirmations, heartbeats.

Telemetry stays in memory; only what changes what may be granted (registration, health, foreign memory beyond a
deadband, confirmations) becomes a command.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from sys import intern

import msgspec

from aliquot.common import limits
from aliquot.common.errors import AliquotError, InvalidFieldError
from aliquot.common.names import plain_text
from aliquot.coordinator.agents.around import Around
from aliquot.coordinator.agents.session import COMMAND_BYTES, Context, Session
from aliquot.coordinator.agents.submitting import offer, submit_when_room
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.health.records import Sign
from aliquot.coordinator.core.values.errors import SessionReplaced
from aliquot.coordinator.core.values.types import DeviceSpec
from aliquot.coordinator.reading.telemetry import AboutDevice
from aliquot.coordinator.reading.totals import DeviceUse
from aliquot.coordinator.wire.agents import TEXT_CHARS_MAX, believed_reading, decode, heartbeat_seq, read_reports
from aliquot.coordinator.wire.health import HITS_MAX, RESULTS_MAX, read_copies, read_sign
from aliquot.coordinator.wire.nodes import check_room, known_tiers, read_registered
from aliquot.coordinator.writing.open_group import Reply
from aliquot.v1 import agent_pb2, types_pb2

log = logging.getLogger(__name__)

MAX_PROBLEM_CHARS = 512
_PCI_CHARS_MAX = 64
CONDITIONS_MAX = 32


class Listener:
    """See the module's docstring."""

    def __init__(self, around: Around) -> None:
        self._around = around

    async def listen(self, session: Session, context: Context) -> None:
        """Take what an agent says until its stream ends. Raises AliquotError where that is wrong."""
        clock, count = self._around.clock, self._around.metrics.agent_messages
        while not session.ended:
            raw = await context.read()
            if not isinstance(raw, bytes):
                return
            session.last_heard_ms = clock.monotonic_ms()
            if session.suspect:
                session.suspect = not offer(self._around.writer, c.NodeHeard(session.node_id, session.epoch))
            seq = heartbeat_seq(raw)
            if seq is not None:
                count["heartbeat"] += 1
                self._heartbeat(session, seq)
                continue
            message = decode(raw)
            kind = message.WhichOneof("message") or "unknown"
            count[kind] += 1
            if kind == "delta":
                self._delta(session, message.delta)
            elif kind == "reports":
                await self._reports(session, message.reports)
            elif kind == "snapshot":
                await self._snapshot(session, message.snapshot)
            elif kind == "served":
                for use in message.served.uses:
                    self._around.observed.saw_served(session.node_id, use)
            elif kind == "renewal":
                self._around.certifier.renew(session, message.renewal)
            elif kind == "heartbeat":  # encoded in a way that the look above does not know
                self._heartbeat(session, message.heartbeat.seq)
            session.pace.spend(len(raw))
            if (wait_s := session.pace.wait_s(clock.monotonic_ms())) > 0:
                count["held_back"] += 1
                await asyncio.sleep(wait_s)

    async def _snapshot(self, session: Session, snapshot: agent_pb2.Snapshot) -> None:
        if snapshot.session_epoch not in (0, session.epoch):  # repeated on the way; what it lacks is not gone
            self._around.metrics.agent_messages["stale_snapshots"] += 1
            return
        read = self._read(session, snapshot.slices)
        self._around.observed.tier_notes.note(session.node_id, snapshot.slices)
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
            self._around.observed.saw(session.node_id, session.epoch, measured)
            self._around.activity.saw(session.node_id, measured)
        session.delta_seq = snapshot.seq
        session.awaiting_snapshot = False
        for device in snapshot.node.devices:
            self._device(session, device.uuid, device.telemetry if device.HasField("telemetry") else None)
            healthy, reason, sign = device.healthy, device.health_reason, _sign_of(device)
            self._give(session, device.uuid, device.foreign_bytes, healthy=healthy, reason=reason, sign=sign)
        self._around.telemetry.put_conditions(
            session.node_id,
            tuple(
                (plain_text(each.subject, limits.MAX_NAME_CHARS), plain_text(each.text, TEXT_CHARS_MAX))
                for each in snapshot.node.conditions[:CONDITIONS_MAX]
            ),
        )
        await self._care(session, snapshot)  # after what the devices say now: that they are well counts

    def _has_other_devices(self, session: Session, snapshot: agent_pb2.Snapshot) -> bool:
        """A device came, went or was partitioned anew: what is placed there is settled by a new handshake."""
        node = self._around.view.nodes.get(session.node_id)
        if node is None:
            return False
        spec = read_registered(snapshot.node, session.node_id)
        if (as_held(spec.devices, self._around.view.totals.devices), spec.cards) == (
            node.spec.devices,
            node.spec.cards,
        ):
            return False
        log.info("node %s has other devices now: its agent is asked to connect again", session.node_id)
        goodbye = agent_pb2.Goodbye(reason="DEVICES_CHANGED", reconnect_after_ms=100)
        error = SessionReplaced("the node has other devices than it registered with", hint="connect again")
        self._around.roster.dismiss(session, goodbye, error)
        return True

    async def _register(
        self, session: Session, snapshot: agent_pb2.Snapshot, reports: tuple[c.SliceReport, ...]
    ) -> None:
        spec = read_registered(snapshot.node, session.node_id)
        check_room(self._around.view, [spec.node_id])
        await self._submit(c.RegisterNode(spec, session.epoch))
        self._around.telemetry.put_driver(
            session.node_id, plain_text(snapshot.node.driver_version, limits.MAX_NAME_CHARS)
        )
        for device in snapshot.node.devices:
            tiers = known_tiers(device.tiers)
            self._around.telemetry.put_device(
                device.uuid,
                AboutDevice(
                    intern(plain_text(device.product_name, limits.MAX_NAME_CHARS)),
                    plain_text(device.pci_bus_id, _PCI_CHARS_MAX),
                    tiers,
                ),
            )
        await self._submit(c.ReconcileNode(session.node_id, session.epoch, reports))
        await self._cuts(session, snapshot)
        session.note_reports(snapshot.slices)
        session.go_live()

    async def _cuts(self, session: Session, snapshot: agent_pb2.Snapshot) -> None:
        """What became of orders to cut cards."""
        for card in snapshot.node.cards:
            if card.cut:
                problem = plain_text(card.problem, MAX_PROBLEM_CHARS)
                await self._submit(c.ReportCut(session.node_id, session.epoch, card.uuid, card.cut, problem))

    async def _care(self, session: Session, snapshot: agent_pb2.Snapshot) -> None:
        """What became of orders about sick cards."""
        for result in snapshot.node.care[:RESULTS_MAX]:
            problem, story = (plain_text(text, TEXT_CHARS_MAX) for text in (result.problem, result.story))
            copies = read_copies(result)
            await self._submit(c.ReportCare(session.node_id, session.epoch, result.number, problem, story, copies))

    def _heartbeat(self, session: Session, seq: int) -> None:
        if seq != session.delta_seq and not session.awaiting_snapshot:
            session.ask_for_snapshot("GAP")

    def _delta(self, session: Session, delta: agent_pb2.Delta) -> None:
        if session.awaiting_snapshot:
            return
        if delta.seq != session.delta_seq + 1:
            session.ask_for_snapshot("GAP")
            return
        session.delta_seq = delta.seq
        for report in delta.devices:
            self._device(session, report.uuid, report.telemetry if report.HasField("telemetry") else None)
            for measured in report.slices:
                self._around.observed.saw(session.node_id, session.epoch, measured)
                self._around.activity.saw(session.node_id, measured)
            if report.HasField("foreign_bytes") or report.HasField("healthy"):
                foreign, healthy, sign = session.told_devices.get(report.uuid, (0, True, None))
                if report.HasField("healthy"):
                    healthy, sign = report.healthy, _sign_of(report)
                foreign = report.foreign_bytes if report.HasField("foreign_bytes") else foreign
                self._give(session, report.uuid, foreign, healthy=healthy, reason=report.health_reason, sign=sign)

    def _device(self, session: Session, uuid: str, reading: types_pb2.DeviceTelemetry | None) -> None:
        use = self._around.view.totals.devices.get(uuid)
        if reading is None or use is None or use.node_id != session.node_id:
            return
        reading = believed_reading(reading, use.spec.memory_total_bytes)
        self._around.telemetry.record(uuid, reading)
        decider = self._around.writer.decider
        if decider is not None and reading.HasField("gpu_utilisation_percent"):
            decider.device_measured(uuid, reading.gpu_utilisation_percent * 10)

    def _give(
        self, session: Session, uuid: str, foreign_bytes: int, *, healthy: bool, reason: str, sign: Sign | None
    ) -> None:
        """What a device can give, if it differs by more than the deadband from what the writer was told."""
        use = self._around.view.totals.devices.get(uuid)
        if use is None or use.node_id != session.node_id:
            return
        foreign_bytes = min(foreign_bytes, use.spec.memory_total_bytes)
        known = session.told_devices.get(uuid)
        if known is None:
            device = self._around.view.device(uuid)
            known = (device.foreign_bytes, device.healthy, device.sign)
        if (known[1], _kind(known[2])) == (healthy, _kind(sign)) and not foreign_changed(known[0], foreign_bytes):
            session.told_devices[uuid] = known
            return
        session.told_devices[uuid] = (foreign_bytes, healthy, sign)
        why = "" if healthy else plain_text(reason, TEXT_CHARS_MAX)
        session.pace.spend(COMMAND_BYTES)
        command = c.ReportDevice(session.node_id, session.epoch, uuid, foreign_bytes, healthy, why)
        if sign is not None:
            told = {"cause": sign.cause, "severity": sign.severity, "scope": sign.scope, "remedy": sign.remedy}
            command = msgspec.structs.replace(command, **told)
        offer(self._around.writer, command)

    async def _reports(self, session: Session, reports: agent_pb2.SliceReports) -> None:
        if reports.session_epoch != session.epoch or not session.live:
            self._around.metrics.agent_messages["stale_reports"] += 1
            return
        if len(reports.reports) > limits.MAX_SLICE_REPORTS:
            raise InvalidFieldError("reports", f"{len(reports.reports)} at once; at most {limits.MAX_SLICE_REPORTS}")
        for hit in reports.hits[:HITS_MAX]:
            text = plain_text(hit.text, TEXT_CHARS_MAX)
            said = c.ReportHit(session.node_id, session.epoch, hit.device_uuid, hit.lease_id, text, hit.suspicious)
            offer(self._around.writer, said)
        self._around.overtime.heard(session, reports.overtime)
        self._around.observed.tier_notes.note(session.node_id, reports.reports)
        if not reports.reports:
            return
        command = c.ReportSlices(session.node_id, session.epoch, self._read(session, reports.reports))
        try:
            reply = await submit_when_room(self._around.writer, command)
        except AliquotError:
            session.awaiting_snapshot = True  # when the journal is back, everybody is asked for everything
            return
        reply.add_done_callback(partial(self._reported, session, reports))

    def _read(self, session: Session, reports: Iterable[agent_pb2.SliceReport]) -> tuple[c.SliceReport, ...]:
        return read_reports(reports, partial(self._around.observed.reported, session.node_id, session.epoch))

    def _reported(self, session: Session, reports: agent_pb2.SliceReports, reply: Reply) -> None:
        if reply.cancelled() or reply.exception() is not None:
            session.awaiting_snapshot = True
        elif not session.ended:
            session.note_reports(reports.reports)

    async def _submit(self, command: c.Command[None]) -> None:
        await (await submit_when_room(self._around.writer, command))


def _sign_of(message: types_pb2.Device | agent_pb2.DeviceReport) -> Sign | None:
    """Why a device is not well; None: it is, or its agent does not say."""
    if message.healthy or not message.HasField("sign") or not message.sign.cause:
        return None
    return read_sign(message.sign, message.health_reason)


def _kind(sign: Sign | None) -> tuple[object, ...]:
    """What of a sign is worth a fact when it changes."""
    return () if sign is None else (sign.cause, sign.severity, sign.scope, sign.remedy)


FOREIGN_DEADBAND_BYTES = 16 << 20


def as_held(devices: Iterable[DeviceSpec], uses: Mapping[str, DeviceUse]) -> tuple[DeviceSpec, ...]:
    """Devices as a node has them on the books that says so: none is smaller there than what leases hold of it."""
    return tuple(
        msgspec.structs.replace(device, compute_milli=max(device.compute_milli, use.share_milli))
        if device.mig_profile and (use := uses.get(device.uuid)) is not None
        else device
        for device in devices
    )


def foreign_changed(known_bytes: int, now_bytes: int) -> bool:
    """Whether foreign memory has changed enough to be journalled: by the deadband, or from or to nothing."""
    if known_bytes == now_bytes:
        return False
    return known_bytes == 0 or now_bytes == 0 or abs(known_bytes - now_bytes) >= FOREIGN_DEADBAND_BYTES
