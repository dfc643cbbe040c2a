"""What agents send, as far as it may be believed: bounded before it is decoded, and numbers cut to what can be.

An agent may be broken, or somebody else. Everything that it says passes here or, with the description of its node,
through `nodes`: nothing behind them meets a number that no device has, and no message costs more than its kind is
worth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from google.protobuf.message import DecodeError

from aliquot.common import limits
from aliquot.common.errors import InvalidFieldError
from aliquot.common.names import plain_text
from aliquot.common.tiers import Tier
from aliquot.coordinator.core.commands import ReportStatus, SliceReport
from aliquot.coordinator.wire.parts import AGENTS_PARTS_MAX, check_parts, read_varint, undecodable
from aliquot.v1 import agent_pb2, types_pb2

_HEARTBEAT_TAG: Final = 0x22
"""First byte of an AgentMessage that holds a Heartbeat (field 4, length-delimited)."""
_HEARTBEAT_BYTES_MAX: Final = 13
"""Tag, length, tag, and the ten bytes of the longest varint."""
_BYTES_MAX: Mapping[int, int] = {
    agent_pb2.AgentMessage.HELLO_FIELD_NUMBER: 4 * limits.KIB,
    agent_pb2.AgentMessage.SNAPSHOT_FIELD_NUMBER: limits.MAX_MESSAGE_BYTES,
    agent_pb2.AgentMessage.DELTA_FIELD_NUMBER: limits.MAX_MESSAGE_BYTES,
    agent_pb2.AgentMessage.HEARTBEAT_FIELD_NUMBER: limits.KIB,
    agent_pb2.AgentMessage.REPORTS_FIELD_NUMBER: limits.MAX_MESSAGE_BYTES,
}
"""Of a message, by the field that it begins with."""
_OTHER_BYTES_MAX: Final = 64 * limits.KIB
"""Of kinds that only a newer agent knows."""
_PERCENT: Final = 100
_TIME_MS_MAX: Final = (1 << 53) - 1
_READING_MAX: Mapping[str, int] = {
    "gpu_utilisation_percent": _PERCENT,
    "memory_utilisation_percent": _PERCENT,
    "activity_percent": _PERCENT,
    "sampled_ms": _TIME_MS_MAX,
}
"""Of what has another bound than the device's memory. The rest has 32 bits."""
_READING_BYTES: Final = ("memory_used_bytes", "unattributed_bytes")
_REASON_CHARS_MAX: Final = 64
TEXT_CHARS_MAX: Final = 256
_TIERS = frozenset(map(int, Tier))
_STATUSES = {status.value: status for status in ReportStatus}


def heartbeat_seq(raw: bytes) -> int | None:
    """The `seq` of a message that is a Heartbeat and no more, without decoding it; None: decode it.

    Raises InvalidFieldError.
    """
    size = len(raw)
    if not 2 <= size <= _HEARTBEAT_BYTES_MAX or raw[0] != _HEARTBEAT_TAG or raw[1] != size - 2:
        return None
    if size == 2:
        return 0
    if raw[2] != 0x08:
        return None
    seq, end = read_varint(raw, 3)
    return seq if end == size and seq < 1 << 64 else None


def decode(raw: bytes) -> agent_pb2.AgentMessage:
    """A message of an agent. Raises InvalidFieldError where it can't be decoded, or is more than its kind may be."""
    number = raw[0] >> 3 if raw else 0
    most = _BYTES_MAX.get(number, _OTHER_BYTES_MAX)
    if len(raw) > most:
        raise InvalidFieldError("message", f"{len(raw)} bytes; at most {most} of this kind are allowed")
    try:
        check_parts(raw, agent_pb2.AgentMessage.DESCRIPTOR, AGENTS_PARTS_MAX)
        return agent_pb2.AgentMessage.FromString(raw)
    except DecodeError:
        raise undecodable() from None


def believed_reading(reading: types_pb2.DeviceTelemetry, memory_total_bytes: int) -> types_pb2.DeviceTelemetry:
    """A reading of a device that has so much memory."""
    believed = types_pb2.DeviceTelemetry()
    believed.CopyFrom(reading)
    for name in _READING_BYTES:
        if getattr(believed, name) > memory_total_bytes:
            setattr(believed, name, memory_total_bytes)
    for name, most in _READING_MAX.items():
        if getattr(believed, name) > most:
            setattr(believed, name, most)
    return believed


def read_reports(
    reports: Iterable[agent_pb2.SliceReport], drawn_mj: Callable[[agent_pb2.SliceReport], int | None]
) -> tuple[SliceReport, ...]:
    """Confirmations as the core takes them. One with a status that nobody knows, or of a slice that none of ours can
    be, says nothing and is left out. `drawn_mj`: the energy that is known of a slice.
    """
    return tuple(
        SliceReport(
            slice_id=report.slice_id,
            lease_epoch=report.lease_epoch,
            status=_STATUSES[report.status],
            tier=report.tier if report.tier in _TIERS else 0,
            reason=plain_text(report.reason, _REASON_CHARS_MAX),
            detail=plain_text(report.detail, TEXT_CHARS_MAX),
            endpoint=plain_text(report.endpoint, TEXT_CHARS_MAX),
            energy_mj=drawn_mj(report),
        )
        for report in reports
        if report.status in _STATUSES and len(report.slice_id) <= limits.MAX_NAME_CHARS
    )
