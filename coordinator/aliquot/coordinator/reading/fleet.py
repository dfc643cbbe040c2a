"""All devices as columns of bytes, for those who look at the whole pool: a snapshot once, then what changes.

What changes is gathered, and encoded once for all who watch: each further one costs a write. Nothing is done while
nobody watches, but for noting what has changed since somebody did. A watcher that is behind what is kept gets a
snapshot again, so nobody's slowness costs memory.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from itertools import islice

from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.core.books.nodes import Node
from aliquot.coordinator.core.values.types import NodeSpec, NodeState
from aliquot.coordinator.errors import Overloaded
from aliquot.coordinator.reading.outbox import Follower
from aliquot.coordinator.reading.telemetry import Telemetry
from aliquot.coordinator.reading.view import View
from aliquot.v1 import pool_pb2

TICK_S = 0.25
WATCHERS_MAX = 256
KEPT_EVENTS, KEPT_BYTES = 256, 8 << 20
"""Of what was told, for those who are late."""
_BACKLOG_TICK_S = 0.005
_NODES_PER_TICK, _DEVICES_PER_TICK = 400, 4_000
"""Some milliseconds of the event loop."""
_USE_EVERY_TICKS = 16
_USE_POINTS = 5
UNKNOWN_USE = 255
_PART_DEVICES = 32_768
_SPARSE_AT = 16_384
"""A layout is made anew when so many numbers, and half of all, mean devices that are gone."""


@dataclass(frozen=True, slots=True)
class _Placed:
    """A node in the numbering."""

    spec: NodeSpec
    first: int
    encoded: bytes
    """As an entry of an event's `nodes`."""

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + len(self.spec.devices))


@dataclass(frozen=True, slots=True)
class _Told:
    version: int
    message: bytes


