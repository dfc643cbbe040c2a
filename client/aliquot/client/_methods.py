"""The calls of the contract as data, so that one transport and one retry rule serve them all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from aliquot.v1 import leases_pb2, pool_pb2, types_pb2

Request = TypeVar("Request", bound=Message)
Answer = TypeVar("Answer", bound=Message)


@dataclass(frozen=True, slots=True)
class Method(Generic[Request, Answer]):
    """One call: its path on the wire and the types that go in and out."""

    path: str
    request: type[Request]
    answer: type[Answer]

    @property
    def name(self) -> str:
        """The call's own name, for messages."""
        return self.path.rpartition("/")[2]


def methods_of(file: FileDescriptor, service: str) -> Mapping[str, Method[Any, Any]]:
    """The calls of a service by name, as the contract declares them."""
    described = file.services_by_name[service]
    return {
        each.name: Method(
            f"/{described.full_name}/{each.name}", GetMessageClass(each.input_type), GetMessageClass(each.output_type)
        )
        for each in described.methods
    }


def _lease(name: str, request: type[Request], answer: type[Answer]) -> Method[Request, Answer]:
    return Method(f"/aliquot.v1.LeaseService/{name}", request, answer)


def _pool(name: str, request: type[Request], answer: type[Answer]) -> Method[Request, Answer]:
    return Method(f"/aliquot.v1.PoolService/{name}", request, answer)


ALLOCATE = _lease("Allocate", leases_pb2.AllocateRequest, leases_pb2.AllocateResponse)
GRANT_ON = _lease("GrantOn", leases_pb2.GrantOnRequest, leases_pb2.AllocateResponse)
ALLOCATE_BATCH = _lease("AllocateBatch", leases_pb2.AllocateBatchRequest, leases_pb2.AllocateBatchResponse)
EXPLAIN = _lease("Explain", leases_pb2.ExplainRequest, leases_pb2.ExplainResponse)
KEEP_ALIVE = _lease("KeepAlive", leases_pb2.KeepAliveRequest, leases_pb2.KeepAliveResponse)
RELEASE = _lease("Release", leases_pb2.ReleaseRequest, leases_pb2.ReleaseResponse)
RELEASE_BATCH = _lease("ReleaseBatch", leases_pb2.ReleaseBatchRequest, leases_pb2.ReleaseBatchResponse)
ACKNOWLEDGE_SHAPE = _lease("AcknowledgeShape", leases_pb2.AcknowledgeShapeRequest, types_pb2.Lease)
GET_TIMELINE = _lease("GetTimeline", leases_pb2.GetTimelineRequest, leases_pb2.Timeline)
GET = _lease("Get", leases_pb2.GetRequest, types_pb2.Lease)
LIST = _lease("List", leases_pb2.ListRequest, leases_pb2.ListResponse)
GET_USE = _lease("GetUse", leases_pb2.GetUseRequest, leases_pb2.UseReport)
EXTEND_LEASE = _lease("ExtendLease", leases_pb2.ExtendLeaseRequest, types_pb2.Lease)
EXEMPT_LEASE = _lease("ExemptLease", leases_pb2.ExemptLeaseRequest, types_pb2.Lease)
CONFIRM_NOTICE = _lease("ConfirmNotice", leases_pb2.ConfirmNoticeRequest, leases_pb2.ConfirmNoticeResponse)
WATCH = _lease("Watch", leases_pb2.WatchRequest, leases_pb2.WatchEvent)

DECLARE_NODES = _pool("DeclareNodes", pool_pb2.DeclareNodesRequest, pool_pb2.DeclareNodesResponse)
REMOVE_NODE = _pool("RemoveNode", pool_pb2.RemoveNodeRequest, pool_pb2.RemoveNodeResponse)
GET_NODE = _pool("GetNode", pool_pb2.GetNodeRequest, types_pb2.Node)
LIST_NODES = _pool("ListNodes", pool_pb2.ListNodesRequest, pool_pb2.ListNodesResponse)
LIST_DEVICES = _pool("ListDevices", pool_pb2.ListDevicesRequest, pool_pb2.ListDevicesResponse)
FITS = _pool("Fits", pool_pb2.FitsRequest, pool_pb2.FitsResponse)
CORDON = _pool("Cordon", pool_pb2.CordonRequest, types_pb2.Node)
UNCORDON = _pool("Uncordon", pool_pb2.UncordonRequest, types_pb2.Node)
DRAIN = _pool("Drain", pool_pb2.DrainRequest, types_pb2.Node)
GET_HEALTH = _pool("GetHealth", pool_pb2.GetHealthRequest, pool_pb2.Health)
SETTLE_SLICES = _pool("SettleSlices", pool_pb2.SettleSlicesRequest, pool_pb2.SettleSlicesResponse)
QUARANTINE_DEVICE = _pool("QuarantineDevice", pool_pb2.QuarantineDeviceRequest, pool_pb2.DeviceCareResponse)
VERIFY_DEVICE = _pool("VerifyDevice", pool_pb2.VerifyDeviceRequest, pool_pb2.DeviceCareResponse)
RETURN_DEVICE = _pool("ReturnDevice", pool_pb2.ReturnDeviceRequest, pool_pb2.DeviceCareResponse)
WATCH_FLEET = _pool("WatchFleet", pool_pb2.WatchFleetRequest, pool_pb2.FleetEvent)
FORECAST = _pool("Forecast", pool_pb2.ForecastRequest, pool_pb2.ForecastResponse)
GET_STATUS = _pool("GetStatus", pool_pb2.GetStatusRequest, pool_pb2.Status)
