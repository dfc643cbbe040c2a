"""Framing of the node-local protocol: 4 bytes of length, big-endian, then one protobuf message of at most 1 MiB."""

from __future__ import annotations

import asyncio
import struct

from google.protobuf.message import DecodeError

from aliquot.common.errors import AliquotError
from aliquot.common.limits import MAX_LOCAL_MESSAGE_BYTES
from aliquot.v1 import local_pb2

HEADER = struct.Struct(">I")


class LocalProtocolError(AliquotError):
    """What came is not a message of this protocol. The connection ends: nobody knows where the next one begins."""

    reason = "MALFORMED"


def encode(response: local_pb2.LocalResponse) -> bytes:
    """A framed response."""
    body = response.SerializeToString()
    return HEADER.pack(len(body)) + body


async def read_request(reader: asyncio.StreamReader, idle_s: float, body_s: float) -> local_pb2.LocalRequest | None:
    """The next request; None when the peer is done. `idle_s`: how long a connection may be silent between
    requests; `body_s`: how long one request may take to arrive.

    Raises `LocalProtocolError` and `TimeoutError`.
    """
    try:
        async with asyncio.timeout(idle_s):
            first = await reader.readexactly(1)
    except asyncio.IncompleteReadError:
        return None
    async with asyncio.timeout(body_s):
        try:
            (length,) = HEADER.unpack(first + await reader.readexactly(HEADER.size - 1))
            if length > MAX_LOCAL_MESSAGE_BYTES:
                raise LocalProtocolError(f"a message of {length} bytes; at most {MAX_LOCAL_MESSAGE_BYTES} are read")
            body = await reader.readexactly(length)
        except asyncio.IncompleteReadError as error:
            raise LocalProtocolError("the message was cut off") from error
    try:
        return local_pb2.LocalRequest.FromString(body)
    except DecodeError as error:
        raise LocalProtocolError(f"no request: {error}") from error
