"""PoolService: nodes, devices and totals, for administrators and screens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncGenerator
from itertools import islice

from aliquot.common import limits, names
from aliquot.common.errors import InvalidFieldError
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.nodes import Node
from aliquot.coordinator.core.books.roles import Action
from aliquot.coordinator.core.commands.queries import Fits
from aliquot.coordinator.core.deciding.answers.health import GetHealth
from aliquot.coordinator.core.values.errors import no_node
from aliquot.coordinator.rpc.caller import at_home, caller, on_behalf
from aliquot.coordinator.rpc.service import Led, Service
from aliquot.coordinator.rpc.watch_service import FleetService
from aliquot.coordinator.wire.calls import page_size, stated_reason, streamed, unary
from aliquot.coordinator.wire.health import health_message, incident_message
from aliquot.coordinator.wire.nodes import (
    NodeWriter,
    check_room,
    class_totals_message,
    queue_totals_message,
    read_declared,
)
from aliquot.coordinator.wire.placing import fits_message, read_node_ids
from aliquot.coordinator.wire.requests import read_request
from aliquot.v1 import pool_pb2 as pb
from aliquot.v1 import pool_pb2_grpc, types_pb2

_TENANTS_SHOWN = 1_000
_DEVICES_PER_PAGE = 4_000
"""A page ends after so many devices, so that it stays a message of ordinary size."""
_DEVICES_LOOKED_AT = 10_000
_UNKNOWN_SHOWN_MAX = 1_000
_CONDITIONS_SHOWN_MAX = 64


class PoolService(Service, pool_pb2_grpc.PoolServiceServicer):
    """See the module's docstring."""

    def __init__(self, led: Led, nodes: NodeWriter, fleet: FleetService) -> None:
        super().__init__(led)
        self._nodes = nodes
        self._fleet = fleet
        self._forecasts = led.forecasts
        self._version = led.version

    # -- changing

    @unary
    async def DeclareNodes(self, request: pb.DeclareNodesRequest) -> pb.DeclareNodesResponse:
        """All of them or none."""
        if len(request.nodes) > limits.MAX_DECLARED_NODES:
            raise InvalidFieldError("nodes", f"{len(request.nodes)} nodes; at most {limits.MAX_DECLARED_NODES} at once")
        specs = [read_declared(node, f"nodes[{index}]") for index, node in enumerate(request.nodes)]
        check_room(self._view, {spec.node_id for spec in specs})
        if specs:
            command = c.DeclareNode(specs[0], tuple(specs[1:]))
            subject = ", ".join(spec.name for spec in specs[:3]) + (", …" if len(specs) > 3 else "")
            await self._writer.submit(on_behalf(subject, command))
        declared = (self._view.nodes.get(spec.node_id) for spec in specs)
        return pb.DeclareNodesResponse(
            nodes=[self._nodes.node_message(node, with_devices=True) for node in declared if node is not None]
        )

    @unary
    async def RemoveNode(self, request: pb.RemoveNodeRequest) -> pb.RemoveNodeResponse:
        """Forget a node."""
        command = c.RemoveNode(request.node_id, force=request.force)
        await self._writer.submit(on_behalf(request.node_id, command))
        return pb.RemoveNodeResponse()

    @unary
    async def Cordon(self, request: pb.CordonRequest) -> types_pb2.Node:
        """Make no new grants on a node."""
        reason = stated_reason(request.reason)
        return await self._cordon(c.Cordon(request.node_id, reason=reason))

    @unary
    async def Uncordon(self, request: pb.UncordonRequest) -> types_pb2.Node:
        """Make grants on a node again."""
        return await self._cordon(c.Cordon(request.node_id, cordoned=False))

    @unary
    async def Drain(self, request: pb.DrainRequest) -> types_pb2.Node:
        """Make no new grants on a node, and end those that it has."""
        if request.grace_s > limits.MAX_GRACE_S:
            raise InvalidFieldError("grace_s", f"{request.grace_s} s; at most {limits.MAX_GRACE_S}")
        reason = stated_reason(request.reason)
        command = c.Cordon(request.node_id, drain=True, reason=reason, grace_ms=request.grace_s * 1000)
        return await self._cordon(command)

    async def _cordon(self, command: c.Cordon) -> types_pb2.Node:
        await self._writer.submit(on_behalf(command.node_id, command))
        return self._nodes.node_message(self._node(command.node_id), with_devices=False)

    # -- sick cards

    @unary
    async def QuarantineDevice(self, request: pb.QuarantineDeviceRequest) -> pb.DeviceCareResponse:
        """Take a card out of service."""
        command = c.QuarantineDevice(request.uuid, stated_reason(request.reason), request.drain, caller().principal)
        return await self._care(command)

    @unary
    async def VerifyDevice(self, request: pb.VerifyDeviceRequest) -> pb.DeviceCareResponse:
        """Have a card tested."""
        command = c.VerifyDevice(request.uuid, stated_reason(request.reason), caller().principal)
        return await self._care(command)

    @unary
    async def ReturnDevice(self, request: pb.ReturnDeviceRequest) -> pb.DeviceCareResponse:
        """Take a card back into service."""
        reason = stated_reason(request.reason)
        command = c.ReturnDevice(request.uuid, reason, caller().principal, overrule=request.overrule)
        return await self._care(command, "OverruleDevice" if request.overrule else "")

    async def _care(
        self, command: c.QuarantineDevice | c.VerifyDevice | c.ReturnDevice, action: str = ""
    ) -> pb.DeviceCareResponse:
        await self._writer.submit(on_behalf(command.uuid, command, action))
        report = await self._writer.query(GetHealth())
        for view in report.open:
            devices = [device for unit in view.incident.units for device in self._parts_of(view.incident.node_id, unit)]
            if command.uuid in view.incident.units or command.uuid in devices:
                return pb.DeviceCareResponse(incident=incident_message(view, with_story=True))
        return pb.DeviceCareResponse()

    def _parts_of(self, node_id: str, unit: str) -> list[str]:
        node = self._view.nodes.get(node_id)
        return [] if node is None else [each.uuid for each in node.spec.devices if each.parent_uuid == unit]

    @unary
    async def GetHealth(self, request: pb.GetHealthRequest) -> pb.Health:
        """Incidents about cards, what is quarantined, and what this coordinator fails to do."""
        message = health_message(await self._writer.query(GetHealth(request.incident)))
        message.unknown_slices.extend(islice(self._nodes.unknown_slices(), _UNKNOWN_SHOWN_MAX))
        self.metrics.duties.look()
        for subject, text in islice(self.metrics.duties.failing().items(), _CONDITIONS_SHOWN_MAX):
            message.conditions.add(subject=subject, text=text)
        return message

    @unary
    async def SettleSlices(self, request: pb.SettleSlicesRequest) -> pb.SettleSlicesResponse:
        """End slices that only their node's agent knows."""
        node_id = self._node(request.node_id).spec.node_id
        held = {piece.slice_id: piece for piece in self._nodes.unknown_slices(node_id)}
        for slice_id in request.slice_ids:
            if slice_id not in held:
                hint = "`aliquot health` lists those that the books do not know; others end with their lease"
                raise InvalidFieldError("slice_ids", f"{slice_id[:64]!r} is not quarantined there", hint=hint)
        chosen = list(islice(dict.fromkeys(request.slice_ids or held), _UNKNOWN_SHOWN_MAX))
        command = c.WriteOff(node_id, tuple(chosen))
        await self._writer.submit(on_behalf(request.node_id, command))
        return pb.SettleSlicesResponse(slices=[held[slice_id] for slice_id in chosen])

    # -- looking

    @unary
    async def GetNode(self, request: pb.GetNodeRequest) -> types_pb2.Node:
        """One node by id or name."""
        return self._nodes.node_message(self._node(request.node_id), with_devices=True, sees=caller().sees)

    @unary
    async def ListNodes(self, request: pb.ListNodesRequest) -> pb.ListNodesResponse:
        """A page of nodes, in the order of their ids."""
        size = page_size(request.page_size, limits.DEFAULT_PAGE_SIZE, limits.MAX_PAGE_SIZE)
        response = pb.ListNodesResponse(seq=self._view.seq)
        last, devices, sees = "", 0, caller().sees
        for node_id in self._after(request.page_token):
            node = self._view.nodes[node_id]
            if request.pool and node.spec.pool != request.pool:
                continue
            if len(response.nodes) == size or devices > _DEVICES_PER_PAGE:
                response.next_page_token = f"n{last}"
                break
            response.nodes.append(self._nodes.node_message(node, with_devices=request.with_devices, sees=sees))
            devices += len(node.spec.devices) if request.with_devices else 0
            last = node_id
        return response

    @unary
    async def ListDevices(self, request: pb.ListDevicesRequest) -> pb.ListDevicesResponse:
        """A page of devices, whole nodes at a time."""
        size = page_size(request.page_size, limits.DEFAULT_PAGE_SIZE, limits.MAX_PAGE_SIZE)
        response = pb.ListDevicesResponse()
        last = ""
        looked_at = 0
        sees = caller().sees
        only = self._node(request.node_id).spec.node_id if request.node_id else ""
        for node_id in [only] if only else self._after(request.page_token):
            node = self._view.nodes[node_id]
            if request.pool and node.spec.pool != request.pool:
                continue
            if last and (len(response.devices) >= size or looked_at > _DEVICES_LOOKED_AT):
                response.next_page_token = f"n{last}"
                break
            looked_at += len(node.spec.devices)
            response.devices.extend(
                device
                for device in self._nodes.device_messages(node, sees)
                if not request.model or device.model == request.model
            )
            last = node_id
        return response

    @unary
    async def Fits(self, request: pb.FitsRequest) -> pb.FitsResponse:
        """Which nodes could take one member of a request now."""
        read = read_request(at_home(request.request), self._view.node_id_of)
        if request.request.tenant:  # whether a tenant is declared, and what it may, is told to its own
            caller().must(Action.READ_LEASES, request.request.tenant)
        named = read_node_ids(request.node_ids, len(self._view.nodes))
        found = await self._writer.query(Fits(read.spec, tuple(map(self._view.node_id_of, named))))
        return fits_message(named, found)

    @unary
    async def GetStatus(self, request: pb.GetStatusRequest) -> pb.Status:
        """Totals, as of the last durable fact. The first 1,000 tenants and queues."""
        view, totals = self._view, self._view.totals
        pools = [
            class_totals_message(of_class, key)
            for key, of_class in sorted(totals.classes.items())
            if of_class.devices or of_class.leased_share_milli
        ]
        queues = [key for key, _ in zip(totals.queues, range(_TENANTS_SHOWN), strict=False)]
        tenants = [
            queue_totals_message(totals.queues[key], key)
            for key in sorted(queues)
            if caller().may(Action.READ_LEASES, key[0])
        ]
        return pb.Status(
            seq=view.seq,
            leader_epoch=view.leader_epoch,
            version=self._version,
            granting=self._writer.granting,
            not_granting_reason=self._writer.not_granting_reason,
            pools=pools,
            tenants=tenants,
            queued=totals.queued,
            leases=totals.live,
            nodes_by_state={state: count for state, count in totals.by_node_state.items() if count},
        )

    @unary
    async def Forecast(self, request: pb.ForecastRequest) -> pb.ForecastResponse:
        """Demand as it was and as it is expected to be."""
        only = _read_series(request)
        if only is not None and only.startswith("tenant/"):
            caller().must(Action.READ_LEASES, only.removeprefix("tenant/"))

        def may(tenant: str) -> bool:
            return caller().may(Action.READ_LEASES, tenant)

        return pb.ForecastResponse() if self._forecasts is None else self._forecasts.answer(only, may)

    @streamed
    def WatchFleet(self, request: pb.WatchFleetRequest) -> AsyncGenerator[bytes, None]:  # type: ignore[override]
        """See `FleetService`."""
        return self._fleet.watch(request)

    # -- below the calls

    def _node(self, name: str) -> Node:
        node = self._view.node_named(name)
        if node is None:
            raise no_node(name)
        return node

    def _after(self, token: str) -> list[str]:
        node_ids = self._view.node_ids()
        if not token:
            return node_ids
        if token[:1] != "n" or len(token) > limits.MAX_NODE_CHARS + 1:
            raise InvalidFieldError("page_token", "is none of ours", hint="use the token of the page before, unchanged")
        return node_ids[bisect_right(node_ids, token[1:]) :]


_SERIES_KINDS = ("pool", "model", "tenant", "class")


def _read_series(request: pb.ForecastRequest) -> str | None:
    """The series that is asked for; None: all. Raises InvalidFieldError."""
    if not request.HasField("series"):
        return None
    kind, name = request.series.kind, request.series.name
    if not kind and not name:
        return ""
    if kind not in _SERIES_KINDS:
        raise InvalidFieldError("series.kind", f"{kind[:32]!r} is none of {', '.join(_SERIES_KINDS)}")
    return f"{kind}/{names.validate_text(name, 'series.name', limits.MAX_REASON_CHARS)}"
