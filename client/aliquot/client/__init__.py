"""The SDK: ask for parts of GPUs from a Python program and hold them while it runs.

::

    from aliquot.client import Pool

    with Pool(tenant="research") as pool, pool.lease("0.25(A100),10Gi") as lease:
        lease.run(["python", "train.py"])

`Pool` is for programs with threads, `AsyncPool` its twin for asyncio. `_errors` shows the tree of errors, `local` talks
to this node's agent, `admin` holds what administrators declare and read. Names with an underscore are private.
"""

from aliquot.client._asking import Request, RequestOptions
from aliquot.client._async.held import AsyncHeldLease
from aliquot.client._async.leasing import Leasing
from aliquot.client._async.pool import AsyncPool
from aliquot.client._declaring import DeviceDeclaration, NodeDeclaration
from aliquot.client._errors import (
    AgentError,
    AgentUnreachable,
    AttachRefused,
    Conflict,
    DeadlineExceeded,
    IdempotencyMismatch,
    InternalError,
    InUse,
    InvalidRequest,
    LeaseLost,
    LeaseNotFound,
    MaintenanceNotFound,
    NameTaken,
    NeverFits,
    NoCapacity,
    NodeNotFound,
    NotFound,
    NotGrantedInTime,
    Overloaded,
    PeriodClosed,
    PlacementRefused,
    PoolError,
    QueueNotFound,
    QuotaExceeded,
    Refused,
    TenantHeldBack,
    TenantNotFound,
    TierUnavailable,
    Unavailable,
    Violation,
    WatchCompacted,
)
from aliquot.client._flow import RetryPolicy
from aliquot.client._operations import fresh_key
from aliquot.client._sync.held import HeldLease
from aliquot.client._sync.pool import Pool
from aliquot.client._values import (
    Closure,
    Device,
    Event,
    Explanation,
    Lease,
    LeaseChanged,
    LeaseState,
    MaintenancePhase,
    MemberPlace,
    MigCard,
    MigPart,
    MigProfile,
    Missing,
    Node,
    NodeChanged,
    NodeFit,
    NodeState,
    PoolTotals,
    Resynced,
    Serve,
    Slice,
    SliceState,
    Status,
    Telemetry,
    TenantTotals,
    Tier,
    Topology,
    WaitUntil,
)
from aliquot.common.errors import AliquotError
from aliquot.common.request import RequestSyntaxError
from aliquot.common.tls import ClientTls

__all__ = [
    "AgentError",
    "AgentUnreachable",
    "AliquotError",
    "AsyncHeldLease",
    "AsyncPool",
    "AttachRefused",
    "ClientTls",
    "Closure",
    "Conflict",
    "DeadlineExceeded",
    "Device",
    "DeviceDeclaration",
    "Event",
    "Explanation",
    "HeldLease",
    "IdempotencyMismatch",
    "InUse",
    "InternalError",
    "InvalidRequest",
    "Lease",
    "LeaseChanged",
    "LeaseLost",
    "LeaseNotFound",
    "LeaseState",
    "Leasing",
    "MaintenanceNotFound",
    "MaintenancePhase",
    "MemberPlace",
    "MigCard",
    "MigPart",
    "MigProfile",
    "Missing",
    "NameTaken",
    "NeverFits",
    "NoCapacity",
    "Node",
    "NodeChanged",
    "NodeDeclaration",
    "NodeFit",
    "NodeNotFound",
    "NodeState",
    "NotFound",
    "NotGrantedInTime",
    "Overloaded",
    "PeriodClosed",
    "PlacementRefused",
    "Pool",
    "PoolError",
    "PoolTotals",
    "QueueNotFound",
    "QuotaExceeded",
    "Refused",
    "Request",
    "RequestOptions",
    "RequestSyntaxError",
    "Resynced",
    "RetryPolicy",
    "Serve",
    "Slice",
    "SliceState",
    "Status",
    "Telemetry",
    "TenantHeldBack",
    "TenantNotFound",
    "TenantTotals",
    "Tier",
    "TierUnavailable",
    "Topology",
    "Unavailable",
    "Violation",
    "WaitUntil",
    "WatchCompacted",
    "fresh_key",
]
