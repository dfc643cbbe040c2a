"""All devices of a pool as columns of bytes: `Pool.watch_fleet` gives the changes, and `Fleet` what they add up to.

Devices have numbers, which mean the same in all changes of one layout. What has gone keeps its number, with state GONE.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass, field
from enum import IntEnum

UNKNOWN_USE = 255
"""In the column `use`: nobody has measured it."""
_ITEM_BYTES = 4


class FleetState(IntEnum):
    """What a device is fit for. Numbers equal those of the contract."""

    GONE = 0
    READY = 1
    CLOSED = 2
    """Cordoned, drained, or under maintenance."""
    SICK = 3
    """Takes no leases until it is well."""
    AWAY = 4
    """No agent speaks for its node yet."""
    SUSPECT = 5
    LOST = 6


@dataclass(frozen=True, slots=True)
class FleetNode:
    """Where a node's devices are in the columns."""

    node_id: str
    name: str
    pool: str
    first: int
    devices: int
    models: tuple[str, ...]
    """Of each device; a single one: all are of that model."""


@dataclass(frozen=True, slots=True)
class FleetChange:
    """Apply them in order (`Fleet.apply`)."""

    layout: int
    version: int
    """0: the rest of a snapshot follows."""
    at_ms: int
    resets: bool
    """A snapshot begins: forget what was before."""
    nodes: tuple[FleetNode, ...]
    index: bytes
    """Numbers, 4 bytes each, the lowest first; empty: those from `first` on."""
    first: int
    states: bytes
    shares: bytes
    """Leased compute in percent."""
    memory: bytes
    """Leased memory in percent."""
    use_index: bytes
    """As `index`."""
    use: bytes
    """GPU utilisation in percent; 255: unknown."""

    @property
    def is_empty(self) -> bool:
        """Whether it is but a sign of life."""
        return not (self.resets or self.nodes or self.states or self.use)


@dataclass(slots=True)
class Fleet:
    """The columns as they are now."""

    layout: int = 0
    version: int = 0
    at_ms: int = 0
    nodes: dict[str, FleetNode] = field(default_factory=dict)
    """By id, in the order of their numbers."""
    states: bytearray = field(default_factory=bytearray)
    shares: bytearray = field(default_factory=bytearray)
    memory: bytearray = field(default_factory=bytearray)
    use: bytearray = field(default_factory=bytearray)

    def __len__(self) -> int:
        return len(self.states)

    def apply(self, change: FleetChange) -> None:
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
            self.use.extend([UNKNOWN_USE] * missing)

    def _forget_gone(self, changed: array[int]) -> None:
        if not any(self.states[number] == FleetState.GONE for number in changed):
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
