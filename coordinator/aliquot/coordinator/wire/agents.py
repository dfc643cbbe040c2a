"""What agents send, as far as it may be believed: bounded before it is decoded, and numbers cut to what can be.

An agent may be broken, or somebody else. Everything that it says passes here or, with the description of its node,
through `nodes`: nothing behind them meets a number that no device has, and no message costs more than its kind is
worth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

from google.protobuf.message import DecodeError

from aliquot.common import limits
from aliquot.common.errors import InvalidFieldError
from aliquot.common.tiers import Tier
from aliquot.coordinator.core.commands import ReportStatus, SliceReport
from aliquot.v1 import agent_pb2, types_pb2

_HEARTBEAT_TAG: Final = 0x22
"""First byte of an AgentMessage that holds a Heartbeat (field 4, length-delimited)."""
_HEARTBEAT_BYTES_MAX: Final = 13
"""Tag, length, tag, and the ten bytes of the longest varint."""
_VARINT_BYTES_MAX: Final = 10
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
_SMALL_BYTES: Final = 64 * limits.KIB
"""What is no larger can't hold so many parts that it matters."""
_PARTS_MAX: Final = 40_000
"""Messages and repeated texts within one message: a decoded part may take a hundred times what an empty one is sent as.
"""
_PERCENT: Final = 100
_TIME_MS_MAX: Final = (1 << 53) - 1
_READING_MAX: Mapping[str, int] = {
    "gpu_utilisation_percent": _PERCENT,
    "memory_utilisation_percent": _PERCENT,
    "sampled_ms": _TIME_MS_MAX,
}
"""Of what has another bound than the device's memory. The rest has 32 bits."""
_READING_BYTES: Final = ("memory_used_bytes", "unattributed_bytes")
_REASON_CHARS_MAX: Final = 64
_TEXT_CHARS_MAX: Final = 256
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
    seq, end = _varint(raw, 3)
    return seq if end == size and seq < 1 << 64 else None


def decode(raw: bytes) -> agent_pb2.AgentMessage:
    """A message of an agent. Raises InvalidFieldError where it can't be decoded, or is more than its kind may be."""
    number = raw[0] >> 3 if raw else 0
    most = _BYTES_MAX.get(number, _OTHER_BYTES_MAX)
    if len(raw) > most:
        raise InvalidFieldError("message", f"{len(raw)} bytes; at most {most} of this kind are allowed")
    try:
        if len(raw) > _SMALL_BYTES:
            _count_parts(raw, 0, len(raw), agent_pb2.AgentMessage.DESCRIPTOR, 0)
        return agent_pb2.AgentMessage.FromString(raw)
    except DecodeError:
        raise _undecodable() from None


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


def read_reports(reports: Iterable[agent_pb2.SliceReport]) -> tuple[SliceReport, ...]:
    """Confirmations as the core takes them. One with a status that nobody knows says nothing and is left out."""
    return tuple(
        SliceReport(
            slice_id=report.slice_id,
            lease_epoch=report.lease_epoch,
            status=_STATUSES[report.status],
            tier=report.tier if report.tier in _TIERS else 0,
            reason=report.reason[:_REASON_CHARS_MAX],
            detail=report.detail[:_TEXT_CHARS_MAX],
            endpoint=report.endpoint[:_TEXT_CHARS_MAX],
        )
        for report in reports
        if report.status in _STATUSES
    )


# -- looking at a message without decoding it


@cache
def _parts(descriptor: Any) -> dict[int, Any]:  # noqa: ANN401 - of either implementation of protobuf
    """The fields that make parts: by number, the descriptor of the messages in them, or None for texts."""
    return {
        field.number: field.message_type
        for field in descriptor.fields
        if field.message_type is not None or (field.is_repeated and field.type in (field.TYPE_STRING, field.TYPE_BYTES))
    }


def _count_parts(raw: bytes, at: int, end: int, descriptor: Any, count: int) -> int:  # noqa: ANN401
    """How many parts there are, with those counted before. Raises InvalidFieldError as soon as there are too many,
    and for what can't be decoded.
    """
    parts = _parts(descriptor)
    while at < end:
        tag, at = _varint(raw, at)
        wire_type = tag & 7
        if wire_type == 0:
            _, at = _varint(raw, at)
        elif wire_type == 1:
            at += 8
        elif wire_type == 5:
            at += 4
        elif wire_type == 2:
            size, at = _varint(raw, at)
            if at + size > end:
                raise _undecodable()
            if tag >> 3 in parts:
                count += 1
                if count > _PARTS_MAX:
                    raise InvalidFieldError("message", f"more than {_PARTS_MAX} parts")
                inner = parts[tag >> 3]
                if inner is not None:
                    count = _count_parts(raw, at, at + size, inner, count)
            at += size
        else:
            raise _undecodable()  # a group, which the contract has none of
    return count


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    """A varint, and where it ends. Raises InvalidFieldError beyond ten bytes, and where it is cut off."""
    value = 0
    for number, byte in enumerate(raw[at : at + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return value, at + number + 1
    raise _undecodable()


def _undecodable() -> InvalidFieldError:
    return InvalidFieldError("message", "can't be decoded")
