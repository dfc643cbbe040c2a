"""The columns of the fleet as somebody keeps them who takes every event: what they must add up to."""

from __future__ import annotations

import sys
from array import array
from base64 import b64decode
from dataclasses import dataclass, field
from io import BytesIO

from google.protobuf.proto import parse_length_prefixed

from aliquot.v1 import pool_pb2


@dataclass(slots=True)
class Fleet:
    """The columns as they are now."""

    layout: int = 0
    version: int = 0
    at_ms: int = 0
    nodes: dict[str, pool_pb2.FleetNode] = field(default_factory=dict)
    """By id, in the order of their numbers."""
    states: bytearray = field(default_factory=bytearray)
    shares: bytearray = field(default_factory=bytearray)
    memory: bytearray = field(default_factory=bytearray)
    use: bytearray = field(default_factory=bytearray)

    @property
    def id(self) -> str:
        """By which the console goes on from here."""
        return f"{self.layout}.{self.version}"

    def __len__(self) -> int:
        return len(self.states)

    def apply(self, change: pool_pb2.FleetEvent) -> None:
        """Put down what has changed."""
        if change.resets:
            self.nodes.clear()
            for column in (self.states, self.shares, self.memory, self.use):
                column.clear()
        self.layout, self.version, self.at_ms = change.layout, change.version or self.version, change.at_ms
        for node in change.nodes:
            # What is at the end of the numbering comes last, whether it was there before or not.
            if (known := self.nodes.get(node.node_id)) is not None and known.first != node.first:
                del self.nodes[node.node_id]
            self.nodes[node.node_id] = node
            self._grow(node.first + node.devices)
        if change.index:
            for place, number in enumerate(numbers(change.index)):
                self.states[number] = change.states[place]
                self.shares[number] = change.shares[place]
                self.memory[number] = change.memory[place]
        elif change.states:
            self._grow(change.first + len(change.states))
            part = slice(change.first, change.first + len(change.states))
            self.states[part], self.shares[part], self.memory[part] = change.states, change.shares, change.memory
            self.use[part] = change.use
        for place, number in enumerate(numbers(change.use_index)):
            self.use[number] = change.use[place]
        if change.index:
            self._forget_gone(numbers(change.index))

    def _grow(self, size: int) -> None:
        missing = size - len(self.states)
        if missing > 0:
            for column in (self.states, self.shares, self.memory):
                column.extend(bytes(missing))
            self.use.extend([255] * missing)

    def _forget_gone(self, changed: array[int]) -> None:
        if not any(self.states[number] == pool_pb2.FLEET_STATE_GONE for number in changed):
            return
        for node in list(self.nodes.values()):
            devices = self.states[node.first : node.first + node.devices]
            if node.devices and not any(devices):
                del self.nodes[node.node_id]


def numbers(packed: bytes) -> array[int]:
    """An index of a change as numbers."""
    read = array("I", packed)
    if sys.byteorder == "big":
        read.byteswap()
    return read


def read_snapshot(body: bytes) -> Fleet:
    """What the console answers to `GET /fleet`."""
    fleet, stream = Fleet(), BytesIO(body)
    while stream.tell() < len(body):
        fleet.apply(parse_length_prefixed(pool_pb2.FleetEvent, stream))
    return fleet


def read_change(data: dict[str, str]) -> pool_pb2.FleetEvent:
    """What is in an event `change` of the console's."""
    return pool_pb2.FleetEvent.FromString(b64decode(data["event"]))
