"""The calls about nodes that are ordered, each as a flow."""

from __future__ import annotations

from collections.abc import Iterable

from aliquot.client import capacity
from aliquot.client._administration import ask
from aliquot.client._flow import Context, Flow, call
from aliquot.client._messages import read, write
from aliquot.client._methods import Answer, Method, Request
from aliquot.v1 import capacity_pb2


def _capacity(name: str, request: type[Request], answer: type[Answer]) -> Method[Request, Answer]:
    return Method(f"/aliquot.v1.CapacityService/{name}", request, answer)


_DECLARE = _capacity("DeclareCapacity", capacity_pb2.DeclareCapacityRequest, capacity_pb2.DeclareCapacityResponse)
_GET = _capacity("GetCapacity", capacity_pb2.GetCapacityRequest, capacity_pb2.Capacity)
_TAKE = _capacity("TakeOrders", capacity_pb2.TakeOrdersRequest, capacity_pb2.TakeOrdersResponse)
_REPORT = _capacity("ReportOrder", capacity_pb2.ReportOrderRequest, capacity_pb2.NodeOrder)
_WITHDRAW = _capacity("WithdrawOrder", capacity_pb2.WithdrawOrderRequest, capacity_pb2.NodeOrder)
_EXPECT = _capacity("ExpectDemand", capacity_pb2.ExpectDemandRequest, capacity_pb2.ExpectDemandResponse)


def declare(context: Context, spec: capacity.CapacitySpec, version: int | None, timeout_s: float) -> Flow[int]:
    """Put shapes on offer."""
    request = capacity_pb2.DeclareCapacityRequest(version=version)
    write(spec, request.spec)
    request.spec.SetInParent()
    answer = yield from call(context, _DECLARE, request, timeout_s)
    return answer.version


def get(context: Context, timeout_s: float, *, advice: bool) -> Flow[capacity.Capacity]:
    """What is on offer and ordered."""
    request = capacity_pb2.GetCapacityRequest(without_advice=not advice)
    return ask(context, _GET, request, capacity.Capacity, timeout_s)


def take(
    context: Context, taker: str, orders_max: int, for_s: int, timeout_s: float
) -> Flow[tuple[capacity.NodeOrder, ...]]:
    """Orders to carry out."""
    request = capacity_pb2.TakeOrdersRequest(taker=taker, orders_max=orders_max, for_s=for_s)
    answer = yield from call(context, _TAKE, request, timeout_s)
    return tuple(read(order, capacity.NodeOrder) for order in answer.orders)


def report(context: Context, request: capacity_pb2.ReportOrderRequest, timeout_s: float) -> Flow[capacity.NodeOrder]:
    """What became of an order."""
    return ask(context, _REPORT, request, capacity.NodeOrder, timeout_s)


def withdraw(context: Context, number: int, reason: str, timeout_s: float) -> Flow[capacity.NodeOrder]:
    """Want no more of an order."""
    request = capacity_pb2.WithdrawOrderRequest(number=number, reason=reason)
    return ask(context, _WITHDRAW, request, capacity.NodeOrder, timeout_s)


def expect(context: Context, series: Iterable[capacity.ExpectedSeries], timeout_s: float) -> Flow[None]:
    """Tell a forecast."""
    request = capacity_pb2.ExpectDemandRequest()
    for each in series:
        write(each, request.series.add())
    yield from call(context, _EXPECT, request, timeout_s)
