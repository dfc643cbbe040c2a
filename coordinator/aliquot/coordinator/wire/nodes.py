"""Nodes and devices between messages and the core: as administrators declare them, as agents report them, as
readers see them.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator

from aliquot.common import catalog, limits, names
from aliquot.common.errors import InvalidFieldError
from aliquot.common.fields import Writer
from aliquot.common.names import plain_text
from aliquot.common.tiers import Tier
from aliquot.coordinator.core.books.nodes import Device, Node
from aliquot.coordinator.core.values.types import (
    UNKNOWN,
    CutState,
    DeviceSpec,
    MigCard,
    MigPart,
    MigProfile,
    NodeSpec,
)
from aliquot.coordinator.errors import Overloaded
from aliquot.coordinator.reading.telemetry import Telemetry
from aliquot.coordinator.reading.totals import ClassTotals, DeviceUse, QueueTotals
from aliquot.coordinator.reading.view import View
from aliquot.coordinator.wire.health import read_remedies, sign_message
from aliquot.coordinator.wire.hiding import Sees, shown_id, shown_ids
from aliquot.coordinator.wire.requests import MAX_HOST_CPU_MILLI, MAX_HOST_MEMORY_BYTES
from aliquot.coordinator.wire.serving import SERVES_MAX, labels_of, plain, serves_of, without_serving
from aliquot.v1 import pool_pb2, types_pb2

DEFAULT_POOL = "default"
MAX_DEVICE_MEMORY_BYTES = limits.MAX_SLICE_MEMORY_BYTES
MAX_TIERS = 64
"""Of a device, as its agent tells them: those of newer agents have room."""
_TIERS = frozenset(map(int, Tier))
MAX_MIG = 64
"""Profiles and parts of a card, and its slices of memory."""
LEASES_SHOWN_MAX = 64
"""Of one device."""
_DERIVED = uuid.UUID("6f2d3c1e-8a45-5d0b-9e77-a11c0a70dead")
"""Namespace of the UUIDs of declared devices that have none."""


def read_declared(message: types_pb2.Node, field: str) -> NodeSpec:
    """A node as an administrator declares it. Raises InvalidFieldError with the path below `field`."""
    node_id = names.validate_node(message.node_id or message.name, f"{field}.node_id")
    _check_devices(message, field)
    devices = [
        _read_device(device, f"{field}.devices[{index}]", node_id, index)
        for index, device in enumerate(message.devices)
    ]
    return _read_node(message, field, node_id, devices, agentless=message.agentless)


def read_registered(message: types_pb2.Node, node_id: str) -> NodeSpec:
    """A node as its agent describes it. Raises InvalidFieldError."""
    _check_devices(message, "node")
    devices = []
    for index, device in enumerate(message.devices):
        names.validate_device_uuid(device.uuid, f"node.devices[{index}].uuid")
        devices.append(_read_device(device, f"node.devices[{index}]", node_id, device.index))
    return _read_node(message, "node", node_id, devices, agentless=False)


def check_room(view: View, node_ids: Iterable[str]) -> None:
    """Raises Overloaded where these nodes would be more than a pool may have."""
    new = sum(node_id not in view.nodes for node_id in node_ids)
    if new and len(view.nodes) + new > limits.MAX_NODES:
        raise Overloaded(f"{len(view.nodes)} nodes are known; {limits.MAX_NODES} is the bound", retry_after_ms=30_000)


def known_tiers(tiers: Iterable[int]) -> tuple[int, ...]:
    """Those of a newer agent that nobody here knows are left out."""
    return tuple(sorted(set(tiers) & _TIERS))


def _check_devices(message: types_pb2.Node, field: str) -> None:
    """Before any of them is read."""
    if len(message.devices) > limits.MAX_DEVICES_PER_NODE:
        raise InvalidFieldError(
            f"{field}.devices", f"{len(message.devices)} devices; at most {limits.MAX_DEVICES_PER_NODE} are allowed"
        )
    for index, device in enumerate(message.devices):
        if len(device.tiers) > MAX_TIERS:
            raise InvalidFieldError(f"{field}.devices[{index}].tiers", f"{len(device.tiers)}; at most {MAX_TIERS}")


def _read_node(
    message: types_pb2.Node, field: str, node_id: str, devices: list[DeviceSpec], *, agentless: bool
) -> NodeSpec:
    cpu_milli = message.cpu_milli if message.HasField("cpu_milli") else UNKNOWN
    host_memory_bytes = message.host_memory_bytes if message.HasField("host_memory_bytes") else UNKNOWN
    if cpu_milli > MAX_HOST_CPU_MILLI or host_memory_bytes > MAX_HOST_MEMORY_BYTES:
        raise InvalidFieldError(f"{field}.cpu_milli", "no machine has that much CPU or memory")
    tiers = [max(known) for d in message.devices if not d.mig_profile and (known := known_tiers(d.tiers))]
    domain = message.failure_domain
    labels = names.validate_labels(message.labels, f"{field}.labels")
    serves = () if agentless else message.serves[:SERVES_MAX]
    return NodeSpec(
        node_id=node_id,
        name=names.validate_node(message.name or node_id, f"{field}.name"),
        devices=tuple(devices),
        labels=tuple(sorted((*without_serving(labels, f"{field}.labels").items(), *labels_of(serves)))),
        pool=names.validate_pool(message.pool, f"{field}.pool") if message.pool else DEFAULT_POOL,
        failure_domain=names.validate_tenant(domain, f"{field}.failure_domain") if domain else "",
        cpu_milli=cpu_milli,
        host_memory_bytes=host_memory_bytes,
        best_tier=min(tiers) if tiers and not agentless else UNKNOWN,
        agentless=agentless,
        cards=_read_cards(message, field),
        remedies=() if agentless else read_remedies(message.remedies),
        lends=message.lends and not agentless,
    )


def _read_cards(message: types_pb2.Node, field: str) -> tuple[MigCard, ...]:
    """The cards that may be cut. Their bounds are far above what any card has."""
    if len(message.cards) > limits.MAX_DEVICES_PER_NODE:
        raise InvalidFieldError(f"{field}.cards", f"{len(message.cards)}; at most {limits.MAX_DEVICES_PER_NODE}")
    cards = []
    for index, card in enumerate(message.cards):
        path = f"{field}.cards[{index}]"
        counts = (len(card.profiles), len(card.parts), *(len(profile.starts) for profile in card.profiles[:MAX_MIG]))
        if max(counts) > MAX_MIG or max(_mig_numbers(card), default=0) > MAX_MIG:
            raise InvalidFieldError(path, f"more than {MAX_MIG} profiles, parts or slices")
        profiles = tuple(
            MigProfile(
                names.validate_text(profile.name, f"{path}.profiles", limits.MAX_MODEL_CHARS),
                profile.length,
                tuple(profile.starts)[:MAX_MIG],
                min(profile.memory_bytes, MAX_DEVICE_MEMORY_BYTES),
                profile.compute_slices,
            )
            for profile in card.profiles
            if profile.length and profile.memory_bytes
        )
        parts = tuple(
            MigPart(
                names.validate_text(part.profile, f"{path}.parts", limits.MAX_MODEL_CHARS),
                part.start,
                part.uuid[: limits.MAX_DEVICE_UUID_CHARS],
            )
            for part in card.parts
        )
        model = catalog.canonical_name(card.model[: limits.MAX_MODEL_CHARS])
        cards.append(MigCard(names.validate_device_uuid(card.uuid, f"{path}.uuid"), model, profiles, parts))
    return tuple(cards)


def _mig_numbers(card: types_pb2.MigCard) -> Iterator[int]:
    """Slices of memory and of compute: no card has many."""
    for profile in card.profiles:
        yield from (*profile.starts, profile.length, profile.compute_slices)
    yield from (part.start for part in card.parts)


def _read_device(message: types_pb2.Device, field: str, node_id: str, index: int) -> DeviceSpec:
    if message.uuid:
        device_uuid = names.validate_device_uuid(message.uuid, f"{field}.uuid")
    else:
        device_uuid = f"GPU-{uuid.uuid5(_DERIVED, f'{node_id}/{index}')}"
    named = message.model or message.product_name
    if not named:
        raise InvalidFieldError(f"{field}.model", "is empty", hint="name the model, such as A100-80")
    if len(named) > limits.MAX_MODEL_CHARS:
        raise InvalidFieldError(f"{field}.model", f"{len(named)} characters; at most {limits.MAX_MODEL_CHARS}")
    model = catalog.canonical_name(message.model)
    if model not in catalog.BY_NAME:  # a family of several sizes, or a product's name: the memory may decide
        model = catalog.canonical_model(named, message.memory_total_bytes or None)
    memory_total_bytes = message.memory_total_bytes or catalog.memory_total_bytes(model) or 0
    if not 0 < memory_total_bytes <= MAX_DEVICE_MEMORY_BYTES:
        raise InvalidFieldError(
            f"{field}.memory_total_bytes",
            f"{memory_total_bytes} bytes is not possible, and the catalogue does not know {model!r}",
            hint="state the device's memory in bytes",
        )
    if message.memory_reserved_bytes >= memory_total_bytes:
        raise InvalidFieldError(f"{field}.memory_reserved_bytes", "the driver can't reserve all of the memory")
    vendor = message.vendor or catalog.vendor_of(model) or "nvidia"
    if catalog.parse_vendor(vendor) is None:
        raise InvalidFieldError(
            f"{field}.vendor", f"{vendor[:64]!r} is not a vendor", hint=f"one of {', '.join(catalog.VENDORS)}"
        )
    return DeviceSpec(
        uuid=device_uuid,
        model=model,
        memory_total_bytes=memory_total_bytes,
        memory_reserved_bytes=message.memory_reserved_bytes,
        vendor=catalog.parse_vendor(vendor) or "nvidia",
        index=index,
        mig_profile=names.validate_text(message.mig_profile, f"{field}.mig_profile", limits.MAX_MODEL_CHARS),
        parent_uuid=message.parent_uuid[: limits.MAX_DEVICE_UUID_CHARS],
        nvlink_island=message.fabric_island if message.HasField("fabric_island") else UNKNOWN,
        numa_node=message.numa_node if message.HasField("numa_node") else UNKNOWN,
        compute_milli=min(message.compute_milli, limits.WHOLE_SHARE_MILLI) or limits.WHOLE_SHARE_MILLI,
        mig_start=min(message.mig_start, MAX_MIG) if message.HasField("mig_start") else UNKNOWN,
        best_tier=max(known_tiers(message.tiers), default=UNKNOWN) if message.mig_profile else UNKNOWN,
        whole_only=message.whole_only,
    )


_DEVICE = Writer(
    types_pb2.Device,
    DeviceSpec,
    {
        **{
            name: name
            for name in (
                *("uuid", "index", "model", "vendor", "memory_total_bytes", "memory_reserved_bytes", "mig_profile"),
                *("parent_uuid", "numa_node", "compute_milli", "mig_start"),
            )
        },
        "fabric_island": "nvlink_island",
    },
    rest="it changes while the device is there: `NodeWriter` adds it",
)
_IN_MEMORY = "only memory knows it: `NodeWriter` adds it"
_NODE = Writer(
    types_pb2.Node,
    Node,
    {
        "labels": lambda node, _: plain(node.spec.labels),
        "serves": lambda node, _: serves_of(node.spec.labels),
    },
    parts=("spec",),
    left_out={
        **dict.fromkeys(("agent_version", "driver_version", "last_heard_ms", "slices", "conditions"), _IN_MEMORY),
        **dict.fromkeys(("devices", "cards"), "large: `NodeWriter` adds them where they are asked for"),
        "care": "agents tell it to the coordinator alone",
    },
)
_OF_ITS_ORDER = "of the order to cut it, if there is one"
_CARD = Writer(
    types_pb2.MigCard,
    MigCard,
    left_out={"cut": _OF_ITS_ORDER, "problem": _OF_ITS_ORDER, "cut_for": _OF_ITS_ORDER},
)

class_totals_message = Writer(
    pool_pb2.PoolTotals, ClassTotals, {"pool": lambda _, key: key[0], "model": lambda _, key: key[1]}
).message
"""Sums over the devices of one (pool, model), which is given beside."""
queue_totals_message = Writer(
    pool_pb2.TenantTotals, QueueTotals, {"tenant": lambda _, key: key[0], "queue": lambda _, key: key[1]}
).message
"""Sums over the leases of one (tenant, queue), which is given beside."""


def _of_unknown(count: int) -> tuple[tuple[str, str], ...]:
    if not count:
        return ()
    return (("slices", f"{count} that the books do not know are quarantined: `aliquot health` lists them"),)


class NodeWriter:
    """Makes messages of nodes and devices from the View, with what only memory knows: telemetry, versions, liveness."""

    def __init__(self, view: View, telemetry: Telemetry, last_heard_ms: Callable[[str], int]) -> None:
        self._view = view
        self._telemetry = telemetry
        self._last_heard_ms = last_heard_ms

    def node_message(self, node: Node, *, with_devices: bool, sees: Sees | None = None) -> types_pb2.Node:
        """A node as administrators see it. `sees`: which leases may be named on its devices; None: all."""
        spec = node.spec
        about = self._telemetry.node(spec.node_id)
        message = _NODE.message(node)
        message.agent_version = about.agent_version
        message.driver_version = about.driver_version
        message.last_heard_ms = self._last_heard_ms(spec.node_id)
        message.slices = len(self._view.slices_on(spec.node_id))
        for subject, text in (*about.conditions, *_of_unknown(len(about.unknown))):
            message.conditions.add(subject=subject, text=text)
        if with_devices:
            message.devices.extend(self.device_messages(node, sees))
            message.cards.extend(self._card_messages(node, sees))
        return message

    def unknown_slices(self, node_id: str = "") -> Iterator[pool_pb2.UnknownSlice]:
        """What agents hold and the books do not know, of one node or of all."""
        for each_id, report in self._telemetry.unknown_slices():
            if node_id in ("", each_id):
                node = self._view.nodes.get(each_id)
                yield pool_pb2.UnknownSlice(
                    slice_id=plain_text(report.slice_id, limits.MAX_NAME_CHARS),
                    lease_id=plain_text(report.lease_id, limits.MAX_NAME_CHARS),
                    node_id=each_id,
                    node_name=node.spec.name if node is not None else "",
                    device_uuid=plain_text(report.device_uuid, limits.MAX_DEVICE_UUID_CHARS),
                    share_milli=report.share_milli,
                    memory_bytes=report.memory_bytes,
                )

    def device_messages(self, node: Node, sees: Sees | None = None) -> Iterable[types_pb2.Device]:
        """The devices of a node. `sees`: which leases may be named on them; None: all."""
        uses, holders = self._view.totals.devices, self._holders(node.spec.node_id)
        return [
            self._device_message(
                device,
                self._view.device(device.uuid),
                uses.get(device.uuid),
                node.spec.node_id,
                shown_ids(holders.get(device.uuid, [])[:LEASES_SHOWN_MAX], self._view, sees),
            )
            for device in node.spec.devices
        ]

    def _holders(self, node_id: str) -> dict[str, list[str]]:
        """The leases that hold some of each device of a node, each once."""
        found: dict[str, dict[str, None]] = {}
        for slice_id, lease_id in self._view.slices_on(node_id).items():
            piece = self._view.leases[lease_id].find(slice_id)
            if piece is not None:
                found.setdefault(piece.plan.device_uuid, {})[lease_id] = None
        return {uuid: list(lease_ids) for uuid, lease_ids in found.items()}

    def _card_messages(self, node: Node, sees: Sees | None) -> Iterable[types_pb2.MigCard]:
        """The cards that may be cut anew, and for whom that is being done."""
        orders = {cut.card_uuid: cut for cut in node.cuts}
        for card in node.spec.cards:
            message = _CARD.message(card)
            order = orders.get(card.uuid)
            if order is not None:
                message.cut, message.problem = order.number, order.problem
                ordered = order.state is CutState.ORDERED and order.lease_id
                message.cut_for = shown_id(order.lease_id, self._view, sees) if ordered else ""
            yield message

    def _device_message(
        self, spec: DeviceSpec, device: Device, use: DeviceUse | None, node_id: str, lease_ids: list[str]
    ) -> types_pb2.Device:
        about = self._telemetry.about_device(spec.uuid)
        message = _DEVICE.message(spec)
        message.product_name = about.product_name
        message.foreign_bytes = device.foreign_bytes
        message.healthy = device.healthy
        message.health_reason = f"{device.reason} (overruled)" if device.well and device.reason else device.reason
        if use is not None:
            message.leased_share_milli = use.share_milli
            message.leased_memory_bytes = use.memory_bytes
        message.node_id = node_id
        message.pci_bus_id = about.pci_bus_id
        message.tiers.extend(about.tiers)  # type: ignore[arg-type]
        if (telemetry := self._telemetry.device_message(spec.uuid)) is not None:
            message.telemetry.CopyFrom(telemetry)
        message.lease_ids.extend(lease_ids)
        if device.sign is not None:
            message.sign.CopyFrom(sign_message(device.sign))
        message.standing = int(device.standing)  # type: ignore[assignment]
        message.incident = device.incident
        return message
