"""SupplyService: nodes on offer, and orders of them. Thin: what is ordered, the core decides."""

from __future__ import annotations

from aliquot.common import names
from aliquot.common.errors import InvalidFieldError
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.deciding.supply.queries import GetSupply
from aliquot.coordinator.rpc.caller import caller, on_behalf
from aliquot.coordinator.rpc.service import Service
from aliquot.coordinator.wire import supply as messages
from aliquot.coordinator.wire.calls import unary
from aliquot.v1 import supply_pb2 as pb
from aliquot.v1 import supply_pb2_grpc

_ORDERS, _ORDERS_MAX = 8, 64
_FOR_S, _FOR_S_MAX = 300, 3_600


class SupplyService(Service, supply_pb2_grpc.SupplyServiceServicer):
    """See the module's docstring."""

    @unary
    async def DeclareSupply(self, request: pb.DeclareSupplyRequest) -> pb.DeclareSupplyResponse:
        """Put shapes on offer, by these rules."""
        version = request.version if request.HasField("version") else c.ANY_VERSION
        command = c.DeclareSupply(messages.read_spec(request.spec), version)
        subject = f"{len(command.spec.shapes)} shapes, act={command.spec.policy.act}"
        now = await self._writer.submit(on_behalf(subject, command))
        return pb.DeclareSupplyResponse(version=now)

    @unary
    async def GetSupply(self, request: pb.GetSupplyRequest) -> pb.Supply:
        """What is on offer and ordered, and what would be done now."""
        report = await self._writer.query(GetSupply(advice=not request.without_advice))
        return messages.report_message(report, whole=caller().sees_all)

    @unary
    async def TakeOrders(self, request: pb.TakeOrdersRequest) -> pb.TakeOrdersResponse:
        """Give orders to a program that carries them out."""
        taker = names.validate_node(request.taker, "taker")
        if request.orders_max > _ORDERS_MAX:
            raise InvalidFieldError("orders_max", f"{request.orders_max}; at most {_ORDERS_MAX}")
        if request.for_s > _FOR_S_MAX:
            raise InvalidFieldError("for_s", f"{request.for_s}; at most {_FOR_S_MAX}")
        command = c.TakeOrders(taker, request.orders_max or _ORDERS, (request.for_s or _FOR_S) * 1000)
        taken = await self._writer.submit(on_behalf(taker, command))
        return pb.TakeOrdersResponse(orders=map(messages.order_message, taken))

    @unary
    async def ReportOrder(self, request: pb.ReportOrderRequest) -> pb.NodeOrder:
        """What became of an order."""
        command = c.ReportOrder(
            request.number,
            names.validate_node(request.taker, "taker"),
            request.accepted,
            reference=names.validate_text(request.reference, "reference"),
            node_name=request.node_name and names.validate_node(request.node_name, "node_name"),
            due_ms=min(request.due_ms, self._clock.now_ms() + messages.SECONDS_MAX * 1000),
            problem=names.plain_text(request.problem, messages.TEXT_MAX),
            final=request.final,
        )
        order = await self._writer.submit(on_behalf(f"order-{request.number}", command))
        return messages.order_message(order)

    @unary
    async def WithdrawOrder(self, request: pb.WithdrawOrderRequest) -> pb.NodeOrder:
        """Want no more of an order."""
        command = c.WithdrawOrder(request.number, names.plain_text(request.reason, messages.TEXT_MAX))
        order = await self._writer.submit(on_behalf(f"order-{request.number}", command))
        return messages.order_message(order)

    @unary
    async def ExpectDemand(self, request: pb.ExpectDemandRequest) -> pb.ExpectDemandResponse:
        """Take a forecast."""
        series = tuple(messages.read_series(request.series, self._clock.now_ms()))
        await self._writer.submit(on_behalf(f"{len(series)} series", c.ExpectDemand(series)))
        return pb.ExpectDemandResponse()