class Fleet(Follower):
    """See the module's docstring."""

    def __init__(self, view: View, telemetry: Telemetry) -> None:
        self._view = view
        self._telemetry = telemetry
        self._began = False
        self._watchers = 0
        self.version = 0
        """0: the numbering is being made."""
        self._renumbered = 0
        self._placed: dict[str, _Placed] = {}
        self._uuids: list[str] = []
        self._node_of: list[str] = []
        self._number_of: dict[str, int] = {}
        self._states, self._shares, self._memory, self._use = (bytearray() for _ in range(4))
        self._dirty_nodes: dict[str, None] = {}
        self._dirty: dict[str, None] = {}
        self._use_from = 0
        self._told: deque[_Told] = deque()
        self._told_bytes = 0
        self._snapshot: tuple[int, tuple[bytes, ...]] | None = None
        self._timer: asyncio.Handle | None = None
        self._bell: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        """How many watch."""
        return self._watchers

    @property
    def layout(self) -> int:
        """Which numbering this is: no other leader has had one of this number."""
        return self._view.leader_epoch << 20 | self._renumbered

    # -- what has changed

    def lease_changed(self, old: Lease | None, new: Lease | None) -> None:
        """See `Follower.lease_changed`."""
        if self._began and (old is None or new is None or old.slices is not new.slices):
            for lease in (old, new):
                for piece in lease.slices if lease is not None else ():
                    self._dirty[piece.plan.device_uuid] = None

    def node_changed(self, node_id: str, node: Node | None) -> None:
        """See `Follower.node_changed`."""
        if self._began:
            self._dirty_nodes[node_id] = None

    def device_changed(self, uuid: str) -> None:
        """See `Follower.device_changed`."""
        if self._began:
            self._dirty[uuid] = None

    # -- watching

    async def follow(self, layout: int, version: int, bookmark_s: float) -> AsyncGenerator[bytes, None]:
        """Encoded events, without end, from there on if that can be; a bookmark when there was none for so long.

        Raises Overloaded.
        """
        if self._watchers >= WATCHERS_MAX:
            raise Overloaded(f"{WATCHERS_MAX} watch the fleet, which is the bound", retry_after_ms=5_000)
        self._watchers += 1
        try:
            self._begin()
            while True:
                while not self.version:
                    await self._rung(bookmark_s)  # nobody is shown half a pool
                if layout != self.layout or not self._keeps(version):
                    layout, (version, parts) = self.layout, self._whole()
                    for part in parts:
                        yield part
                    continue
                for told in [each for each in self._told if each.version > version]:
                    yield told.message
                    version = told.version
                if version == self.version and not await self._rung(bookmark_s):
                    yield self._event(version=self.version).SerializeToString()
        finally:
            self._watchers -= 1

    def _keeps(self, version: int) -> bool:
        """Whether everything after this version is still there to be told."""
        if not version or version > self.version:
            return False
        return version == self.version or (bool(self._told) and self._told[0].version <= version + 1)

    async def _rung(self, timeout_s: float) -> bool:
        """Wait until there is more to tell; false: there was not, for so long."""
        if self._bell is None:
            self._bell = asyncio.get_running_loop().create_future()
        done, _ = await asyncio.wait([self._bell], timeout=timeout_s)
        return bool(done)

    def _ring(self) -> None:
        if self._bell is not None:
            self._bell.set_result(None)
            self._bell = None

    # -- gathering

    def _begin(self) -> None:
        if not self._began:
            self._began = True
            self._dirty_nodes = dict.fromkeys(self._view.node_ids())
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self._watchers:
            return  # what changes from now on is noted, and looked at when somebody watches again
        try:
            self._gather()
        finally:
            backlog = bool(self._dirty_nodes) or len(self._dirty) > _DEVICES_PER_TICK
            delay_s = _BACKLOG_TICK_S if backlog else TICK_S
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _gather(self) -> None:
        if len(self._uuids) - len(self._number_of) > max(_SPARSE_AT, len(self._number_of)):
            self._renumber()
        changed: dict[int, None] = {}
        added: list[_Placed] = []
        for node_id in _take(self._dirty_nodes, _NODES_PER_TICK):
            self._look_at_node(node_id, changed, added)
        for uuid in _take(self._dirty, _DEVICES_PER_TICK):
            number = self._number_of.get(uuid)
            if number is not None and self._look_at(number):
                changed[number] = None
        if not self.version and self._dirty_nodes:
            return
        busier = self._look_at_use()
        if changed or added or busier or not self.version:
            self._tell(sorted(changed), added, busier)

    def _look_at_node(self, node_id: str, changed: dict[int, None], added: list[_Placed]) -> None:
        node, placed = self._view.nodes.get(node_id), self._placed.get(node_id)
        if placed is not None and (node is None or not _same_devices(node.spec, placed.spec)):
            for number in placed.numbers:
                self._clear(number)
                changed[number] = None
            del self._placed[node_id]
            placed = None
        if node is None:
            return
        if placed is None or (placed.spec.name, placed.spec.pool) != (node.spec.name, node.spec.pool):
            first = len(self._uuids) if placed is None else placed.first
            if placed is None:
                self._number(node.spec)
            self._placed[node_id] = _Placed(node.spec, first, _entry(node.spec, first))
            added.append(self._placed[node_id])
        changed |= dict.fromkeys(number for number in self._placed[node_id].numbers if self._look_at(number))

    def _number(self, spec: NodeSpec) -> None:
        for device in spec.devices:
            self._number_of[device.uuid] = len(self._uuids)
            self._uuids.append(device.uuid)
            self._node_of.append(spec.node_id)
        for column, unknown in ((self._states, 0), (self._shares, 0), (self._memory, 0), (self._use, UNKNOWN_USE)):
            column.extend([unknown] * len(spec.devices))

    def _clear(self, number: int) -> None:
        self._states[number] = self._shares[number] = self._memory[number] = 0
        self._use[number] = UNKNOWN_USE
        if self._number_of.get(self._uuids[number]) == number:  # it may be another node's by now
            del self._number_of[self._uuids[number]]

    def _look_at(self, number: int) -> bool:
        """Put down what is so of a device; whether that is new."""
        uuid = self._uuids[number]
        node, use = self._view.nodes.get(self._node_of[number]), self._view.totals.devices.get(uuid)
        if node is None or use is None:
            return False  # its node is looked at next
        state = _state_of(node, usable=self._view.device(uuid).usable)
        share = _percent(use.share_milli, use.spec.compute_milli)
        memory = _percent(use.memory_bytes, use.spec.leasable_bytes)
        if (state, share, memory) == (self._states[number], self._shares[number], self._memory[number]):
            return False
        self._states[number], self._shares[number], self._memory[number] = state, share, memory
        return True

    def _look_at_use(self) -> list[int]:
        """A part of all devices in each turn. Returns those that are busier or idler than was told."""
        count = len(self._uuids)
        upto = min(count, self._use_from + -(-count // _USE_EVERY_TICKS))
        found = []
        utilisation, told = self._telemetry.utilisation, self._use
        for number in range(self._use_from, upto):
            if not self._states[number]:
                continue
            measured = utilisation(self._uuids[number])
            now, before = UNKNOWN_USE if measured is None else min(measured, 100), told[number]
            if now != before and (abs(now - before) >= _USE_POINTS or not now or not before):
                told[number] = now
                found.append(number)
        self._use_from = 0 if upto >= count else upto
        return found

    def _renumber(self) -> None:
        """From here on numbers mean other devices, and everybody gets a snapshot."""
        self._renumbered += 1
        self.version = 0
        self._placed.clear()
        self._uuids.clear()
        self._node_of.clear()
        self._number_of.clear()
        for column in (self._states, self._shares, self._memory, self._use):
            column.clear()
        self._told.clear()
        self._told_bytes = self._use_from = 0
        self._snapshot = None
        self._dirty.clear()
        self._dirty_nodes = dict.fromkeys(self._view.node_ids())

    # -- telling

    def _tell(self, changed: list[int], added: list[_Placed], busier: list[int]) -> None:
        self.version += 1
        event = self._event(
            version=self.version,
            index=_numbers(changed),
            states=bytes(map(self._states.__getitem__, changed)),
            shares=bytes(map(self._shares.__getitem__, changed)),
            memory=bytes(map(self._memory.__getitem__, changed)),
            use_index=_numbers(busier),
            use=bytes(map(self._use.__getitem__, busier)),
        )
        message = event.SerializeToString() + b"".join(placed.encoded for placed in added)
        self._told.append(_Told(self.version, message))
        self._told_bytes += len(message)
        while len(self._told) > KEPT_EVENTS or (self._told_bytes > KEPT_BYTES and len(self._told) > 1):
            self._told_bytes -= len(self._told.popleft().message)
        self._ring()

    def _whole(self) -> tuple[int, tuple[bytes, ...]]:
        """A snapshot, in messages of ordinary size, and its version. One that was made lately will do."""
        if self._snapshot is None or not self._keeps(self._snapshot[0]):
            parts: list[bytes] = []
            nodes: list[bytes] = []
            first = 0
            for placed in self._placed.values():
                if placed.first >= first + _PART_DEVICES:
                    parts.append(self._part(first, placed.first, nodes))
                    first, nodes = placed.first, []
                nodes.append(placed.encoded)
            parts.append(self._part(first, len(self._uuids), nodes, version=self.version))
            self._snapshot = (self.version, tuple(parts))
        return self._snapshot

    def _part(self, first: int, upto: int, nodes: Iterable[bytes], version: int = 0) -> bytes:
        event = self._event(
            version=version,
            resets=not first,
            first=first,
            states=bytes(self._states[first:upto]),
            shares=bytes(self._shares[first:upto]),
            memory=bytes(self._memory[first:upto]),
            use=bytes(self._use[first:upto]),
        )
        return event.SerializeToString() + b"".join(nodes)

    def _event(self, **fields: object) -> pool_pb2.FleetEvent:
        return pool_pb2.FleetEvent(layout=self.layout, at_ms=self._view.at_ms, **fields)  # type: ignore[arg-type]


def _take(noted: dict[str, None], most: int) -> list[str]:
    taken = list(islice(noted, most))
    for each in taken:
        del noted[each]
    return taken


def _same_devices(one: NodeSpec, other: NodeSpec) -> bool:
    return one is other or [(device.uuid, device.model) for device in one.devices] == [
        (device.uuid, device.model) for device in other.devices
    ]


def _entry(spec: NodeSpec, first: int) -> bytes:
    models = [device.model for device in spec.devices]
    node = pool_pb2.FleetNode(
        node_id=spec.node_id,
        name=spec.name,
        pool=spec.pool,
        first=first,
        devices=len(models),
        models=models[:1] if len(set(models)) == 1 else models,
    )
    # A message of one entry: messages that are joined are one message with all entries.
    return pool_pb2.FleetEvent(nodes=[node]).SerializeToString()


def _state_of(node: Node, *, usable: bool) -> int:
    if node.state is NodeState.SUSPECT:
        return pool_pb2.FLEET_STATE_SUSPECT
    if node.state is NodeState.LOST:
        return pool_pb2.FLEET_STATE_LOST
    if node.state is not NodeState.READY and not (node.spec.agentless and node.state is NodeState.DECLARED):
        return pool_pb2.FLEET_STATE_AWAY
    if not usable:
        return pool_pb2.FLEET_STATE_SICK
    return pool_pb2.FLEET_STATE_READY if node.grantable else pool_pb2.FLEET_STATE_CLOSED


def _percent(part: int, whole: int) -> int:
    """Some is never nothing, and all is all."""
    if part <= 0 or whole <= 0:
        return 0
    return 100 if part >= whole else max(1, min(99, part * 100 // whole))


def _numbers(numbers: list[int]) -> bytes:
    packed = array("I", numbers)
    assert packed.itemsize == 4
    if _BIG_ENDIAN:
        packed.byteswap()
    return packed.tobytes()


_BIG_ENDIAN = array("I", [1]).tobytes()[0] == 0
