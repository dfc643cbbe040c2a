"""The SDK: ask for parts of GPUs from a Python program and hold them while it runs.

::

    from aliquot.client import Pool

    with Pool(tenant="research") as pool, pool.lease("0.25(A100),10Gi") as lease:
        lease.run(["python", "train.py"])

`Pool` is for programs with threads, `AsyncPool` its twin for asyncio. `_errors` shows the tree of errors, `local` talks
to this node's agent, `admin` holds what administrators declare and read, `access` who may do what. Names with an
underscore are private.
"""

from aliquot.client._asking import fresh_key as fresh_key
from aliquot.client._async.held import AsyncHeldLease as AsyncHeldLease
from aliquot.client._async.leasing import Leasing as Leasing
from aliquot.client._async.pool import AsyncPool as AsyncPool
from aliquot.client._declaring import DeviceDeclaration as DeviceDeclaration
from aliquot.client._declaring import NodeDeclaration as NodeDeclaration
from aliquot.client._errors import AgentError as AgentError
from aliquot.client._errors import AgentUnreachable as AgentUnreachable
from aliquot.client._errors import AttachRefused as AttachRefused
from aliquot.client._errors import Conflict as Conflict
from aliquot.client._errors import DeadlineExceeded as DeadlineExceeded
from aliquot.client._errors import DeviceNotFound as DeviceNotFound
from aliquot.client._errors import ExtensionRefused as ExtensionRefused
from aliquot.client._errors import IdempotencyMismatch as IdempotencyMismatch
from aliquot.client._errors import IncidentNotFound as IncidentNotFound
from aliquot.client._errors import InternalError as InternalError
from aliquot.client._errors import InUse as InUse
from aliquot.client._errors import InvalidRequest as InvalidRequest
from aliquot.client._errors import LeaseLost as LeaseLost
from aliquot.client._errors import LeaseNotFound as LeaseNotFound
from aliquot.client._errors import MaintenanceNotFound as MaintenanceNotFound
from aliquot.client._errors import NameTaken as NameTaken
from aliquot.client._errors import NeverFits as NeverFits
from aliquot.client._errors import NoCapacity as NoCapacity
from aliquot.client._errors import NodeNotFound as NodeNotFound
from aliquot.client._errors import NotFound as NotFound
from aliquot.client._errors import NotGrantedInTime as NotGrantedInTime
from aliquot.client._errors import NotLoggedIn as NotLoggedIn
from aliquot.client._errors import NotPermitted as NotPermitted
from aliquot.client._errors import Overloaded as Overloaded
from aliquot.client._errors import PeriodClosed as PeriodClosed
from aliquot.client._errors import PlacementRefused as PlacementRefused
from aliquot.client._errors import PoolError as PoolError
from aliquot.client._errors import QueueNotFound as QueueNotFound
from aliquot.client._errors import QuotaExceeded as QuotaExceeded
from aliquot.client._errors import Refused as Refused
from aliquot.client._errors import StillUnwell as StillUnwell
from aliquot.client._errors import TenantHeldBack as TenantHeldBack
from aliquot.client._errors import TenantNotFound as TenantNotFound
from aliquot.client._errors import TierUnavailable as TierUnavailable
from aliquot.client._errors import TokenNotFound as TokenNotFound
from aliquot.client._errors import Unavailable as Unavailable
from aliquot.client._errors import Violation as Violation
from aliquot.client._errors import WatchCompacted as WatchCompacted
from aliquot.client._retrying import RetryPolicy as RetryPolicy
from aliquot.client._sync.held import HeldLease as HeldLease
from aliquot.client._sync.pool import Pool as Pool
from aliquot.client._values.base import Page as Page
from aliquot.client._values.events import Event as Event
from aliquot.client._values.events import LeaseChanged as LeaseChanged
from aliquot.client._values.events import NodeChanged as NodeChanged
from aliquot.client._values.events import Resynced as Resynced
from aliquot.client._values.leases import Explanation as Explanation
from aliquot.client._values.leases import Lease as Lease
from aliquot.client._values.leases import LeaseState as LeaseState
from aliquot.client._values.leases import MemberPlace as MemberPlace
from aliquot.client._values.leases import Missing as Missing
from aliquot.client._values.leases import NodeFit as NodeFit
from aliquot.client._values.leases import ServedUse as ServedUse
from aliquot.client._values.leases import Slice as Slice
from aliquot.client._values.leases import SliceState as SliceState
from aliquot.client._values.leases import Timeline as Timeline
from aliquot.client._values.leases import TimelineStep as TimelineStep
from aliquot.client._values.leases import WaitUntil as WaitUntil
from aliquot.client._values.nodes import Closure as Closure
from aliquot.client._values.nodes import Device as Device
from aliquot.client._values.nodes import MaintenancePhase as MaintenancePhase
from aliquot.client._values.nodes import MigCard as MigCard
from aliquot.client._values.nodes import MigPart as MigPart
from aliquot.client._values.nodes import MigProfile as MigProfile
from aliquot.client._values.nodes import Node as Node
from aliquot.client._values.nodes import NodeCondition as NodeCondition
from aliquot.client._values.nodes import NodeState as NodeState
from aliquot.client._values.nodes import Telemetry as Telemetry
from aliquot.client._values.pool import PoolTotals as PoolTotals
from aliquot.client._values.pool import Status as Status
from aliquot.client._values.pool import TenantTotals as TenantTotals
from aliquot.client._values.requests import Request as Request
from aliquot.client._values.requests import RequestOptions as RequestOptions
from aliquot.client._values.requests import Serve as Serve
from aliquot.client._values.requests import Tier as Tier
from aliquot.client._values.requests import Topology as Topology
from aliquot.common.errors import AliquotError as AliquotError
from aliquot.common.request import RequestSyntaxError as RequestSyntaxError
from aliquot.common.tls import ClientTls as ClientTls
