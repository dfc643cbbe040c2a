"""Lengths as protobuf writes them."""

from __future__ import annotations


def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first."""
    written = bytearray()
    while number > 0x7F:
        written.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*written, number])
